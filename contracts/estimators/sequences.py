"""Limits of a mean that hold at every look, for monitors that peek."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from snapline.contracts.estimators.checks import Floats, checked_level, checked_values

SEQUENCE_METHOD = "predictable-empirical-bernstein-v1"

_LARGEST_BET = 0.9  # close to 1, for the small means that contracts promise


def mean_sequence(values: ArrayLike, alpha: float) -> Floats:
    """Return the running upper limit of the mean after each value, all valid at once.

    With probability at least 1 - alpha the mean is at or under every one of them, so one may stop at any look that is
    low enough. The values, in the order they came, lie in [0, 1], and each has the same expectation given those before
    it; a mean that drifts is another mean. With bets l_i and guesses g_i of the next value, both made from the values
    before it, the limit after t values is the smallest yet of

        (sum l_i x_i + ln(1/alpha) + sum (x_i - g_i)^2 (-ln(1 - l_i) - l_i)) / sum l_i.

    Source: the predictable plug-in empirical Bernstein sequence of Waudby-Smith and Ramdas, "Estimating means of
    bounded random variables by betting", JRSS-B 86 (2024), theorem 2, one-sided; its bets are capped at 0.9 and its
    limits intersected.

    Returns:
        Shape (values,): it never rises.

    Raises:
        ValueError: A value is NaN or outside [0, 1], or `alpha` is not within (0, 1).
    """
    checked_level(alpha)
    x = checked_values(values)
    count = np.arange(1, len(x) + 1)
    means = (0.5 + np.cumsum(x)) / (count + 1)
    variances = (0.25 + np.cumsum((x - means) ** 2)) / (count + 1)
    guesses, spreads = np.append(0.5, means)[:-1], np.append(0.25, variances)[:-1]
    bets = np.minimum(_LARGEST_BET, np.sqrt(-2 * np.log(alpha) / (spreads * count * np.log1p(count))))
    paid = np.cumsum((x - guesses) ** 2 * (-np.log1p(-bets) - bets)) - np.log(alpha)
    limits = (np.cumsum(bets * x) + paid) / np.cumsum(bets)
    return np.asarray(np.minimum.accumulate(np.minimum(limits, 1.0)))


def mean_sequence_lower(values: ArrayLike, alpha: float) -> Floats:
    """Return the running lower limit that mirrors `mean_sequence`: it never falls, and convicts at any look."""
    return 1.0 - mean_sequence(1.0 - checked_values(values), alpha)
