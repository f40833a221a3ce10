"""`snapline erase` and `snapline erasures`: take rows out of everything that is made from now on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output

if TYPE_CHECKING:
    from snapline.cli.wiring import Home
    from snapline.lineage.erasure.affected import AffectedModel, Step
    from snapline.lineage.erasure.certificate import CheckedSource
    from snapline.lineage.erasure.requests import Outcome
    from snapline.lineage.events import Erased
    from snapline.lineage.series import Desk
    from snapline.lineage.state import State


def erase(
    snapshot: Annotated[list[str], typer.Option(help="A snapshot the keys are of; may repeat.")],
    keys: Annotated[
        Path | None, typer.Option(help="A .csv or Parquet file with a column named like the snapshot's key.")
    ] = None,
    where: Annotated[str | None, typer.Option(help="SQL over the snapshot's rows; their keys are erased.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why; it is recorded as it is written.")] = None,
    keep_plain: Annotated[
        bool, typer.Option("--keep-plain", help="Store the keys themselves, not only their keyed hashes.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record that rows must be erased: no later snapshot has them, and no model made from them is served again.

    Every snapshot ever taken of each named series is searched. The request closes once every model it affects was
    retrained without the rows or retired; `snapline erasures` says what is left to do.
    """
    from snapline.cli.wiring import Home, now
    from snapline.lineage.erasure.affected import affected, refresh_steps
    from snapline.lineage.erasure.requests import Request
    from snapline.lineage.erasure.requests import erase as record
    from snapline.lineage.series import Desk

    output, opened = Output(as_json), Home.open(home)
    objects = opened.objects(opened.state().algorithm)
    request = Request(tuple(dict.fromkeys(snapshot)), keys.absolute() if keys else None, where, reason, keep_plain)
    with output.progress("erase") as on_progress:
        found = record(request, opened.ledger, Desk(objects, now(), on_progress))
    close_erasures(opened, output)
    state = opened.state()
    models = affected(found.erased, state)
    steps = refresh_steps(models, state)
    document = _document(found.erased, models, steps, state) | {
        "recorded": found.recorded,
        "absent_sample": list(found.absent),
        "searched": found.searched,
        "index": {"rows": found.rows, "bytes": found.index_bytes},
        "same_source": list(found.same_source),
    }
    output.answer(document, "\n".join(_lines(found, models, steps, state)))


def erasures(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List requests to erase: what each affects, how that was settled, what is left to do, what sources still hold."""
    from snapline.cli.wiring import Home, now
    from snapline.lineage.erasure.affected import affected, refresh_steps
    from snapline.lineage.erasure.closing import certificate_of, held_by_sources
    from snapline.lineage.series import Desk

    output, opened = Output(as_json), Home.open(home)
    state = opened.state()
    documents, lines = [], []
    with output.progress("erasures") as on_progress:
        desk = Desk(opened.objects(state.algorithm), now(), on_progress)
        for erased in sorted(state.erasures.values(), key=lambda found: (found.at, found.erasure)):
            closed = state.closed.get(erased.erasure)
            certificate = certificate_of(closed, state, desk, opened.trusted) if closed else None
            models = affected(erased, state)
            steps = refresh_steps(models, state)
            sources = held_by_sources(erased, state, desk)
            documents.append(
                _document(erased, models, steps, state)
                | {
                    "retained": [source.model_dump(mode="json") for source in sources],
                    "over_report": certificate.over_report if certificate else None,
                }
            )
            lines += [*_listed(erased, models, steps, state), *_retained(sources)]
    output.answer({"erasures": documents}, "\n".join(lines) or "nothing was ever erased here")


def close_erasures(home: Home, output: Output) -> None:
    """Close the requests that became settled, and say so."""
    from snapline.cli.wiring import now
    from snapline.lineage.erasure.closing import close_settled
    from snapline.lineage.series import Desk

    state = home.state()
    if len(state.closed) == len(state.erasures):
        return
    desk: Desk = Desk(home.objects(state.algorithm), now())
    for event in close_settled(home.ledger, home.key, desk):
        output.note(f"erasure {event.erasure[:12]} is closed; its certificate: {event.certificate}")


def _document(
    erased: Erased, models: tuple[AffectedModel, ...], steps: tuple[Step, ...], state: State
) -> dict[str, Any]:
    closed = state.closed.get(erased.erasure)
    return {
        "erasure": erased.erasure,
        "state": "closed" if closed else "open",
        "requested_at": erased.at.isoformat(),
        "reason": erased.reason,
        "series": list(erased.series),
        "keys": erased.keys,
        "absent": erased.absent,
        "snapshots": [f"{state.snapshots[found].series.name}@{found}" for found in erased.snapshots],
        "affected": [
            {
                "model": str(model.key),
                "state": model.state.value,
                "by": str(model.by) if model.by else None,
                "path": list(model.path),
                "aliases": list(model.aliases),
            }
            for model in models
        ],
        "plan": [
            {"models": [str(key) for key in step.models], "command": step.command, "why": step.why} for step in steps
        ],
        "closed_at": closed.at.isoformat() if closed else None,
        "certificate": closed.certificate if closed else None,
    }


def _lines(found: Outcome, models: tuple[AffectedModel, ...], steps: tuple[Step, ...], state: State) -> list[str]:
    lines = _listed(found.erased, models, steps, state)
    if not found.recorded:
        lines.insert(0, "the same keys were erased before; nothing was recorded")
    lines.append(
        f"  searched {found.searched} snapshots of {found.rows} rows together, by indices of {found.index_bytes} bytes"
    )
    if found.absent:
        lines.append(f"  in no snapshot: {found.erased.absent} of the keys, such as {', '.join(found.absent)}")
    if found.same_source:
        lines.append(f"  cut from the same source, and not asked about: {', '.join(found.same_source)}")
    return lines


def _listed(erased: Erased, models: tuple[AffectedModel, ...], steps: tuple[Step, ...], state: State) -> list[str]:
    closed = state.closed.get(erased.erasure)
    word = f"closed {closed.at.isoformat(timespec='seconds')}" if closed else "open"
    of = ", ".join(erased.series)
    lines = [f"erasure {erased.erasure[:12]}  {word}  {erased.keys} keys of {of}, in {len(erased.snapshots)} snapshots"]
    for model in models:
        settled = f"retrained as {model.by}" if model.by else model.state.value
        served = f"; still {', '.join(f'@{alias}' for alias in model.aliases)}" if model.aliases else ""
        lines.append(f"  {model.key}  {settled}{served}  ({', '.join(model.path)})")
    lines += [f"  -> {step.command or 'by hand'}: {step.why}" for step in steps]
    return lines


def _retained(sources: tuple[CheckedSource, ...]) -> list[str]:
    lines = []
    for source in sources:
        if source.problem:
            lines.append(f"  {source.source} cannot be looked at: {source.problem}")
        if source.held:
            older = [commit.id for commit in source.held if not commit.newest]
            if older:
                lines.append(f"  {source.source} still has them in commits that can be read: {', '.join(older)}")
            if len(older) < len(source.held):
                lines.append(f"  {source.source} still has them today; no snapshot takes them any more")
    return lines
