"""`snapline rollout`: take a certified version through shadow and canary to full traffic, one proven stage each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.findings import finding_lines
from snapline.cli.options import HomeOption, JsonOption, TargetOption, TargetsOption
from snapline.cli.output import Exit, Output

if TYPE_CHECKING:
    from datetime import datetime

    from snapline.cli.wiring import Home
    from snapline.contracts.rollout.stages import Advance, Course, Desk
    from snapline.contracts.verdict import Verdict
    from snapline.lineage.events import Escalated

app = typer.Typer(no_args_is_help=True, help="Take a version through the stages its contract declares.")
NameArgument = Annotated[str, typer.Argument(help="The rollout's name.")]


@app.command("start")
def start(
    name: NameArgument,
    model: Annotated[str, typer.Option(help="The version: name, name/3 or name@champion.")],
    target: TargetOption = None,
    contract: Annotated[
        str | None, typer.Option(help="A contract file or a recorded name; default the model's own.")
    ] = None,
    targets: TargetsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a rollout of a version to a target, offline. A model without a contract is bound to the one named."""
    from pydantic import ValidationError

    from snapline.cli.wiring import Home
    from snapline.contracts.records import contract_record
    from snapline.contracts.rollout import stages
    from snapline.contracts.targets import choose
    from snapline.lineage.errors import DefinitionError

    output, opened = Output(as_json), Home.open(home)
    desk = desk_of(opened)
    version = opened.resolve(model, desk.state)
    chosen, _ = choose(opened.targets(targets), target)
    wanted = contract or version.contract
    if wanted is None:
        raise DefinitionError(f"{version.key} has no contract of its own", hint="Name one with --contract.")
    record = contract_record(wanted, desk.state, desk.objects, desk.now)
    try:
        entered = stages.start(name, version, chosen, record, desk)
    except ValidationError as error:
        raise DefinitionError(
            f"rollout name {name!r}: {error.errors()[0]['msg']}", hint="Write letters, digits, '.', '_' and '-'."
        ) from error
    document = {
        "rollout": name,
        "model": str(version.key),
        "target": chosen,
        "contract": record.name,
        "stage": entered.stage,
    }
    output.answer(document, f"rollout {name}: {version.key} for {chosen} under {record.name} is offline")


@app.command("advance")
def advance(
    name: NameArgument,
    targets: TargetsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Enter the next stage, if the present one allows it. Refused unless the version's gate is open.

    Leaving shadow or canary takes a signed stage certificate, which is issued here when everything that was observed is
    CERTIFIED. Otherwise nothing is recorded: exit 1 when something is REFUTED, 3 when something is still missing.
    """
    from snapline.cli.gate import decide_now
    from snapline.cli.wiring import Home
    from snapline.contracts.rollout.stages import advance as enter
    from snapline.contracts.rollout.stages import course
    from snapline.contracts.targets import choose, identify
    from snapline.contracts.verdict import Verdict

    output, opened = Output(as_json), Home.open(home)
    desk = desk_of(opened)
    found = course(name, desk.state, desk.objects)
    target, chosen = choose(opened.targets(targets), found.rollout.now.target)
    found.require_running()
    decision = decide_now(opened, str(found.model.key), target, targets)
    advanced = enter(found, decision, identify(chosen).digest, opened.key, desk)
    document = {
        "rollout": name,
        "advanced": advanced.entered is not None,
        "stage": advanced.entered or advanced.stage,
        "left": advanced.stage if advanced.entered else None,
        "verdict": advanced.verdict.value,
        "certificate": advanced.certificate,
        "held_until": advanced.held.isoformat() if advanced.held else None,
        "findings": [finding.model_dump(mode="json") for finding in advanced.findings],
    }
    output.answer(document, "\n".join(_advanced(name, advanced)))
    if advanced.entered is None:
        held = advanced.verdict is Verdict.CERTIFIED
        raise typer.Exit(int(Exit.CANNOT_SAY if held else verdict_code(advanced.verdict)))


@app.command("status")
def status(name: NameArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show where a rollout is, what its monitor says, what is missing, what was set off, and who answers what.

    Every stage certificate the rollout rests on is verified.
    """
    from snapline.cli.wiring import Home
    from snapline.contracts.rollout.stages import course

    output, opened = Output(as_json), Home.open(home)
    desk = desk_of(opened)
    found = course(name, desk.state, desk.objects)
    certificates = _certificates(opened, found, desk)
    output.answer(_status_document(found, certificates, desk.now), "\n".join(_status(found, certificates, desk.now)))


@app.command("abort")
def abort(
    name: NameArgument,
    reason: Annotated[str | None, typer.Option(help="Why; it is recorded as it is written.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a rollout: the reference answers everything. A block it set off stays until it is started again."""
    from snapline.cli.wiring import Home
    from snapline.contracts.rollout import stages

    output, opened = Output(as_json), Home.open(home)
    ended = stages.abort(name, reason, desk_of(opened))
    document = {"rollout": name, "model": str(ended.model), "stage": None, "reason": reason}
    output.answer(document, f"rollout {name} of {ended.model} ended" + (f": {reason}" if reason else ""))


def desk_of(home: Home) -> Desk:
    """Return what moving a rollout works with, in a home as it is now."""
    from snapline.cli.wiring import now
    from snapline.contracts.rollout.stages import Desk

    state = home.state()
    return Desk(state, home.ledger, home.objects(state.algorithm), now())


def verdict_code(verdict: Verdict) -> Exit:
    """Return the exit code of a verdict."""
    from snapline.contracts.verdict import Verdict

    codes = {Verdict.CERTIFIED: Exit.DONE, Verdict.REFUTED: Exit.NO, Verdict.UNDECIDED: Exit.CANNOT_SAY}
    return codes[verdict]


def escalation_line(event: Escalated, now: datetime) -> str:
    """Return what was set off, and until when it is not set off again, for people."""
    cooling = f"; not again before {event.until.isoformat(timespec='seconds')}" if event.until > now else ""
    acts = ", ".join(event.acts)
    return (
        f"  {event.at.isoformat(timespec='seconds')}  {event.clause} on {event.slice} {event.verdict}: {acts}{cooling}"
    )


def _advanced(name: str, advanced: Advance) -> list[str]:
    if advanced.entered is not None:
        first = f"rollout {name} left {advanced.stage} and is in {advanced.entered}"
        return [first, *finding_lines(advanced.findings), f"  let in by {advanced.certificate}"]
    lines = [f"{advanced.verdict.value}  rollout {name} stays in {advanced.stage}", *finding_lines(advanced.findings)]
    if advanced.held is not None:
        lines.append(f"  an escalation holds it until {advanced.held.isoformat(timespec='seconds')}")
    return lines


def _certificates(home: Home, found: Course, desk: Desk) -> dict[str, str]:
    """Return the attestation that let a rollout into each stage it came to by one, those of stages verified.

    Raises:
        IntegrityError: One of them, or an object it binds, does not hold.
    """
    from snapline.contracts.rollout import certificate

    kinds = {attested.envelope: attested for attested in desk.state.attestations.get(found.model.key, ())}
    let_in = {}
    for entered in found.rollout.entered:
        if entered.stage is None or entered.envelope is None:
            continue
        let_in[entered.stage] = entered.envelope
        if kinds[entered.envelope].predicate_type == certificate.PREDICATE_TYPE:
            for address in certificate.read(desk.objects.read(entered.envelope), home.trusted).retained:
                desk.objects.read(address)
    return let_in


def _status_document(found: Course, certificates: dict[str, str], now: datetime) -> dict[str, Any]:
    from snapline.contracts.verdict import combine

    rollout, entered = found.rollout, found.rollout.now
    findings = found.findings(now)
    return {
        "rollout": found.name,
        "model": str(entered.model),
        "target": entered.target,
        "contract": entered.contract,
        "contract_moved": found.moved,
        "stage": entered.stage,
        "entered_at": entered.at.isoformat(),
        "reason": entered.reason,
        "stages": [stage.value for stage in found.stages.order],
        "certificates": certificates,
        "looks": len(rollout.looks),
        "requests": found.monitor.rows.num_rows,
        "verdict": combine(finding.verdict for finding in findings).value if findings else None,
        "findings": [finding.model_dump(mode="json") for finding in findings],
        "not_monitored": _unwatched(found),
        "blocked": rollout.blocked,
        "reference_slices": sorted(rollout.reference_slices),
        "escalations": [event.model_dump(mode="json") for event in rollout.escalations],
    }


def _status(found: Course, certificates: dict[str, str], now: datetime) -> list[str]:
    rollout, entered = found.rollout, found.rollout.now
    where = f"in {entered.stage}" if entered.stage else "ended"
    lines = [
        f"rollout {found.name}  {where} since {entered.at.isoformat(timespec='seconds')}"
        + (f"  ({entered.reason})" if entered.reason else ""),
        f"  {entered.model} for {entered.target} under {entered.contract}; stages {', '.join(found.stages.order)}",
        f"  {_answers(found)}",
    ]
    if found.moved:
        lines.append("  the contract was recorded anew since: abort the rollout and start it again")
    findings = found.findings(now)
    if findings:
        lines.append(
            f"  {found.monitor.rows.num_rows} requests monitored; logs read in this stage: {len(rollout.looks)}"
        )
    lines += finding_lines(findings)
    lines += [f"  not monitored: slice {name}" for name in _unwatched(found)]
    lines += [escalation_line(event, now) for event in rollout.escalations]
    if rollout.blocked:
        lines.append("  the version's gate is shut by it until the rollout is started anew")
    return lines + [f"  let into {stage} by {envelope}" for stage, envelope in certificates.items()]


def _unwatched(found: Course) -> list[str]:
    from snapline.contracts.rollout.judging import watched

    names = {part.name for part in watched(found.contract)}
    return [part.name for part in found.contract.slices if part.name not in names]


def _answers(found: Course) -> str:
    """Return who answers what, for people."""
    from snapline.contracts.figures import decimal_text
    from snapline.contracts.rollout.documents import StageName

    routed = sorted(found.rollout.reference_slices)
    share = f"a share of {decimal_text(found.promised.traffic)}" if found.promised.traffic else "all"
    match found.stage:
        case None | StageName.OFFLINE:
            return "the reference answers everything"
        case StageName.SHADOW:
            return f"the reference answers everything; {share} of the requests are copied to the serving engine"
    apart = f"; the reference answers {', '.join(routed)}" if routed else ""
    if found.rollout.blocked:
        return "blocked: the reference answers everything"
    return f"the serving engine answers {share} of the requests{apart}"
