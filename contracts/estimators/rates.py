"""Exact limits of an event's probability."""

from __future__ import annotations

from snapline.contracts.estimators.checks import checked_counts, checked_level

RATE_METHOD = "clopper-pearson"


def rate_upper(k: int, n: int, alpha: float) -> float:
    """Return the upper limit of an event's probability after `k` events in `n` independent trials; 1 for no trial.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika 26 (1934). After no event it is `1 - alpha ** (1 / n)`.

    Raises:
        ValueError: `k` is not a whole number within 0 and `n`, or `alpha` not within (0, 1).
    """
    from scipy.special import betainccinv

    checked_counts(k, n)
    checked_level(alpha)
    return 1.0 if k == n else float(betainccinv(k + 1, n - k, alpha))


def rate_lower(k: int, n: int, alpha: float) -> float:
    """Return the lower limit that mirrors `rate_upper`: 0 after no event."""
    from scipy.special import betaincinv

    checked_counts(k, n)
    checked_level(alpha)
    return 0.0 if k == 0 else float(betaincinv(k, n - k + 1, alpha))


def rate_p_value(k: int, n: int, limit: float) -> float:
    """Return the probability of at most `k` events in `n` trials when each is one with probability `limit`.

    It is at most alpha exactly when `rate_upper` is at most `limit`; `families.holm` compares many.

    Raises:
        ValueError: `k` is not a whole number within 0 and `n`, or `limit` not within [0, 1].
    """
    from scipy.special import bdtr

    checked_counts(k, n)
    if not 0 <= limit <= 1:
        raise ValueError(f"expected a limit within 0 and 1, found {limit}")
    return 1.0 if k == n else float(bdtr(k, n, limit))
