"""`snapline plan` and `snapline apply`: what changed, what must be computed again, and doing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption, TargetsOption
from snapline.cli.output import Exit, Output, exit_code

if TYPE_CHECKING:
    from snapline.cli.wiring import Home
    from snapline.contracts.budget import Work
    from snapline.contracts.plan import ModelPlan, Step
    from snapline.lineage.errors import SnaplineError
    from snapline.lineage.invalidation import Cause
    from snapline.lineage.model import ModelVersion
    from snapline.lineage.series import CutOptions

DETAILS_SHOWN = 20
OnlyArgument = Annotated[str | None, typer.Argument(help="Only this model; default every live version.")]
BudgetOption = Annotated[str | None, typer.Option(help="Time to spend, such as 3600s or 2h; default no limit.")]


def plan(
    model: OnlyArgument = None,
    budget: BudgetOption = None,
    targets: TargetsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what changed since, what must be computed again and why, and at what cost. Changes nothing.

    With a budget of time, such as 3600s or 2h, also say what to do first and what no longer fits.
    """
    from snapline.cli.wiring import Home

    output = Output(as_json)
    made = make(Home.open(home), output, model, targets, budget)
    lines = [text(one, made) for one in made.plans]
    output.answer(
        {"models": [document(one, made) for one in made.plans]} | _budget_document(made),
        "\n".join([*lines, *_budget_lines(made)]) or "no model with a cut yet",
    )


def apply(
    model: OnlyArgument = None,
    budget: BudgetOption = None,
    targets: TargetsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute again what the plan says, and nothing else. The exit code is that of the worst verdict.

    With a budget, only what fits into it is done, best first.
    """
    from snapline.cli.wiring import Home

    output, opened = Output(as_json), Home.open(home)
    outcome = carry_out(opened, output, make(opened, output, model, targets, budget), targets)
    output.answer(outcome.document(), outcome.text())
    if outcome.exit is not Exit.DONE:
        raise typer.Exit(int(outcome.exit))


@dataclass(frozen=True, slots=True)
class Made:
    """The plans of some versions, and under a budget in seconds what of them to do, best first."""

    plans: tuple[ModelPlan, ...]
    budget: int | None = None
    work: tuple[Work, ...] = ()

    @property
    def todo(self) -> tuple[ModelPlan, ...]:
        """What is to be done, in order."""
        return self.plans if self.budget is None else tuple(work.plan for work in self.work if work.within_budget)

    @property
    def left(self) -> tuple[ModelPlan, ...]:
        """What the budget leaves undone: what does not fit, and what has no known cost."""
        return tuple(work.plan for work in self.work if not work.within_budget)

    def within_budget(self, step: Step) -> bool | None:
        """Return whether a step fits; None without a budget, or where its cost is not known."""
        pieces = (work for work in self.work if any(one is step for one in work.plan.steps))
        return next((work.within_budget for work in pieces), None)


@dataclass(slots=True)
class Outcome:
    """What was done about some plans, what only a person can do, what the budget left, and what failed."""

    done: list[dict[str, Any]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    beyond: list[dict[str, Any]] = field(default_factory=list)
    failed: list[tuple[str, SnaplineError]] = field(default_factory=list)

    @property
    def exit(self) -> Exit:
        """What the outcome means: the first failure, or else the worst verdict."""
        verdicts = {result.get("verdict") for result in self.done}
        if self.failed:
            return exit_code(self.failed[0][1])
        if "REFUTED" in verdicts or self.blocked:
            return Exit.NO
        return Exit.CANNOT_SAY if "UNDECIDED" in verdicts else Exit.DONE

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        failed = [{"model": m, "error": type(e).__name__, "message": e.message, "hint": e.hint} for m, e in self.failed]
        return {"done": self.done, "blocked": self.blocked, "beyond_budget": self.beyond, "failed": failed}

    def text(self) -> str:
        """Return it for people."""
        lines = [*self.told, *(f"left to you: {blocked}" for blocked in self.blocked)]
        lines += [
            f"beyond the budget: {one['step']} {one['model']} {one['target'] or ''}".rstrip() for one in self.beyond
        ]
        lines += [f"failed: {model}: {error.message}" for model, error in self.failed]
        return "\n".join(lines) or "nothing to do"


def make(home: Home, output: Output, model: str | None, targets: Path | None, budget: str | None = None) -> Made:
    """Return the plan of each live version, or of the one named, and under a budget what of them to do."""
    from snapline.contracts.budget import schedule
    from snapline.contracts.inspection import Inspector, target_now
    from snapline.contracts.plan import live, plan_model
    from snapline.lineage.errors import NotFoundError
    from snapline.lineage.observe import Depth

    seconds = None if budget is None else seconds_of("--budget", budget)
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
    return Made(tuple(plans), seconds, schedule(plans, seconds, inspector) if seconds is not None else ())


def seconds_of(option: str, text: str) -> int:
    """Return a length of time in whole seconds; at least one.

    Raises:
        DefinitionError: It is no duration, or none at all.
    """
    from pydantic import TypeAdapter, ValidationError

    from snapline.lineage.errors import DefinitionError
    from snapline.lineage.view import Duration

    try:
        seconds = int(TypeAdapter(Duration).validate_python(text).total_seconds())
    except (ValidationError, OverflowError):
        seconds = 0
    if seconds < 1:
        raise DefinitionError(
            f"{option}: expected a duration such as 3600s, 90m or 2h, found {text!r}", hint="Give a second or more."
        )
    return seconds


def carry_out(home: Home, output: Output, made: Made, targets: Path | None, *, go_on: bool = False) -> Outcome:
    """Do what is to be done, and return what became of it.

    Args:
        go_on: Whether the failure of one piece of work is noted and the next one begun, rather than raised.
    """
    from snapline.lineage.errors import SnaplineError

    outcome = Outcome(
        blocked=[f"{one.model.key}: {cause.subject}: {cause.message}" for one in made.plans for cause in one.by_hand],
        beyond=[
            {"step": step.kind.value, "model": str(one.model.key), "target": step.target}
            for one in made.left
            for step in one.steps
        ],
    )
    for one in made.todo:
        try:
            for result, told in _run(home, output, one, targets):
                output.note(told)
                outcome.done.append(result)
                outcome.told.append(told)
        except SnaplineError as error:
            if not go_on:
                raise
            output.note(f"failed: {one.model.key}: {error.message}")
            outcome.failed.append((str(one.model.key), error))
    return outcome


def _run(home: Home, output: Output, plan: ModelPlan, targets: Path | None) -> Iterator[tuple[dict[str, Any], str]]:
    """Run a plan's steps in order, and yield what each did as it is done."""
    from snapline.cli.certify import Wanted
    from snapline.cli.certify import run as certify
    from snapline.cli.materialize import run as materialize
    from snapline.contracts.plan import StepKind

    subject = plan.model
    for step in plan.steps:
        if step.kind is StepKind.MATERIALIZE:
            subject = materialize(home, output, subject.view_name or "", _same_window(home, subject), subject.contract)
            yield {"step": step.kind.value, "model": str(subject.key)}, f"materialized {subject.key}"
        else:
            issued = certify(home, output, subject, (step.target, targets), Wanted(step.contract))
            verdict = issued.certificate.verdict.value
            done = {"step": step.kind.value, "model": str(subject.key), "target": str(step.target), "verdict": verdict}
            yield done, f"{verdict}  {subject.key} for {step.target} under {step.contract}"


def _same_window(home: Home, model: ModelVersion) -> CutOptions:
    """Return the window a version was cut with; where its inputs have several, each keeps its newest.

    A window that slides is left to materializing, which moves it on.
    """
    from snapline.lineage.observe import policy_of
    from snapline.lineage.series import CutOptions

    state = home.state()
    if policy_of(model, state).slide is not None:
        return CutOptions()
    windows = {(state.snapshots[i].cut.since, state.snapshots[i].cut.until) for i in model.snapshots}
    if len(windows) != 1:
        return CutOptions()
    since, until = windows.pop()
    return CutOptions(since.isoformat(), until.isoformat())


def document(plan: ModelPlan, made: Made) -> dict[str, Any]:
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
                "within_budget": made.within_budget(step),
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


def _budget_document(made: Made) -> dict[str, Any]:
    return {
        "budget": made.budget,
        "order": [
            {
                "model": str(work.plan.model.key),
                "steps": [{"do": step.kind.value, "target": step.target} for step in work.plan.steps],
                "seconds": work.seconds,
                "changes_a_day": work.changes_a_day,
                "avoided_per_second": work.avoided_per_second,
                "within_budget": work.within_budget,
            }
            for work in made.work
        ],
    }


def _budget_lines(made: Made) -> list[str]:
    """Return the work in order, for people; nothing without a budget."""
    if made.budget is None:
        return []
    fits = {True: "within the budget", False: "beyond the budget", None: "cost unknown, not counted"}
    lines = [f"budget {made.budget} s, best first:"]
    for work in made.work:
        steps = ", ".join(
            f"{step.kind.value}{f' for {step.target}' if step.target else ''}" for step in work.plan.steps
        )
        cost = "" if work.seconds is None else f"{work.seconds} s, "
        lines.append(f"  {work.plan.model.key}: {steps} ({cost}{fits[work.within_budget]})")
    return lines if made.work else [f"budget {made.budget} s: nothing to spend it on"]


def text(plan: ModelPlan, made: Made) -> str:
    """Return a plan as a tree of causes, then what to do about them."""
    branches = [(f"{cause.subject}: {cause.message}", _shown(cause.details)) for cause in plan.causes]
    branches += [(f"do: {_step(step, made)}", []) for step in plan.steps]
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


def _step(step: Step, made: Made) -> str:
    costs = {None: "cost not known yet", 0: "no engine needs to run"}
    cost = costs.get(step.seconds, f"about {step.seconds} s last time")
    about = f" for {step.target} under {step.contract}" if step.target else f" {step.model.view_name}"
    beyond = "; beyond the budget" if made.within_budget(step) is False else ""
    return f"{step.kind.value}{about} ({cost}{beyond})"
