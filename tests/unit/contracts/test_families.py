"""Many limits at once, and how many prompts one of them needs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from snapline.contracts.estimators import (
    bonferroni,
    hoeffding_prompts,
    holm,
    mean_prompts,
    mean_upper_of_zeros,
    rate_p_value,
    rate_prompts,
    rate_upper,
)


def test_holm_goes_on_until_the_first_that_fails():
    # alpha/4 = .0125, alpha/3 = .01667, alpha/2 = .025: the third fails, and keeps the fourth though .03 <= .05.
    assert holm([0.03, 0.01, 0.016, 0.028], 0.05).tolist() == [False, True, True, False]
    assert holm([0.0125, 0.0166, 0.025, 0.05], 0.05).tolist() == [True] * 4
    assert holm([0.0126, 0.0, 0.9], 0.05).tolist() == [True, True, False]
    assert holm([], 0.05).tolist() == []


def test_holm_rejects_whatever_an_even_split_does():
    random = np.random.default_rng(0)
    for _ in range(200):
        p = random.beta(0.3, 3, random.integers(1, 12))
        split = p <= bonferroni(np.ones(len(p)), 0.05)
        assert (holm(p, 0.05) >= split).all()


def test_a_level_is_split_by_weight():
    assert bonferroni([1, 1, 2], 0.04).tolist() == pytest.approx([0.01, 0.01, 0.02])
    assert bonferroni([5], 0.05).tolist() == [0.05]
    for weights in ([], [1, 0], [1, -1], [math.nan], [math.inf]):
        with pytest.raises(ValueError, match="positive weights"):
            bonferroni(weights, 0.05)


def test_what_is_no_p_value_rejects_nothing():
    for p in ([math.nan], [-0.1], [1.1]):
        with pytest.raises(ValueError, match="NaN"):
            holm(p, 0.05)
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="error probability"):
            holm([0.1], level)


def test_a_rate_s_p_value_is_where_its_limit_crosses():
    for k, n in ((0, 30), (3, 50), (49, 50)):
        assert rate_p_value(k, n, rate_upper(k, n, 0.05)) == pytest.approx(0.05)
    assert rate_p_value(5, 5, 0.9) == rate_p_value(0, 0, 0.1) == 1
    for limit in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="limit within 0 and 1"):
            rate_p_value(0, 5, limit)


def test_half_an_event_is_no_count():
    for k, n in ((0.5, 3), (math.nan, 3), (1, 3.5), (1, math.inf), (-1, 3)):
        with pytest.raises(ValueError, match="events"):
            rate_upper(k, n, 0.05)


def test_published_numbers_of_prompts():
    assert [hoeffding_prompts(margin, 0.05) for margin in (0.05, 0.02, 0.01)] == [600, 3745, 14979]
    assert rate_prompts(0.01, 0.05) == 299
    assert rate_prompts(0.005, 0.05) == 598
    for margin in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive margin"):
            hoeffding_prompts(margin, 0.05)


@pytest.mark.parametrize("events", [0, 1, 7])
def test_the_number_of_prompts_is_the_smallest_that_reaches_the_limit(events):
    n = rate_prompts(0.02, 0.05, events)
    assert rate_upper(events, n, 0.05) <= 0.02 < rate_upper(events, n - 1, 0.05)


def test_a_mean_needs_more_prompts_than_a_rate_and_no_number_reaches_0():
    n = mean_prompts(0.005, 0.05)
    assert mean_upper_of_zeros(n, 0.05) <= 0.005 < mean_upper_of_zeros(n - 1, 0.05)
    assert 598 < n <= math.log(40) / 0.005
    assert mean_prompts(0.0, 0.05) is None
    assert mean_prompts(math.nan, 0.05) is None
