"""Limits of means beside the betting limit: Hoeffding, empirical Bernstein, paired, clustered; and their p-values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from snapline.contracts.estimators import (
    cluster_means,
    clustered_mean_upper,
    empirical_bernstein_upper,
    hoeffding_upper,
    mean_p_value,
    mean_upper,
    paired_mean_lower,
    paired_mean_upper,
)

LIMITS = [hoeffding_upper, empirical_bernstein_upper, paired_mean_upper]


def test_hoeffding_and_empirical_bernstein_are_their_formulas():
    values = np.array([0.0, 0.1, 0.2, 0.7] * 500)
    assert hoeffding_upper(values, 0.05) == pytest.approx(0.25 + math.sqrt(math.log(20) / 4000))
    variance = values.var() * 2000 / 1999
    expected = 0.25 + math.sqrt(2 * variance * math.log(40) / 2000) + 7 * math.log(40) / (3 * 1999)
    assert empirical_bernstein_upper(values, 0.05) == pytest.approx(expected)


def test_no_limit_is_above_what_figures_can_be():
    assert [limit([], 0.05) for limit in LIMITS] == [1, 1, 1]
    assert [limit([1.0], 0.05) for limit in LIMITS] == [1, 1, 1]
    assert (paired_mean_lower([], 0.05), clustered_mean_upper([], [], 0.05)) == (-1, 1)


@pytest.mark.parametrize("limit", [*LIMITS, paired_mean_lower])
def test_what_is_no_figure_never_becomes_a_limit(limit):
    for values in ([0.5, math.nan], [1.1], [math.inf], [-1.1]):
        with pytest.raises(ValueError, match="found one outside or a NaN"):
            limit(values, 0.05)
    for alpha in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="error probability"):
            limit([0.5], alpha)


def test_figures_below_0_are_for_paired_differences_only():
    assert paired_mean_upper([-0.5] * 9, 0.05) < 1
    for limit in (hoeffding_upper, empirical_bernstein_upper):
        with pytest.raises(ValueError, match="within 0 and 1"):
            limit([-0.5], 0.05)


def test_pairing_cancels_what_makes_prompts_differ():
    random = np.random.default_rng(3)
    difficulty = random.random(400)
    reference, serving = 0.9 * difficulty, 0.9 * difficulty + random.uniform(-0.01, 0.01, 400)
    differences = np.clip(serving, 0, 1) - reference
    paired = paired_mean_upper(differences, 0.05)
    assert differences.mean() < paired < 0.03
    apart = mean_upper(np.clip(serving, 0, 1), 0.025) - (1 - mean_upper(1 - reference, 0.025))
    assert paired < apart / 2
    assert paired_mean_lower(differences, 0.05) == -paired_mean_upper(-differences, 0.05)


def test_a_prompt_counts_once_however_many_figures_it_has():
    means = cluster_means([0.0, 1.0, 0.5, 0.25, 0.75, 0.5], ["b", "a", "b", "b", "c", "b"])
    assert means.tolist() == [1.0, 0.3125, 0.75]
    ids = np.repeat(np.arange(30), 7)
    values = np.repeat(np.random.default_rng(0).random(30), 7)
    once = mean_upper(values[::7], 0.05)
    assert clustered_mean_upper(values, ids, 0.05) == pytest.approx(once)
    assert mean_upper(values, 0.05) < once, "copies of a figure must not pass for evidence"


def test_every_figure_needs_a_prompt():
    with pytest.raises(ValueError, match="an id for each of 2 values, found 1"):
        cluster_means([0.1, 0.2], [1])
    with pytest.raises(ValueError, match="found a NaN"):
        cluster_means([0.1, 0.2], [1.0, math.nan])
    with pytest.raises(ValueError, match="within 0 and 1"):
        cluster_means([0.1, math.nan], [1, 2])


def test_a_p_value_is_where_the_limit_crosses():
    values = np.random.default_rng(2).beta(1, 9, 60)
    for alpha in (0.2, 0.05, 1e-4):
        limit = mean_upper(values, alpha)
        assert mean_p_value(values, limit) == pytest.approx(alpha, rel=1e-6)


def test_a_p_value_of_nothing_is_1_and_nonsense_is_refused():
    assert mean_p_value([], 0.5) == mean_p_value([0.1], 0.0) == mean_p_value([1.0, 1.0], 1.0) == 1
    assert mean_p_value([1.0, 0.9], 1.0) == 0, "one value below 1 and the mean cannot be 1"
    for values, limit in (([math.nan], 0.5), ([0.5], math.nan), ([0.5], 1.5)):
        with pytest.raises(ValueError, match="within 0 and 1"):
            mean_p_value(values, limit)
