"""Many figures per prompt: the prompt stays the unit of independence."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from snapline.contracts.estimators.checks import Floats, checked_values
from snapline.contracts.estimators.means import mean_upper


def cluster_means(values: ArrayLike, clusters: ArrayLike) -> Floats:
    """Return the mean of each cluster's values, in the order of the clusters' ids.

    A limit of their mean promises something about the average prompt, not about the average value: long prompts weigh
    no more than short ones.

    Args:
        values: Figures in [0, 1].
        clusters: The prompt, or conversation, of each value; values of one cluster may depend on each other.

    Raises:
        ValueError: A value is NaN or outside [0, 1], an id is NaN, or there are not as many ids as values.
    """
    sample, ids = checked_values(values), np.asarray(clusters).ravel()
    if ids.shape != sample.shape:
        raise ValueError(f"expected an id for each of {len(sample)} values, found {len(ids)}")
    if np.issubdtype(ids.dtype, np.floating) and np.isnan(ids).any():
        raise ValueError("expected an id for each value, found a NaN")
    _, place, counts = np.unique(ids, return_inverse=True, return_counts=True)
    return np.clip(np.bincount(place, weights=sample, minlength=len(counts)) / counts, 0.0, 1.0)


def clustered_mean_upper(values: ArrayLike, clusters: ArrayLike, alpha: float) -> float:
    """Return `mean_upper` of the clusters' means; 1 for no values.

    Raises:
        ValueError: As `cluster_means` does, or `alpha` is not within (0, 1).
    """
    return mean_upper(cluster_means(values, clusters), alpha)
