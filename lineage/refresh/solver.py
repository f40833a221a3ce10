"""How often to refresh each segment of a training population, when refreshing costs.

A segment's source changes at random at a steady rate, a Poisson process. Refreshed at a steady rate of its own, it is
stale for a share of the time; its weight times that share is its stale exposure. The allocation that makes the sum
smallest under a budget was derived by A. Rajula (arXiv 2610.09519); what is solved here is the whole system of
optimality conditions, for a segment that changes too fast for its weight is best not refreshed at all.

With w the weight, l the change rate, c the cost, x the refresh rate and u = l / x:

    exposure      E = w (1 - (1 - e^-u) / u), and w at x = 0
    budget        sum of c x
    optimality    w / (l c) * (1 - e^-u (1 + u)) = m where x > 0, and w / (l c) <= m where x = 0

1 - e^-u (1 + u) is the regularized lower incomplete gamma function P(2, u), so SciPy inverts it. Every figure must be 0
or between 1e-30 and 1e30, in one unit of time; nothing over- or underflows there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SERIES_TERMS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """What is known of each segment; arrays of one shape (n,).

    Attributes:
        weight: What being stale all the time would cost; 0 or more.
        change_rate: Changes of its source per unit of time; 0 or more.
        cost: What one refresh takes of the budget; more than 0.
    """

    weight: Floats
    change_rate: Floats
    cost: Floats

    @property
    def worth_refreshing(self) -> NDArray[np.bool_]:
        """Whether a refresh can ever do any good: the segment matters and changes."""
        found: NDArray[np.bool_] = (self.weight > 0) & (self.change_rate > 0)
        return found


def optimal_rates(segments: Segments, budget: float) -> Floats:
    """Return the refresh rates (n,) of least total exposure that spend `budget` per unit of time.

    A rate of 0 means that the segment is not worth refreshing at this budget. The multiplier m is found on a log
    scale. A rate falls to 0 so steeply as m nears a segment's limit that no float lies between; the allocations at both
    neighbouring multipliers are then as good as each other, and mixing them spends the budget exactly.
    """
    rates = np.zeros(len(segments.weight))
    good = segments.worth_refreshing
    if not good.any():
        return rates
    change, cost = segments.change_rate[good], segments.cost[good]
    limit = segments.weight[good] / (change * cost)
    share = limit / limit.max()

    def at(level: float) -> Floats:
        return _rates_at(level, change, share)

    def spent(level: float) -> float:
        return float(cost @ at(level))

    # P(2, u) < u^2 / 2, so no rate exceeds what the square-root law gives at the same multiplier.
    highest = min(1.0, float(cost @ (change * np.sqrt(share))) ** 2 / 2 / budget**2)
    low, high = _neighbours(spent, budget, highest)
    frugal, lavish = at(high), at(low)
    rest, more = budget - float(cost @ frugal), float(cost @ (lavish - frugal))
    rates[good] = frugal + (lavish - frugal) * (rest / more if more > 0 else 0.0)
    return rates


def _rates_at(level: float, change: Floats, share: Floats) -> Floats:
    """Return the rates at a multiplier, given as its ratio to the largest one at which anything is refreshed."""
    from scipy.special import gammaincinv

    rates = np.zeros(len(change))
    inside = level < share
    rates[inside] = change[inside] / gammaincinv(2.0, level / share[inside])
    return rates


def _neighbours(spent: Callable[[float], float], budget: float, highest: float) -> tuple[float, float]:
    """Return two levels as close as floats tell apart: at the lower one no less than `budget` is spent, at the higher
    one no more. `highest` is a level at which no more is spent.
    """
    from scipy.optimize import brentq

    def excess(logarithm: float) -> float:
        return math.log(max(spent(math.exp(logarithm)) / budget, 1e-300))

    top = bottom = math.log(highest)
    while excess(bottom) < 0:
        bottom -= 3.0
    root = top if bottom == top else float(brentq(excess, bottom, top, xtol=1e-15, rtol=1e-15))
    step = 4 * np.finfo(float).eps * max(1.0, abs(root))
    low, high = root - step, min(root + step, 0.0)
    while excess(low) < 0:
        low -= step
        step *= 2
    while high < 0 and excess(high) > 0:
        high = min(high + step, 0.0)
        step *= 2
    return math.exp(low), math.exp(high)


def uniform_rates(segments: Segments, budget: float) -> Floats:
    """Return one rate for all segments that spends the budget: what refreshing everything at one interval does."""
    return np.full(len(segments.weight), budget / segments.cost.sum())


def square_root_rates(segments: Segments, budget: float) -> Floats:
    """Return rates proportional to sqrt(w l / c) that spend the budget: the optimum's limit for a large budget.

    Elsewhere it can be worse than one rate for all; it is here to be compared with.
    """
    root = np.sqrt(segments.weight * segments.change_rate / segments.cost)
    total = float(segments.cost @ root)
    return root * (budget / total) if total > 0 else root


def exposures(segments: Segments, rates: Floats) -> Floats:
    """Return the stale exposure (n,) of each segment at its rate."""
    changes = _changes_between(segments, rates)
    found: Floats = segments.weight * stale_share(changes)
    return found


def stale_share(changes: Floats) -> Floats:
    """Return the share of time that is stale with `changes` expected between refreshes: 1 - (1 - e^-u) / u."""
    small = np.minimum(changes, 0.5)
    # The closed form loses its digits where u is small; there, sum (-1)^(k+1) u^k / (k+1)!.
    series = np.zeros_like(small)
    for k in range(_SERIES_TERMS, 0, -1):
        series = small * (1 / math.factorial(k + 1) - series)
    large = np.maximum(changes, 0.5)
    return np.where(changes < 0.5, series, 1 + np.expm1(-large) / large)


def avoided_per_cost(segments: Segments, rates: Floats) -> Floats:
    """Return how much exposure each segment's refreshes avoid per unit of the budget they take (n,).

    That is w / (l c) * (1 - e^-u); where the rate is 0, what the first refreshes would avoid. A segment that never
    changes gives 0.
    """
    changes = _changes_between(segments, rates)
    worth = np.zeros(len(segments.weight))
    good = segments.worth_refreshing
    worth[good] = segments.weight[good] / (segments.change_rate[good] * segments.cost[good])
    avoided: Floats = worth * -np.expm1(-changes)
    return avoided


def _changes_between(segments: Segments, rates: Floats) -> Floats:
    """Return the changes expected between two refreshes; infinite where a changing segment is never refreshed."""
    never = np.where(segments.change_rate > 0, np.inf, 0.0)
    changes: Floats = np.divide(segments.change_rate, rates, out=never, where=rates > 0)
    return changes


def estimated_rate(polls: int, unchanged: int, mean_interval: float) -> float:
    """Return the change rate that polls tell, per unit of time of `mean_interval`.

    A poll sees whether anything changed since the one before, not how often, so the share of polls with a change is too
    small an estimate. This one removes that bias but for small samples: -ln((z + 1/2) / (n + 1/2)) / I, after
    J. Cho and H. Garcia-Molina, "Estimating frequency of change" (2003).
    """
    return -math.log((unchanged + 0.5) / (polls + 0.5)) / mean_interval
