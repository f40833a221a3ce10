"""`snapline lineage` and `snapline log`: where a model came from, and what happened in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.options import HomeOption, JsonOption, ModelArgument
from snapline.cli.output import Output

if TYPE_CHECKING:
    from snapline.lineage.events import LineageEvent


def lineage(
    model: ModelArgument,
    form: Annotated[str, typer.Option("--format", help="text, json or mermaid.")] = "text",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the graph of everything a model was made from."""
    from snapline.cli.wiring import Home
    from snapline.lineage import graph
    from snapline.lineage.errors import DefinitionError

    if form not in ("text", "json", "mermaid"):
        raise DefinitionError(f"expected the format text, json or mermaid, found {form!r}")
    opened = Home.open(home)
    state = opened.state()
    version = opened.resolve(model, state)
    ancestry = graph.ancestry(version, state)
    text = graph.mermaid(ancestry) if form == "mermaid" else graph.tree(ancestry, version.key)
    Output(as_json or form == "json").answer(graph.document(ancestry), text)


def log(
    limit: Annotated[int, typer.Option(min=1, help="How many of the newest entries to show.")] = 50,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the hash-chained history, newest last."""
    from snapline.cli.wiring import Home
    from snapline.lineage.digest import short

    entries = Home.open(home).ledger.entries()
    shown = entries[-limit:]
    document = {
        "length": len(entries),
        "head": entries[-1].digest if entries else None,
        "entries": [
            {"seq": entry.seq, "digest": entry.digest, "event": entry.event.model_dump(mode="json")} for entry in shown
        ],
    }
    lines = [f"{entry.seq:>5}  {short(entry.digest)}  {_when(entry.event)}  {_what(entry.event)}" for entry in shown]
    Output(as_json).answer(document, "\n".join(lines))


def _when(event: LineageEvent) -> str:
    return event.at.strftime("%Y-%m-%d %H:%M:%SZ")


def _what(event: LineageEvent) -> str:
    from snapline.lineage.digest import short

    match event.kind:
        case "snapshot-taken":
            subject = f"{event.snapshot.series.name}@{event.snapshot.id[:12]}  {event.snapshot.rows} rows"
        case "source-compared":
            delta = event.comparison.delta_rows
            subject = (
                f"{event.snapshot[:12]}  {f'{delta} rows differ' if event.comparison.restated else 'cut unchanged'}"
            )
        case "view-defined":
            subject = f"{event.view.definition.name}  {short(event.view.digest)}"
        case "model-registered":
            subject = f"{event.model.key}  {short(event.model.weights.digest)}"
        case "contract-bound":
            subject = f"{event.model}  {event.contract}"
        case "recorded":
            subject = f"{event.what} {event.name}  {short(event.digest)}"
        case "attested":
            subject = f"{event.model}  {short(event.envelope)}"
        case "promoted":
            subject = f"{event.model} holds {event.alias}" + ("  (rolled back)" if event.rollback else "")
        case "initialized":
            subject = event.algorithm.value
    return f"{event.kind:<17} {subject}"
