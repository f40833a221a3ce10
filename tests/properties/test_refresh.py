"""Nothing does better than the refresh solver, whatever the segments."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from snapline.lineage.refresh.solver import (
    Floats,
    Segments,
    exposures,
    optimal_rates,
    square_root_rates,
    uniform_rates,
)


def magnitudes(least: int, most: int) -> st.SearchStrategy[float]:
    return st.floats(least, most).map(lambda exponent: 10.0**exponent)


@st.composite
def populations(draw: st.DrawFn, size: int = 12, extreme: int = 12) -> Segments:
    count = draw(st.integers(1, size))
    of = st.lists(st.one_of(st.just(0.0), magnitudes(-extreme, extreme)), min_size=count, max_size=count)
    costs = draw(st.lists(magnitudes(-3, 3), min_size=count, max_size=count))
    return Segments(np.array(draw(of)), np.array(draw(of)), np.array(costs))


def total(segments: Segments, rates: Floats) -> float:
    return float(exposures(segments, rates).sum())


@given(populations(), magnitudes(-12, 12))
def test_the_budget_is_spent_and_the_conditions_of_the_optimum_hold(segments: Segments, budget: float) -> None:
    rates = optimal_rates(segments, budget)
    assert (rates >= 0).all()
    good = segments.worth_refreshing
    assert (rates[~good] == 0).all()
    if not good.any():
        return
    assert abs(segments.cost @ rates - budget) <= 1e-9 * budget
    limit = segments.weight[good] / (segments.change_rate[good] * segments.cost[good])
    inside = rates[good] > 0
    u = segments.change_rate[good][inside] / rates[good][inside]
    closed = -np.expm1(-u) - u * np.exp(-u)
    slopes = limit[inside] * np.where(u < 1e-3, u**2 / 2 - u**3 / 3 + u**4 / 8, closed)
    assert slopes.max() <= slopes.min() * (1 + 1e-8)
    assert (limit[~inside] <= slopes.max() * (1 + 1e-12)).all()


@given(populations(), magnitudes(-12, 12))
def test_never_worse_than_one_rate_for_all_nor_than_the_square_root_law(segments: Segments, budget: float) -> None:
    best = total(segments, optimal_rates(segments, budget))
    for other in (uniform_rates, square_root_rates):
        assert best <= total(segments, other(segments, budget)) * (1 + 1e-12)


@given(populations(), magnitudes(-9, 9), magnitudes(-3, 3))
def test_a_larger_budget_never_leaves_more_stale(segments: Segments, budget: float, more: float) -> None:
    first, second = (total(segments, optimal_rates(segments, b)) for b in (budget, budget * (1 + more)))
    assert second <= first * (1 + 1e-12)


@given(populations(size=3, extreme=2), magnitudes(-2, 2))
@settings(max_examples=30)
def test_no_point_of_a_dense_grid_is_better(segments: Segments, budget: float) -> None:
    steps = 200
    at = np.array([exposures(segments, k / steps * budget / segments.cost) for k in range(steps + 1)])
    best = total(segments, optimal_rates(segments, budget))
    count = len(segments.weight)
    for split in itertools.product(range(steps + 1), repeat=count - 1):
        if sum(split) <= steps:
            assert best <= sum(at[k, j] for j, k in enumerate((*split, steps - sum(split)))) + 1e-6


@given(populations(size=5, extreme=1), magnitudes(-1, 1), st.integers(0, 2**32))
@settings(max_examples=15)
def test_no_general_minimizer_finds_better_from_many_starts(segments: Segments, budget: float, seed: int) -> None:
    best = total(segments, optimal_rates(segments, budget))
    generator = np.random.default_rng(seed)
    for _ in range(5):
        start = generator.dirichlet(np.ones(len(segments.weight)))
        found = minimize(
            lambda shares: total(segments, np.maximum(shares, 0) * budget / segments.cost),
            start,
            method="SLSQP",
            bounds=[(0, 1)] * len(start),
            constraints={"type": "eq", "fun": lambda shares: shares.sum() - 1},
        )
        shares = np.maximum(found.x, 0)
        assert best <= total(segments, shares / shares.sum() * budget / segments.cost) + 1e-6
