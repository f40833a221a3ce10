"""Confidence limits from finitely many prompts, with no assumption about how their figures are distributed.

The prompt is the unit of independence: a caller hands over one number per prompt. Every limit here is one-sided and
non-asymptotic: it holds with probability at least `1 - alpha` at every sample size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

RATE_METHOD = "clopper-pearson"
MEAN_METHOD = "betting-mixture-v1"

_BETS = 0.5 ** np.arange(16)
_STAKES = 1 / ((np.arange(16) + 1.0) * (np.arange(16) + 2.0))
_BISECTIONS = 40
_MOST_PROMPTS = 10**12


def rate_upper(events: int, n: int, alpha: float) -> float:
    """Return the upper limit of an event's probability after `events` in `n` independent trials; 1 for none at all.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika 26 (1934). After no event it is `1 - alpha ** (1 / n)`.

    Raises:
        ValueError: `events` is not within 0 and `n`, or `alpha` not within (0, 1).
    """
    from scipy.special import betainccinv

    _check_counts(events, n, alpha)
    return 1.0 if events == n else float(betainccinv(events + 1, n - events, alpha))


def rate_lower(events: int, n: int, alpha: float) -> float:
    """Return the lower limit that mirrors `rate_upper`: 0 after no event."""
    from scipy.special import betaincinv

    _check_counts(events, n, alpha)
    return 0.0 if events == 0 else float(betaincinv(events, n - events + 1, alpha))


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
    sample = _checked_values(values, alpha)
    if not sample.size:
        return 1.0
    return _first_ruled_out(lambda mean: _log_wealth(sample, mean) >= -np.log(alpha), float(sample.mean()))


def mean_lower(values: ArrayLike, alpha: float) -> float:
    """Return the lower limit that mirrors `mean_upper`: 0 for no values."""
    return 1.0 - mean_upper(1.0 - _checked_values(values, alpha), alpha)


def mean_upper_of_zeros(n: int, alpha: float) -> float:
    """Return `mean_upper` of `n` zeros, without making them."""
    _check_alpha(alpha)
    if n == 0:
        return 1.0
    return _first_ruled_out(
        lambda mean: _log_mixture(n * np.log1p(_BETS * mean / (1.0 - mean))) >= -np.log(alpha), start=0.0
    )


def prompts_needed(best_upper: Callable[[int], float], limit: float) -> int | None:
    """Return the smallest n whose best possible upper limit is at or under `limit`; None if a trillion is too few.

    Args:
        best_upper: The smallest upper limit any n prompts could give; it falls to 0 as n grows.
        limit: What it must reach.
    """
    enough = 1
    while best_upper(enough) > limit:
        enough *= 2
        if enough > _MOST_PROMPTS:
            return None
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        too_few, enough = (too_few, middle) if best_upper(middle) <= limit else (middle, enough)
    return enough


def _log_wealth(sample: NDArray[np.float64], mean: float) -> float:
    gains = (mean - sample) / (1.0 - mean)
    with np.errstate(divide="ignore"):
        return _log_mixture(np.log1p(np.multiply.outer(_BETS, gains)).sum(axis=1))


def _log_mixture(log_wealths: NDArray[np.float64]) -> float:
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


def _checked_values(values: ArrayLike, alpha: float) -> NDArray[np.float64]:
    _check_alpha(alpha)
    sample = np.asarray(values, dtype=np.float64).ravel()
    if not ((sample >= 0) & (sample <= 1)).all():
        raise ValueError("expected values within 0 and 1, found one outside or a NaN")
    return sample


def _check_counts(events: int, n: int, alpha: float) -> None:
    _check_alpha(alpha)
    if not 0 <= events <= n:
        raise ValueError(f"expected between 0 and {n} events, found {events}")


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"expected an error probability within 0 and 1, found {alpha}")
