"""Many limits at once: one error probability for all of them together, however they depend on each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from snapline.contracts.estimators.checks import Floats, checked_level, checked_values


def bonferroni(weights: ArrayLike, alpha: float) -> Floats:
    """Return each limit's share of `alpha`, in proportion to its weight; one weight each splits it evenly.

    Raises:
        ValueError: There is no weight, one is not positive and finite, or `alpha` is not within (0, 1).
    """
    checked_level(alpha)
    shares = np.asarray(weights, dtype=np.float64).ravel()
    if not shares.size or not ((shares > 0) & (shares < np.inf)).all():
        raise ValueError("expected positive weights, found none or one that is not")
    return np.asarray(alpha * (shares / shares.sum()))


def holm(p_values: ArrayLike, alpha: float) -> NDArray[np.bool_]:
    """Return which hypotheses are rejected when the chance of any false rejection is at most `alpha`.

    In ascending order the i-th of m p-values must be at most alpha / (m - i + 1), and the first that is not keeps all
    that follow. A clause is certified when the hypothesis that it is violated is rejected.

    Source: Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979).

    Raises:
        ValueError: A p-value is NaN or outside [0, 1], or `alpha` is not within (0, 1).
    """
    checked_level(alpha)
    p = checked_values(p_values)
    order = np.argsort(p, kind="stable")
    rejected = np.zeros(len(p), dtype=np.bool_)
    rejected[order] = np.logical_and.accumulate(p[order] <= alpha / np.arange(len(p), 0, -1))
    return rejected
