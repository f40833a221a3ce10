"""`snapline refresh`: what is worth refreshing under a budget, and doing what is due."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption, TargetsOption
from snapline.cli.output import Exit, Output
from snapline.cli.plan import BudgetOption
from snapline.cli.watch import PolicyOption

if TYPE_CHECKING:
    from rich.console import Console

    from snapline.cli.wiring import Home
    from snapline.lineage.refresh.policy import Estimate, RefreshPolicyDocument
    from snapline.lineage.refresh.solver import Floats, Segments

# Intervals closer than this are one interval: they differ by rounding only.
SAME_INTERVAL = 1e-9
_UNITS = (("days", 1.0), ("hours", 24.0), ("minutes", 1440.0), ("seconds", 86_400.0))

app = typer.Typer(help="What is worth refreshing, and when.", no_args_is_help=True)


@app.callback()
def refreshing() -> None:
    """What is worth refreshing, and when."""


@app.command("plan")
def plan(
    policy: Annotated[Path, typer.Argument(help="A RefreshPolicy document.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Spread a refresh budget over segments so that the least is served stale.

    The unit of time is the day: change rates in changes a day, the budget in cost a day, intervals in days. A segment
    with `snapshot` instead of `change_rate` is estimated from that series' history in the home; no other needs a home.
    """
    from snapline.lineage.documents import load
    from snapline.lineage.refresh.policy import RefreshPolicyDocument, segments_of

    asked = load(policy, RefreshPolicyDocument)
    estimated = _estimated(asked, home)
    segments = segments_of(asked, estimated)
    found = document(asked, segments, estimated)
    Output(as_json).answer(found, lambda console: _print(console, found, segments))


@app.command("run")
def run(
    budget: BudgetOption = None,
    policy: PolicyOption = None,
    targets: TargetsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute again whatever is due now, over all live versions: one round of `watch`.

    Sources are looked at row by row, and what was found is recorded. Under a refresh policy, views whose interval has
    passed are materialized first. What fails is reported, and the rest still done;
    the exit code is that of the first failure, or else of the worst verdict.
    """
    from snapline.cli.watch import Asked, alone, look_and_do
    from snapline.cli.wiring import Home

    output, opened = Output(as_json), Home.open(home)
    with alone(opened.root):
        outcome = look_and_do(opened, output, Asked(targets, budget, policy))
    output.answer(outcome.document(), outcome.text())
    if outcome.exit is not Exit.DONE:
        raise typer.Exit(int(outcome.exit))


def _estimated(policy: RefreshPolicyDocument, home: Path | None) -> dict[str, Estimate]:
    """Return the estimates a policy needs; the home is opened only when it needs any."""
    from snapline.cli.wiring import Home

    if all(segment.snapshot is None for segment in policy.segments):
        return {}
    return estimated_in(Home.open(home), policy)


def estimated_in(home: Home, policy: RefreshPolicyDocument) -> dict[str, Estimate]:
    """Return the estimates a policy needs, from a home's history."""
    from snapline.lineage.refresh.policy import estimates, polls_of

    state = home.state()
    for segment in policy.segments:
        if segment.snapshot is not None:
            state.snapshot(segment.snapshot)
    events = [record.event for record in home.ledger.entries()]
    return estimates(policy, lambda series: polls_of(series, events))


def document(policy: RefreshPolicyDocument, segments: Segments, estimated: dict[str, Estimate]) -> dict[str, Any]:
    """Return the best allocation of a policy's budget, and what two simpler ones would give, as plain JSON values."""
    from snapline.lineage.refresh.solver import exposures, optimal_rates, square_root_rates, uniform_rates

    rates = optimal_rates(segments, policy.budget)
    exposed = exposures(segments, rates)
    total = float(exposed.sum())
    uniform, square_root = (
        float(exposures(segments, rule(segments, policy.budget)).sum()) for rule in (uniform_rates, square_root_rates)
    )
    return {
        "unit": "day",
        "budget": policy.budget,
        "segments": [
            {"name": segment.name, "rate": rate, "interval": 1 / rate if rate > 0 else None, "exposure": exposure}
            for segment, rate, exposure in zip(policy.segments, rates.tolist(), exposed.tolist(), strict=True)
        ],
        "exposure": total,
        "exposure_uniform": uniform,
        "exposure_square_root": square_root,
        "saving": _saving(total, uniform),
        "saving_square_root": _saving(total, square_root),
        "equivalent_timer": _timer(rates),
        "estimated": [
            {
                "snapshot": series,
                "change_rate": told.change_rate,
                "polls": told.polls,
                "unchanged": told.unchanged,
                "mean_interval": told.mean_interval,
            }
            for series, told in estimated.items()
        ],
    }


def _saving(exposure: float, other: float) -> float:
    """Return the share of another allocation's exposure that is saved; nothing is saved where nothing goes stale."""
    # The optimum is never worse; where both are the same allocation, only their rounding differs.
    return max(0.0, 1 - exposure / other) if other > 0 else 0.0


def _timer(rates: Floats) -> float | None:
    """Return the one interval of all segments, if they have one: refreshing everything on a timer is then optimal."""
    lowest, highest = float(rates.min()), float(rates.max())
    return 1 / highest if lowest > 0 and highest - lowest <= SAME_INTERVAL * highest else None


def _print(console: Console, found: dict[str, Any], segments: Segments) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table("segment", "changes a day", "refresh every", "stale exposure", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, row in enumerate(found["segments"]):
        change = float(segments.change_rate[place])
        every = duration(row["interval"]) if row["interval"] else _never(change, float(segments.weight[place]))
        table.add_row(escape(row["name"]), f"{change:.4g}", every, f"{row['exposure']:.6g}")
    console.print(table)
    for told in found["estimated"]:
        console.print(
            f"{told['snapshot']}: {told['change_rate']:.4g} changes a day, estimated from {told['polls']} polls"
            f" about {duration(told['mean_interval'])} apart, {told['unchanged']} of them without change"
        )
    console.print(f"stale exposure {found['exposure']:.6g} at a budget of {found['budget']:g} a day")
    for name, other, saving in (
        ("one interval for all", "exposure_uniform", "saving"),
        ("the square-root law", "exposure_square_root", "saving_square_root"),
    ):
        console.print(f"  {name} gives {found[other]:.6g}; this saves {100 * found[saving]:.1f}% of it")
    if found["equivalent_timer"] is not None:
        console.print(f"equivalent to a timer of {duration(found['equivalent_timer'])}")


def _never(change_rate: float, weight: float) -> str:
    """Return why a segment is never refreshed."""
    if change_rate == 0:
        return "never: it does not change"
    return "not worth refreshing at this budget" if weight > 0 else "never: it has no weight"


def duration(days: float) -> str:
    """Return a length of time for people, to four significant digits, in the largest unit of which it has one."""
    name, per_day = next((unit for unit in _UNITS if days * unit[1] >= 1), _UNITS[-1])
    return f"{days * per_day:.4g} {name}"
