"""`snapline plan` and `snapline apply`: what changed, what must be computed again, and doing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption, TargetsOption
from snapline.cli.output import Exit, Output

if TYPE_CHECKING:
    from snapline.cli.wiring import Home
    from snapline.contracts.plan import ModelPlan, Step
    from snapline.lineage.invalidation import Cause
    from snapline.lineage.model import ModelVersion
    from snapline.lineage.series import CutOptions

DETAILS_SHOWN = 20
OnlyArgument = Annotated[str | None, typer.Argument(help="Only this model; default every live version.")]


def plan(
    model: OnlyArgument = None,
    targets: TargetsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what changed since, what must be computed again and why, and at what cost. Changes nothing."""
    from snapline.cli.wiring import Home

    output = Output(as_json)
    plans = make(Home.open(home), output, model, targets)
    output.answer(
        {"models": [document(one) for one in plans]}, "\n".join(text(one) for one in plans) or "no model with a cut yet"
    )


def apply(
    model: OnlyArgument = None,
    targets: TargetsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute again what the plan says, and nothing else. The exit code is that of the worst verdict."""
    from snapline.cli.wiring import Home

    output, opened = Output(as_json), Home.open(home)
    plans = make(opened, output, model, targets)
    done: list[dict[str, Any]] = []
    lines: list[str] = []
    for one in plans:
        for result, told in _run(opened, output, one, targets):
            output.note(told)
            done.append(result)
            lines.append(told)
    blocked = [f"{one.model.key}: {cause.subject}: {cause.message}" for one in plans for cause in one.by_hand]
    output.answer(
        {"done": done, "blocked": blocked},
        "\n".join([*lines, *(f"left to you: {b}" for b in blocked)]) or "nothing to do",
    )
    verdicts = {result.get("verdict") for result in done}
    if "REFUTED" in verdicts or blocked:
        raise typer.Exit(int(Exit.NO))
    if "UNDECIDED" in verdicts:
        raise typer.Exit(int(Exit.CANNOT_SAY))


def make(home: Home, output: Output, model: str | None, targets: Path | None) -> tuple[ModelPlan, ...]:
    """Return the plan of each live version, or of the one named."""
    from snapline.contracts.inspection import Inspector, target_now
    from snapline.contracts.plan import live, plan_model
    from snapline.lineage.errors import NotFoundError
    from snapline.lineage.observe import Depth

    state = home.state()
    versions = live(state) if model is None else (home.resolve(model, state),)
    try:
        known = [target_now(name, target) for name, target in home.targets(targets).items()]
    except NotFoundError as error:
        output.note(f"no targets: {error.message}")
        known = []
    inspector = Inspector(state, home.lens(state), home.trusted, Depth(rows=True))
    plans = []
    with output.progress("plan") as on_progress:
        for index, version in enumerate(versions):
            on_progress(str(version.key), index, len(versions))
            plans.append(plan_model(version, known, inspector))
    return tuple(plans)


def _run(home: Home, output: Output, plan: ModelPlan, targets: Path | None) -> Iterator[tuple[dict[str, Any], str]]:
    """Run a plan's steps in order, and yield what each did as it is done."""
    from snapline.cli.certify import run as certify
    from snapline.cli.materialize import run as materialize
    from snapline.contracts.plan import StepKind

    subject = plan.model
    for step in plan.steps:
        if step.kind is StepKind.MATERIALIZE:
            subject = materialize(home, output, subject.view_name or "", _same_window(home, subject), subject.contract)
            yield {"step": step.kind.value, "model": str(subject.key)}, f"materialized {subject.key}"
        else:
            issued = certify(home, output, subject, (step.target, targets), step.contract)
            verdict = issued.certificate.verdict.value
            done = {"step": step.kind.value, "model": str(subject.key), "target": str(step.target), "verdict": verdict}
            yield done, f"{verdict}  {subject.key} for {step.target} under {step.contract}"


def _same_window(home: Home, model: ModelVersion) -> CutOptions:
    """Return the window a version was cut with; where its inputs have several, each keeps its newest."""
    from snapline.lineage.series import CutOptions

    state = home.state()
    windows = {(state.snapshots[i].cut.since, state.snapshots[i].cut.until) for i in model.snapshots}
    if len(windows) != 1:
        return CutOptions()
    since, until = windows.pop()
    return CutOptions(since.isoformat(), until.isoformat())


def document(plan: ModelPlan) -> dict[str, Any]:
    """Return a plan as plain JSON values."""
    return {
        "model": plan.model.key.name,
        "version": plan.model.key.version,
        "causes": [_cause(cause) for cause in plan.causes],
        "steps": [
            {
                "do": step.kind.value,
                "target": step.target,
                "contract": step.contract,
                "seconds": step.seconds,
                "because": [cause.message for cause in step.causes],
            }
            for step in plan.steps
        ],
        "by_hand": [_cause(cause) for cause in plan.by_hand],
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "kind": cause.change.value,
        "subject": cause.subject,
        "message": cause.message,
        "details": list(cause.details),
    }


def text(plan: ModelPlan) -> str:
    """Return a plan as a tree of causes, then what to do about them."""
    branches = [(f"{cause.subject}: {cause.message}", _shown(cause.details)) for cause in plan.causes]
    branches += [(f"do: {_step(step)}", []) for step in plan.steps]
    branches += [(f"left to you: {cause.subject}: {cause.change.value}", []) for cause in plan.by_hand]
    if not plan.steps and not plan.by_hand:
        branches.append(("nothing to do", []))
    lines = [str(plan.model.key)]
    for place, (branch, leaves) in enumerate(branches, start=1):
        last = place == len(branches)
        lines.append(f"{'└─' if last else '├─'} {branch}")
        lines += [f"{'   ' if last else '│  '}{'└─' if leaf is leaves[-1] else '├─'} {leaf}" for leaf in leaves]
    return "\n".join(lines)


def _shown(details: Sequence[str]) -> list[str]:
    more = len(details) - DETAILS_SHOWN
    return [*details[:DETAILS_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _step(step: Step) -> str:
    costs = {None: "cost not known yet", 0: "no engine needs to run"}
    cost = costs.get(step.seconds, f"about {step.seconds} s last time")
    about = f" for {step.target} under {step.contract}" if step.target else f" {step.model.view_name}"
    return f"{step.kind.value}{about} ({cost})"
