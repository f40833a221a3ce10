"""Laws of the confidence limits, whatever the sample."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.contracts.estimators import mean_lower, mean_upper, rate_lower, rate_upper

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
