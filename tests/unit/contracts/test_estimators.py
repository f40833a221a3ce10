from __future__ import annotations

import numpy as np
import pytest

from snapline.contracts.estimators import (
    mean_lower,
    mean_upper,
    mean_upper_of_zeros,
    prompts_needed,
    rate_lower,
    rate_upper,
)


def test_no_event_in_n_is_the_closed_form():
    for n in (1, 10, 300, 30_000):
        assert rate_upper(0, n, 0.05) == pytest.approx(1 - 0.05 ** (1 / n), rel=1e-12)


def test_published_figures_for_the_rate():
    # Clopper and Pearson's two-sided 95% interval for 10 of 100, as any table gives it.
    assert rate_lower(10, 100, 0.025) == pytest.approx(0.0490047, abs=1e-7)
    assert rate_upper(10, 100, 0.025) == pytest.approx(0.1762226, abs=1e-7)


def test_nothing_measured_says_nothing():
    assert (rate_lower(0, 0, 0.05), rate_upper(0, 0, 0.05)) == (0.0, 1.0)
    assert (mean_lower([], 0.05), mean_upper([], 0.05)) == (0.0, 1.0)


def test_the_ends_of_the_rate():
    assert rate_upper(7, 7, 0.05) == 1.0
    assert rate_lower(0, 7, 0.05) == 0.0
    assert rate_lower(7, 7, 0.05) == pytest.approx(0.05 ** (1 / 7))


def test_zeros_cost_the_mean_at_most_a_factor_two_of_the_level():
    for n in (1, 50, 200, 5_000):
        assert rate_upper(0, n, 0.05) <= mean_upper(np.zeros(n), 0.05) <= rate_upper(0, n, 0.025) + 1e-12


def test_zeros_need_not_be_made():
    for n in (0, 1, 50, 5_000):
        assert mean_upper_of_zeros(n, 0.01) == pytest.approx(mean_upper(np.zeros(n), 0.01), rel=1e-9)


def test_the_mean_is_sharper_than_hoeffding_where_values_are_small():
    values = np.random.default_rng(1).beta(2, 100, 200)
    hoeffding = values.mean() + np.sqrt(np.log(1 / 0.003) / (2 * 200))
    assert values.mean() < mean_upper(values, 0.003) < values.mean() + (hoeffding - values.mean()) / 3


def test_ones_allow_everything():
    assert mean_upper(np.ones(50), 0.05) == 1.0
    assert mean_lower(np.zeros(50), 0.05) == 0.0


@pytest.mark.parametrize("values", [[0.5, float("nan")], [-0.1], [1.1], [float("inf")]])
def test_a_value_outside_the_interval_is_refused(values):
    with pytest.raises(ValueError, match="within 0 and 1"):
        mean_upper(values, 0.05)
    with pytest.raises(ValueError, match="within 0 and 1"):
        mean_lower(values, 0.05)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0, float("nan")])
def test_an_impossible_level_is_refused(alpha):
    with pytest.raises(ValueError, match="error probability"):
        mean_upper([0.5], alpha)
    with pytest.raises(ValueError, match="error probability"):
        rate_upper(0, 5, alpha)


def test_impossible_counts_are_refused():
    with pytest.raises(ValueError, match="between 0 and 3 events"):
        rate_upper(4, 3, 0.05)


def test_prompts_needed_is_the_smallest_number_that_will_do():
    # 299 prompts without one exceedance: the .99 quantile at 95%.
    assert prompts_needed(lambda n: rate_upper(0, n, 0.05), 0.01) == 299
    assert prompts_needed(lambda n: rate_upper(0, n, 0.05), 0.999) == 1
    assert prompts_needed(lambda n: rate_upper(0, n, 0.05), 0.0) is None


DISTRIBUTIONS = {
    "rare event": (lambda random, shape: (random.random(shape) < 0.02).astype(float), 0.02),
    "fair coin": (lambda random, shape: (random.random(shape) < 0.5).astype(float), 0.5),
    "heavy tail": (lambda random, shape: random.beta(0.05, 1.0, shape), 0.05 / 1.05),
    "almost always 0, else 1": (lambda random, shape: (random.random(shape) < 0.002).astype(float), 0.002),
    "tight": (lambda random, shape: random.beta(200, 800, shape), 0.2),
    "near 1": (lambda random, shape: random.beta(20, 1, shape), 20 / 21),
}


@pytest.mark.parametrize("n", [5, 20, 100])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_mean_is_covered(name, n):
    draw, mean = DISTRIBUTIONS[name]
    alpha, runs = 0.1, 400
    samples = draw(np.random.default_rng(n), (runs, n))
    above = sum(mean_upper(sample, alpha) < mean for sample in samples)
    below = sum(mean_lower(sample, alpha) > mean for sample in samples)
    # At most alpha of the runs may miss; three standard deviations for the simulation itself.
    allowed = runs * alpha + 3 * np.sqrt(runs * alpha * (1 - alpha))
    assert max(above, below) <= allowed


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.93])
def test_the_rate_is_covered_exactly(p):
    # Over every outcome, weighted by its probability: no simulation needed.
    from scipy.stats import binom

    n, alpha = 60, 0.05
    weights = binom.pmf(np.arange(n + 1), n, p)
    missed_above = sum(w for k, w in enumerate(weights) if rate_upper(k, n, alpha) < p)
    missed_below = sum(w for k, w in enumerate(weights) if rate_lower(k, n, alpha) > p)
    assert missed_above <= alpha
    assert missed_below <= alpha
