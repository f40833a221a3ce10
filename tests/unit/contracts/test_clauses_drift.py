"""The limits of a measured drift hold in both directions, by enumerating every outcome of a small sample."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom

from snapline.contracts.clauses import Statistical
from snapline.contracts.estimators import paired_mean_lower, paired_mean_upper

PROMPTS = 25
WRITTEN = {"range": ["0", "1"], "limit": "0.3", "rewards": {"reference": "a", "serving": "b"}}


@pytest.fixture(scope="module")
def promise():
    return Statistical.model_validate({"measured_drift": WRITTEN}).measured_drift


def risen(count):
    """Return the units of a sample in which so many prompts' rewards rose by the whole range, and the others fell."""
    return np.repeat([1.0, 0.0], [count, PROMPTS - count])


@pytest.mark.parametrize("alpha", [0.2, 0.05])
@pytest.mark.parametrize("mean", [-0.9, -0.4, -0.05, 0.0, 0.05, 0.4, 0.9])
def test_neither_limit_is_wrong_more_often_than_it_says(promise, mean, alpha):
    weights = binom.pmf(range(PROMPTS + 1), PROMPTS, (1 + mean) / 2)
    wrong = {"upper": 0.0, "lower": 0.0}
    for count, weight in enumerate(weights):
        units = risen(count)
        wrong["upper"] += weight * (promise.upper(units, alpha) < abs(mean))
        wrong["lower"] += weight * (promise.lower(units, alpha) > abs(mean))
    assert max(wrong.values()) <= alpha


@pytest.mark.parametrize("alpha", [0.2, 0.05])
def test_no_drift_at_all_is_what_certifies_soonest(promise, alpha):
    uppers = [promise.upper(risen(count), alpha) for count in range(PROMPTS + 1)]
    assert promise.upper(np.full(PROMPTS, 0.5), alpha) == pytest.approx(promise.best_upper(PROMPTS, alpha))
    assert promise.best_upper(PROMPTS, alpha) < min(uppers)
    assert all(before > after for before, after in pairwise(uppers[: PROMPTS // 2 + 1]))


def test_the_lower_limit_pays_for_both_directions(promise):
    change = 2 * risen(24) - 1
    assert promise.lower(risen(24), 0.1) == paired_mean_lower(change, 0.05) > 0
    assert promise.upper(risen(24), 0.1) == paired_mean_upper(change, 0.1)


def test_no_prompts_leave_everything_open(promise):
    none = np.empty(0)
    assert (promise.lower(none, 0.05), promise.upper(none, 0.05)) == (0.0, 1.0)
    assert np.isnan(promise.estimate(none))
