"""`snapline observe`: hold what was served against the contract's promises, and act when one is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from snapline.cli.findings import finding_lines
from snapline.cli.options import HomeOption, JsonOption, TargetsOption
from snapline.cli.output import Output
from snapline.cli.rollout import NameArgument, desk_of, escalation_line, verdict_code

if TYPE_CHECKING:
    from snapline.contracts.rollout.look import Look
    from snapline.contracts.rollout.stages import Course
    from snapline.lineage.events import Escalated

WEBHOOK_SECONDS = 10.0


def observe(
    name: NameArgument,
    log: Annotated[Path, typer.Option(help="The serving log: .jsonl, .parquet or .arrow.")],
    served: Annotated[
        int | None,
        typer.Option(min=1, help="How many requests the engines answered in the log's time, by their own count."),
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(envvar="SNAPLINE_WEBHOOK", help="Where alerts are posted, as JSON.")
    ] = None,
    targets: TargetsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read a serving log into a rollout's monitor, judge it, and do what the contract declares for a violation.

    Requests that were counted before are not counted again, so the same growing file may be given at every look. Look
    as often as you like: the limits hold at all looks together. Exit 0 when everything is CERTIFIED, 1 when something
    is REFUTED, 3 when something is still UNDECIDED.
    """
    from snapline.cli.certify import WorkerEngines
    from snapline.cli.wiring import Home
    from snapline.contracts.inspection import Inspector
    from snapline.contracts.rollout.look import Bench
    from snapline.contracts.rollout.look import observe as look_at
    from snapline.contracts.rollout.stages import course
    from snapline.contracts.targets import choose
    from snapline.lineage.observe import Depth

    output, opened = Output(as_json), Home.open(home)
    _require_webhook(webhook)
    desk = desk_of(opened)
    found = course(name, desk.state, desk.objects)
    _, target = choose(opened.targets(targets), found.rollout.now.target)
    inspector = Inspector(desk.state, opened.lens(desk.state), opened.trusted, Depth())
    with output.progress(f"observe {name}") as on_progress:
        bench = Bench(desk, inspector, target, WorkerEngines(opened), on_progress)
        look = look_at(found, log, served, bench)
    alerts = _alert(found, look, webhook, output)
    output.answer(_document(found, look, alerts), _text(found, look))
    raise typer.Exit(int(verdict_code(look.verdict)))


def _require_webhook(webhook: str | None) -> None:
    """Raise unless alerts can be posted there; the address may hold a secret, so it is not repeated.

    Raises:
        DefinitionError: It is no address of a web server.
    """
    from snapline.lineage.errors import DefinitionError

    if webhook is not None and (urlsplit(webhook).scheme not in {"http", "https"} or not urlsplit(webhook).hostname):
        raise DefinitionError("--webhook: expected an address that begins http:// or https://", hint="Check it.")


def _alert(found: Course, look: Look, webhook: str | None, output: Output) -> list[dict[str, Any]]:
    """Post every alert of a look, and return what became of each. One that cannot be posted is told and not lost:
    the event it is about is in the ledger.
    """
    from snapline.contracts.rollout.documents import Act
    from snapline.contracts.rollout.escalate import alert
    from snapline.lineage.events import Escalated

    sent = []
    for event in look.events:
        if isinstance(event, Escalated) and Act.ALERT in event.acts:
            problem = _post(webhook, alert(event, found.rollout)) if webhook else "there is no webhook; give --webhook"
            if problem:
                output.note(f"warning: not alerted of {event.clause} on {event.slice}: {problem}")
            sent.append(
                {"clause": event.clause, "slice": event.slice, "posted": not problem, "problem": problem or None}
            )
    return sent


def _post(webhook: str, message: Any) -> str:
    """Post a message and return what kept it from arriving; nothing when it did."""
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    host = urlsplit(webhook).hostname
    request = Request(webhook, json.dumps(message).encode(), {"Content-Type": "application/json"}, method="POST")
    try:
        with urlopen(request, timeout=WEBHOOK_SECONDS):
            return ""
    except (OSError, HTTPException, ValueError) as error:
        return f"{host} did not take it: {error}"


def _document(found: Course, look: Look, alerts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "rollout": found.name,
        "stage": look.stage,
        "stage_now": _stage_now(look),
        "verdict": look.verdict.value,
        "log": look.log,
        "logged": look.logged,
        "counted": look.counted,
        "rescored": look.rescored,
        "passed_over": dict(look.passed_over),
        "findings": [finding.model_dump(mode="json") for finding in look.findings],
        "escalations": [event.model_dump(mode="json") for event in _set_off(look)],
        "alerts": alerts,
    }


def _text(found: Course, look: Look) -> str:
    scored = f", {look.rescored} of them scored again by the reference" if look.rescored else ""
    lines = [
        f"{look.verdict.value}  rollout {found.name} in {look.stage}",
        f"  {look.logged} requests logged, {look.counted} counted{scored}",
    ]
    lines += [f"  {count} passed over: {why}" for why, count in sorted(look.passed_over.items())]
    lines += finding_lines(look.findings)
    lines += [escalation_line(event, event.at) for event in _set_off(look)]
    now = _stage_now(look)
    return "\n".join(lines + ([f"  went back to {now}"] if now != look.stage else []))


def _set_off(look: Look) -> list[Escalated]:
    from snapline.lineage.events import Escalated

    return [event for event in look.events if isinstance(event, Escalated)]


def _stage_now(look: Look) -> str:
    from snapline.lineage.events import StageEntered

    return next((str(event.stage) for event in look.events if isinstance(event, StageEntered)), str(look.stage))
