"""Limits of the mean of figures in [0, 1], and of paired differences in [-1, 1]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from snapline.contracts.estimators.checks import Floats, checked_level, checked_values

MEAN_METHOD = "betting-mixture-v1"

_BETS = 0.5 ** np.arange(16)
_STAKES = 1 / ((np.arange(16) + 1.0) * (np.arange(16) + 2.0))
_BISECTIONS = 40


def mean_upper(values: ArrayLike, alpha: float) -> float:
    """Return the upper limit of the mean of independent values in [0, 1]; 1 for no values.

    For a candidate mean m, bet a constant share c of the wealth against it on every value: the wealth
    `prod(1 - c (x - m) / (1 - m))` has expectation at most 1 whenever the true mean is m or more (for values that are
    independent but not identically distributed too, by the inequality of the arithmetic and geometric means). So has
    the mixture over a fixed grid of c, and by Markov's inequality m may be ruled out once the mixture reaches
    `1 / alpha`. Each factor grows with m and falls with x: what is ruled out is a ray, a larger value never lowers the
    limit, and the order of the values means nothing.

    Source: constant-bet mixtures ("diversified Kelly") of Waudby-Smith and Ramdas, "Estimating means of bounded random
    variables by betting", JRSS-B 86 (2024). The grid is c = 2^-j with stake 1/((j+1)(j+2)) for j in 0..15: most on the
    full bet, which small means call for; a limit after n zeros costs `ln 2` over Clopper-Pearson's.

    Raises:
        ValueError: A value is NaN or outside [0, 1], or `alpha` is not within (0, 1).
    """
    sample = _checked(values, alpha)
    if not sample.size:
        return 1.0
    return _first_ruled_out(lambda mean: _log_wealth(sample, mean) >= -np.log(alpha), float(sample.mean()))


def mean_lower(values: ArrayLike, alpha: float) -> float:
    """Return the lower limit that mirrors `mean_upper`: 0 for no values."""
    return 1.0 - mean_upper(1.0 - _checked(values, alpha), alpha)


def mean_upper_of_zeros(n: int, alpha: float) -> float:
    """Return `mean_upper` of `n` zeros, without making them."""
    checked_level(alpha)
    if n == 0:
        return 1.0
    return _first_ruled_out(
        lambda mean: _log_mixture(n * np.log1p(_BETS * mean / (1.0 - mean))) >= -np.log(alpha), start=0.0
    )


def mean_p_value(values: ArrayLike, limit: float) -> float:
    """Return a p-value of the claim that the mean is `limit` or more: one over the wealth of the bets against it.

    Below a `limit` of 1 it is at most alpha exactly when `mean_upper` is at most `limit`. Many go to `families.holm`.

    Raises:
        ValueError: A value is NaN or outside [0, 1], or so is `limit`.
    """
    sample = checked_values(values)
    if not 0 <= limit <= 1:
        raise ValueError(f"expected a limit within 0 and 1, found {limit}")
    if limit == 1:
        return 0.0 if (sample < 1).any() else 1.0
    if not sample.size:
        return 1.0
    return float(np.exp(-max(0.0, _log_wealth(sample, limit))))


def paired_mean_upper(differences: ArrayLike, alpha: float) -> float:
    """Return the upper limit of the mean of independent paired differences in [-1, 1]; 1 for none.

    Each prompt is measured under both programs, so that what makes prompts differ cancels. It is `mean_upper` of
    (1 + d) / 2, scaled back.

    Raises:
        ValueError: A difference is NaN or outside [-1, 1], or `alpha` is not within (0, 1).
    """
    return 2.0 * mean_upper((1.0 + checked_values(differences, -1.0, 1.0)) / 2.0, alpha) - 1.0


def paired_mean_lower(differences: ArrayLike, alpha: float) -> float:
    """Return the lower limit that mirrors `paired_mean_upper`: -1 for no differences."""
    return -paired_mean_upper(-checked_values(differences, -1.0, 1.0), alpha)


def hoeffding_upper(values: ArrayLike, alpha: float) -> float:
    """Return Hoeffding's upper limit of the mean of independent values in [0, 1]: mean + sqrt(ln(1/alpha) / (2 n)).

    Source: Hoeffding, "Probability inequalities for sums of bounded random variables", JASA 58 (1963), theorem 1.

    Raises:
        ValueError: A value is NaN or outside [0, 1], or `alpha` is not within (0, 1).
    """
    sample = _checked(values, alpha)
    if not sample.size:
        return 1.0
    return min(1.0, float(sample.mean() + np.sqrt(-np.log(alpha) / (2 * sample.size))))


def empirical_bernstein_upper(values: ArrayLike, alpha: float) -> float:
    """Return the upper limit mean + sqrt(2 V ln(2/alpha) / n) + 7 ln(2/alpha) / (3 (n - 1)); 1 below two values.

    V is the sample variance with n - 1 in its denominator.

    Source: Maurer and Pontil, "Empirical Bernstein bounds and sample variance penalization", COLT (2009), theorem 4.

    Raises:
        ValueError: A value is NaN or outside [0, 1], or `alpha` is not within (0, 1).
    """
    sample = _checked(values, alpha)
    n = sample.size
    if n < 2:
        return 1.0
    log = np.log(2 / alpha)
    spread = np.sqrt(2 * sample.var(ddof=1) * log / n)
    return min(1.0, float(sample.mean() + spread + 7 * log / (3 * (n - 1))))


def _checked(values: ArrayLike, alpha: float) -> Floats:
    checked_level(alpha)
    return checked_values(values)


def _log_wealth(sample: Floats, mean: float) -> float:
    gains = (mean - sample) / (1.0 - mean)
    with np.errstate(divide="ignore"):
        return _log_mixture(np.log1p(np.multiply.outer(_BETS, gains)).sum(axis=1))


def _log_mixture(log_wealths: Floats) -> float:
    return float(np.logaddexp.reduce(np.log(_STAKES) + log_wealths))


def _first_ruled_out(ruled_out: Callable[[float], bool], start: float) -> float:
    """Return the end of the ray of ruled-out means above `start`, approached from inside the ray."""
    low, high = start, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle >= 1.0 or ruled_out(middle):
            high = middle
        else:
            low = middle
    return high
