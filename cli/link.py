"""`snapline link`: record what else a version came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.options import HomeOption, JsonOption, ModelArgument
from snapline.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snapline.lineage.model import Parent, Use
    from snapline.lineage.state import State

EdgeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--edge",
        metavar="KIND=REFERENCE",
        help="trained_on, evaluated_on or calibrated_on a snapshot; fine_tuned_from, distilled_from, adapter_of, "
        "merged_from or quantized_from a model; may repeat.",
    ),
]


def link(model: ModelArgument, edge: EdgeOption = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Record edges from a version to snapshots it used and to versions it came from; twice records nothing."""
    from snapline.cli.mirror import mirror_version
    from snapline.cli.wiring import Home, now
    from snapline.lineage.errors import DefinitionError
    from snapline.lineage.link import KINDS
    from snapline.lineage.link import link as record
    from snapline.lineage.model import parse_reference

    if not edge:
        raise DefinitionError("expected an --edge KIND=REFERENCE", hint=f"KIND is one of {', '.join(KINDS)}.")
    opened, output = Home.open(home), Output(as_json)
    linked, added = record(parse_reference(model), edge, opened.ledger, now())
    if added.uses or added.parents:
        mirror_version(opened, output, linked.key)
    state = opened.state()
    document = {
        "name": linked.key.name,
        "version": linked.key.version,
        "added": edge_documents(added.uses, added.parents),
        "edges": edge_documents(linked.uses, linked.parents),
    }
    lines = edge_lines(added.uses, added.parents, state)
    text = "\n".join([str(linked.key), *lines] if lines else [f"{linked.key}: every edge was recorded already"])
    output.answer(document, text)


def edge_documents(uses: Sequence[Use], parents: Sequence[Parent]) -> list[dict[str, str]]:
    """Return edges as plain JSON values, with the ids that `snapline lineage` gives."""
    return [
        *({"kind": use.kind.value, "to": f"snapshot:{use.snapshot}"} for use in uses),
        *({"kind": parent.kind.value, "to": f"model:{parent.model}"} for parent in parents),
    ]


def edge_lines(uses: Sequence[Use], parents: Sequence[Parent], state: State) -> list[str]:
    """Return edges as text, one line each."""
    used = [(use.kind, state.snapshots[use.snapshot]) for use in uses]
    found = [
        *((kind.value, f"{snapshot.series.name}@{snapshot.id[:12]}") for kind, snapshot in used),
        *((parent.kind.value, str(parent.model)) for parent in parents),
    ]
    return [f"  {kind.replace('_', ' ')} {what}" for kind, what in found]
