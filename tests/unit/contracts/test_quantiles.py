"""Limits of quantiles, from order statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from snapline.contracts.estimators import quantile_lower, quantile_prompts, quantile_upper, rate_upper


def test_the_largest_of_299_values_is_the_first_limit_of_the_99th_percentile():
    values = np.arange(299.0)
    assert quantile_upper(values, 0.99, 0.05) == 298
    assert quantile_upper(values[:298], 0.99, 0.05) == math.inf
    assert quantile_prompts(0.99, 0.05) == 299
    assert quantile_prompts(0.99, 0.05 / 8) == 505


def test_a_sample_maximum_is_no_supremum():
    # It bounds what exceeds it in the traffic by 1 - alpha^(1/n), which is at most ln(1/alpha)/n.
    n, alpha = 500, 0.05
    exceeding = 1 - alpha ** (1 / n)
    assert quantile_upper(np.arange(n), 1 - exceeding - 1e-12, alpha) == n - 1
    assert quantile_upper(np.arange(n), 1 - exceeding + 1e-12, alpha) == math.inf
    assert exceeding == pytest.approx(rate_upper(0, n, alpha))
    assert exceeding <= math.log(1 / alpha) / n


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [1, 20, 60, 400])
@pytest.mark.parametrize("alpha", [0.2, 0.05, 1e-3])
def test_a_quantile_is_covered_exactly(q, n, alpha):
    # Values below the quantile number Binomial(n, q): sum over every outcome in which a limit falls below it.
    ranks = np.arange(n)
    upper, lower = quantile_upper(ranks, q, alpha), quantile_lower(ranks, q, alpha)
    missed_above = binom.sf(upper, n, q) if upper < math.inf else 0.0
    missed_below = binom.cdf(lower, n, q) if lower > -math.inf else 0.0
    assert max(missed_above, missed_below) <= alpha
    if 0 < upper < math.inf:
        assert binom.sf(upper - 1, n, q) > alpha, "a smaller value would do"
    if -math.inf < lower < n - 1:
        assert binom.cdf(lower + 1, n, q) > alpha, "a larger value would do"


def test_the_order_of_the_values_means_nothing_and_infinite_ones_are_taken():
    values = np.random.default_rng(0).permutation(100).astype(float)
    assert quantile_upper(values, 0.5, 0.05) == 58
    assert quantile_lower(values, 0.5, 0.05) == 41
    values[values > 50] = math.inf
    assert quantile_upper(values, 0.5, 0.05) == math.inf


def test_the_limits_mirror_each_other_where_quantiles_do():
    values = np.random.default_rng(1).normal(size=77)
    assert quantile_lower(values, 0.3, 0.05) == -quantile_upper(-values, 0.7, 0.05)


def test_no_values_have_no_limit_and_nonsense_is_refused():
    assert (quantile_lower([], 0.5, 0.05), quantile_upper([], 0.5, 0.05)) == (-math.inf, math.inf)
    for limit in (quantile_lower, quantile_upper):
        with pytest.raises(ValueError, match="NaN"):
            limit([1.0, math.nan], 0.5, 0.05)
        for q in (0.0, 1.0, math.nan):
            with pytest.raises(ValueError, match="a quantile within 0 and 1"):
                limit([1.0], q, 0.05)
        with pytest.raises(ValueError, match="error probability"):
            limit([1.0], 0.5, math.nan)
    with pytest.raises(ValueError, match="a quantile within 0 and 1"):
        quantile_prompts(1.0, 0.05)
