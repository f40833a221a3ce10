"""How many prompts a limit needs."""

from __future__ import annotations

import math
from collections.abc import Callable

from snapline.contracts.estimators.checks import checked_level
from snapline.contracts.estimators.means import mean_upper_of_zeros
from snapline.contracts.estimators.rates import rate_upper

_MOST_PROMPTS = 10**12


def prompts_needed(best_upper: Callable[[int], float], limit: float) -> int | None:
    """Return the smallest n whose best possible upper limit is at or under `limit`; None if a trillion is too few.

    Args:
        best_upper: The smallest upper limit any n prompts could give; it falls to 0 as n grows.
        limit: What it must reach.
    """
    enough = 1
    while not best_upper(enough) <= limit:
        enough *= 2
        if enough > _MOST_PROMPTS:
            return None
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        too_few, enough = (too_few, middle) if best_upper(middle) <= limit else (middle, enough)
    return enough


def rate_prompts(limit: float, alpha: float, events: int = 0) -> int | None:
    """Return how many prompts bring `rate_upper` to `limit` with that many events; None if a trillion is too few."""
    return prompts_needed(lambda n: rate_upper(min(events, n), n, alpha), limit)


def mean_prompts(limit: float, alpha: float) -> int | None:
    """Return how many prompts bring `mean_upper` to `limit` when all are 0, the best case; None as above."""
    return prompts_needed(lambda n: mean_upper_of_zeros(n, alpha), limit)


def quantile_prompts(q: float, alpha: float) -> int:
    """Return how many prompts give `quantile_upper` a limit at all: the smallest n with q^n <= alpha.

    Raises:
        ValueError: `q` or `alpha` is not within (0, 1).
    """
    checked_level(alpha)
    if not 0 < q < 1:
        raise ValueError(f"expected a quantile within 0 and 1, found {q}")
    return math.ceil(math.log(alpha) / math.log(q))


def hoeffding_prompts(margin: float, alpha: float) -> int:
    """Return how many prompts `hoeffding_upper` needs to come within `margin` of the sample mean, whatever they give.

    ln(1/alpha) / (2 margin^2): 600 prompts for .05, 14,979 for .01 at 95%. Other estimators need fewer.

    Raises:
        ValueError: `margin` is not positive, or `alpha` not within (0, 1).
    """
    checked_level(alpha)
    if not 0 < margin < math.inf:
        raise ValueError(f"expected a positive margin, found {margin}")
    return math.ceil(-math.log(alpha) / (2 * margin**2))
