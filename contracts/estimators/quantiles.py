"""Exact limits of a quantile, from order statistics."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import ArrayLike

from snapline.contracts.estimators.checks import checked_level, checked_values

QUANTILE_METHOD = "order-statistic"


def quantile_upper(values: ArrayLike, q: float, alpha: float) -> float:
    """Return the upper limit of the `q` quantile of independent values; infinite when there are too few to have one.

    The quantile is the smallest x with P(X <= x) >= q; of n values, those below it number at most a Binomial(n, q). The
    limit is the smallest order statistic X_(j) with P(Binomial(n, q) >= j) <= alpha, for any distribution, with ties
    too. The largest value is a limit only once q^n <= alpha: 299 values for q = .99 at 95%.

    Source: the order-statistic interval of David and Nagaraja, "Order Statistics", section 7.1 (2003).

    Raises:
        ValueError: A value is NaN, or `q` or `alpha` is not within (0, 1). Infinite values are taken as they are.
    """
    from scipy.special import bdtrc

    sample = _checked(values, q, alpha)
    n = len(sample)
    rank = bisect_left(range(n), True, key=lambda below: bool(bdtrc(below, n, q) <= alpha))
    return float(np.partition(sample, rank)[rank]) if rank < n else np.inf


def quantile_lower(values: ArrayLike, q: float, alpha: float) -> float:
    """Return the lower limit: the largest X_(j) with P(Binomial(n, q) < j) <= alpha; minus infinity without one."""
    from scipy.special import bdtr

    sample = _checked(values, q, alpha)
    n = len(sample)
    ranks = bisect_left(range(n), True, key=lambda below: bool(bdtr(below, n, q) > alpha))
    return float(np.partition(sample, ranks - 1)[ranks - 1]) if ranks else -np.inf


def _checked(values: ArrayLike, q: float, alpha: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    checked_level(alpha)
    if not 0 < q < 1:
        raise ValueError(f"expected a quantile within 0 and 1, found {q}")
    return checked_values(values, -np.inf, np.inf)
