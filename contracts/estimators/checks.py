"""What a limit may rest on: numbers in their range, and error probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def checked_level(alpha: float) -> float:
    """Return an error probability within (0, 1), or raise ValueError."""
    if not 0 < alpha < 1:
        raise ValueError(f"expected an error probability within 0 and 1, found {alpha}")
    return alpha


def checked_values(values: ArrayLike, low: float = 0.0, high: float = 1.0) -> Floats:
    """Return values as a flat array, or raise ValueError for one that is outside the range or NaN."""
    sample = np.asarray(values, dtype=np.float64).ravel()
    if not ((sample >= low) & (sample <= high)).all():
        raise ValueError(f"expected values within {low:g} and {high:g}, found one outside or a NaN")
    return sample


def checked_counts(k: int, n: int) -> None:
    """Raise ValueError unless `k` of `n` trials can have been events."""
    if not 0 <= k <= n or k % 1 != 0 or n % 1 != 0:
        raise ValueError(f"expected between 0 and {n} events, whole numbers, found {k}")
