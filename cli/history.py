"""`snapline lineage` and `snapline log`: where a model came from, and what happened in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.options import HomeOption, JsonOption, ModelArgument
from snapline.cli.output import Output
from snapline.cli.past import AtEntryOption, AtOption, past

if TYPE_CHECKING:
    from snapline.lineage.events import LineageEvent

FORMATS = ("text", "json", "mermaid", "dot", "svg", "html")


def lineage(
    model: ModelArgument,
    form: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "text",
    at: AtOption = None,
    at_entry: AtEntryOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the graph of everything a model was made from; a picture goes to standard output."""
    from snapline.cli.wiring import Home
    from snapline.lineage import graph
    from snapline.lineage.errors import DefinitionError
    from snapline.lineage.pictures import drawing

    if form not in FORMATS:
        raise DefinitionError(
            f"expected the format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, found {form!r}", hint="Name one of them."
        )
    opened, output = Home.open(home), Output(as_json or form == "json")
    then = past(opened, at, at_entry, output)
    version = opened.resolve(model, then.state)
    ancestry = graph.ancestry(version, then.state)
    document = graph.document(ancestry) | {"model": str(version.key), "at_entry": then.entry, "entries": then.of}
    title, note = f"Lineage of {version.key}", f"As of entry {then.entry} of {then.of}."
    match form:
        case "mermaid":
            text = drawing.mermaid(ancestry)
        case "dot":
            text = drawing.dot(ancestry)
        case "svg":
            text = drawing.svg(ancestry, title)
        case "html":
            text = drawing.html(ancestry, title, note)
        case _:
            text = graph.tree(ancestry, version.key)
    output.answer(document, text)


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
    return f"{event.kind:<17} {_about(event)}"


def _about(event: LineageEvent) -> str:  # noqa: PLR0911, PLR0912 - one return per kind of event
    """Return what an event is about, in a few words."""
    from snapline.lineage.digest import short

    match event.kind:
        case "snapshot-taken":
            return f"{event.snapshot.series.name}@{event.snapshot.id[:12]}  {event.snapshot.rows} rows"
        case "source-compared":
            delta = event.comparison.delta_rows
            return f"{event.snapshot[:12]}  {f'{delta} rows differ' if event.comparison.restated else 'cut unchanged'}"
        case "view-defined":
            return f"{event.view.definition.name}  {short(event.view.digest)}"
        case "model-registered":
            return f"{event.model.key}  {short(event.model.weights.digest)}"
        case "contract-bound":
            return f"{event.model}  {event.contract}"
        case "recorded":
            return f"{event.what} {event.name}  {short(event.digest)}"
        case "attested":
            return f"{event.model}  {short(event.envelope)}"
        case "promoted":
            return f"{event.model} holds {event.alias}" + ("  (rolled back)" if event.rollback else "")
        case "initialized":
            return event.algorithm.value
        case "linked":
            edges = [*(f"{use.kind} {use.snapshot[:12]}" for use in event.uses)]
            edges += [f"{parent.kind} {parent.model}" for parent in event.parents]
            return f"{event.model} {', '.join(edges)}"
        case "leakage-checked":
            return f"{event.model}  {'leaked' if event.leaked else 'clean'}, {len(event.findings)} rules"
        case "erased":
            return f"{event.erasure[:12]}  {event.keys} keys of {', '.join(event.series)}"
        case "erasure-closed":
            return f"{event.erasure[:12]}  {short(event.certificate)}"
        case "retired":
            return f"{event.model}" + (f"  {event.reason}" if event.reason else "")
        case "stage-entered":
            where = f"is in {event.stage} for {event.target}" if event.stage else "ended"
            return f"{event.rollout} of {event.model} {where}" + (f"  {event.reason}" if event.reason else "")
        case "observed":
            return f"{event.rollout} in {event.stage}  {event.requests} new requests"
        case "escalated":
            return f"{event.rollout}  {event.clause} on {event.slice} {event.verdict}: {', '.join(event.acts)}"
