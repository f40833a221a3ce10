"""Laws of the confidence limits, whatever the sample."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.contracts.estimators import (
    cluster_means,
    empirical_bernstein_upper,
    hoeffding_upper,
    holm,
    mean_lower,
    mean_p_value,
    mean_sequence,
    mean_sequence_lower,
    mean_upper,
    paired_mean_lower,
    paired_mean_upper,
    quantile_lower,
    quantile_upper,
    rate_lower,
    rate_upper,
)

samples = st.lists(st.floats(0, 1), min_size=1, max_size=40)
levels = st.floats(1e-6, 0.5)


@settings(deadline=None)
@given(samples, levels)
def test_limits_enclose_the_sample_mean(values, alpha):
    assert mean_lower(values, alpha) <= np.mean(values) + 1e-12
    assert mean_upper(values, alpha) >= np.mean(values) - 1e-12


@settings(deadline=None)
@given(samples, levels, st.randoms(use_true_random=False))
def test_the_order_of_the_values_means_nothing(values, alpha, random):
    shuffled = random.sample(values, len(values))
    assert abs(mean_upper(values, alpha) - mean_upper(shuffled, alpha)) < 1e-9


@settings(deadline=None)
@given(samples, levels, st.data())
def test_a_larger_value_never_lowers_a_limit(values, alpha, data):
    index = data.draw(st.integers(0, len(values) - 1))
    raised = [*values[:index], data.draw(st.floats(values[index], 1)), *values[index + 1 :]]
    assert mean_upper(raised, alpha) >= mean_upper(values, alpha) - 1e-9
    assert mean_lower(raised, alpha) >= mean_lower(values, alpha) - 1e-9


@settings(deadline=None)
@given(samples, levels, levels)
def test_more_confidence_is_never_a_narrower_limit(values, one, other):
    assert mean_upper(values, min(one, other)) >= mean_upper(values, max(one, other)) - 1e-9


@settings(deadline=None)
@given(samples, levels)
def test_the_lower_limit_mirrors_the_upper(values, alpha):
    mirrored = 1 - np.asarray(values)
    assert abs(mean_lower(values, alpha) - (1 - mean_upper(mirrored, alpha))) < 1e-9


@settings(deadline=None)
@given(st.integers(1, 500), levels, st.data())
def test_rates_enclose_and_grow_with_events(n, alpha, data):
    events = data.draw(st.integers(0, n - 1))
    assert rate_lower(events, n, alpha) <= (events / n) * (1 + 1e-12)
    assert rate_lower(events, n, alpha) <= rate_lower(events + 1, n, alpha)
    assert rate_upper(events, n, alpha) <= rate_upper(events + 1, n, alpha)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=60), levels)
def test_the_mean_of_events_is_never_surer_than_the_exact_rate(events, alpha):
    assert mean_upper(np.array(events, dtype=float), alpha) >= rate_upper(sum(events), len(events), alpha) - 1e-9


@settings(deadline=None)
@given(samples, levels, st.floats(0, 1, exclude_max=True))
def test_a_p_value_and_a_limit_say_the_same(values, alpha, limit):
    p, upper = mean_p_value(values, limit), mean_upper(values, alpha)
    assert p <= alpha * (1 + 1e-6) or upper >= limit - 1e-9
    assert p >= alpha * (1 - 1e-6) or upper <= limit + 1e-9


@settings(deadline=None)
@given(samples, levels)
def test_every_limit_of_a_mean_lies_between_it_and_1(values, alpha):
    for limit in (hoeffding_upper, empirical_bernstein_upper, mean_upper):
        assert np.mean(values) - 1e-12 <= limit(values, alpha) <= 1


@settings(deadline=None)
@given(samples, levels)
def test_a_sequence_only_ever_tightens_and_its_sides_mirror(values, alpha):
    upper, lower = mean_sequence(values, alpha), mean_sequence_lower(values, alpha)
    assert len(upper) == len(values)
    assert (np.diff(upper) <= 0).all()
    assert upper[0] <= 1
    np.testing.assert_allclose(lower, 1 - mean_sequence(1 - np.asarray(values), alpha), atol=1e-12)


@settings(deadline=None)
@given(samples, levels, st.floats(0.01, 0.99))
def test_a_quantile_s_limits_are_values_in_order(values, alpha, q):
    lower, upper = quantile_lower(values, q, alpha), quantile_upper(values, q, alpha)
    assert lower <= upper
    assert {lower, upper} <= {*values, -np.inf, np.inf}
    assert quantile_upper(values, q, alpha / 2) >= upper


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40), levels)
def test_paired_limits_enclose_the_mean_difference(differences, alpha):
    low, high = paired_mean_lower(differences, alpha), paired_mean_upper(differences, alpha)
    assert -1 <= low <= np.mean(differences) + 1e-9
    assert np.mean(differences) - 1e-9 <= high <= 1


@settings(deadline=None)
@given(samples, st.data())
def test_the_order_of_figures_within_prompts_means_nothing(values, data):
    ids = data.draw(st.lists(st.integers(0, 4), min_size=len(values), max_size=len(values)))
    order = data.draw(st.permutations(range(len(values))))
    means = cluster_means(values, ids)
    assert len(means) == len(set(ids))
    np.testing.assert_allclose(means, cluster_means(np.take(values, order), np.take(ids, order)), atol=1e-12)


@given(st.lists(st.floats(0, 1), max_size=20), levels)
def test_holm_rejects_the_smallest_p_values_and_no_fewer_than_bonferroni(p_values, alpha):
    rejected, p = holm(p_values, alpha), np.asarray(p_values)
    assert max(p[rejected], default=0) <= min(p[~rejected], default=1)
    assert rejected.sum() >= (p <= alpha / max(1, len(p))).sum()
