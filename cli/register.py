"""`snapline register`: record weights somebody else made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.link import EdgeOption, edge_documents, edge_lines
from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output

if TYPE_CHECKING:
    from snapline.lineage.model import ModelVersion
    from snapline.lineage.state import State


def register(
    name: Annotated[str, typer.Argument(help="Name of the model.")],
    weights: Annotated[Path, typer.Option(help="Folder of weights; referenced where it lies, never copied.")],
    view: Annotated[str | None, typer.Option(help="The view they materialize.")] = None,
    snapshot: Annotated[list[str] | None, typer.Option(help="A snapshot they were made from; may repeat.")] = None,
    parent: Annotated[list[str] | None, typer.Option(help="The version they were fine-tuned from.")] = None,
    edge: EdgeOption = None,
    contract: Annotated[
        str | None, typer.Option(help="Contract the gate will require: a file or a recorded name.")
    ] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Hash pickle files too; they are never opened.")
    ] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Re-read every byte.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record a model version: weights, and the view and snapshots they were made from."""
    from snapline.cli.erase import close_erasures
    from snapline.cli.mirror import mirror_version
    from snapline.cli.wiring import Home, now
    from snapline.contracts.records import contract_record
    from snapline.lineage.register import Origin, Registration, measure
    from snapline.lineage.register import register as record_version

    output, opened = Output(as_json), Home.open(home)
    state = opened.state()
    lens = opened.lens(state, use_cache=not no_cache)
    record = contract_record(contract, state, lens.objects, lens.now) if contract else None
    with output.progress(f"register {name}") as on_progress:
        measured = measure(weights, lens.objects, lens.cache, allow_pickle, on_progress)
    origin = Origin(view, tuple(snapshot or ()), tuple(parent or ()), edges=tuple(edge or ()))
    model = record_version(Registration(name, measured, origin, record), opened.ledger, now())
    close_erasures(opened, output)
    mirror_version(opened, output, model.key)
    output.answer(*describe(model, opened.state()))


def describe(model: ModelVersion, state: State) -> tuple[dict[str, Any], str]:
    """Return a version as a document and as text."""
    snapshots = [state.snapshots[identifier] for identifier in model.snapshots]
    document = {
        "name": model.key.name,
        "version": model.key.version,
        "weights_digest": model.weights.digest,
        "snapshots": list(model.snapshots),
        "view": model.view_name,
        "view_digest": model.view,
        "parents": [str(parent.model) for parent in model.parents],
        "edges": edge_documents(model.uses, model.parents),
        "contract": model.contract,
        "weights": model.weights.path,
    }
    lines = [f"{model.key}  {model.weights.digest}"]
    lines += [
        f"  made from {s.series.name}@{s.id[:12]}, {s.rows} rows, [{s.cut.since.date()}, {s.cut.until.date()})"
        for s in snapshots
    ]
    lines += edge_lines(model.uses, model.parents, state)
    lines += ["  no cut: an external base model; its gate stays shut"] if not snapshots else []
    return document, "\n".join(lines)
