"""The refresh solver against worked figures, and where figures are extreme."""

from __future__ import annotations

import math

import numpy as np
import pytest

from snapline.lineage.refresh.solver import (
    Floats,
    Segments,
    avoided_per_cost,
    estimated_rate,
    exposures,
    optimal_rates,
    square_root_rates,
    stale_share,
    uniform_rates,
)


def segments(weight: list[float], change_rate: list[float], cost: list[float] | None = None) -> Segments:
    return Segments(*(np.array(given, np.float64) for given in (weight, change_rate, cost or [1] * len(weight))))


def total(found: Segments, rates: Floats) -> float:
    return float(exposures(found, rates).sum())


def totals(found: Segments, budget: float) -> tuple[float, float, float]:
    return tuple(total(found, rule(found, budget)) for rule in (optimal_rates, uniform_rates, square_root_rates))  # type: ignore[return-value]


INTERIOR = segments([5, 1, 2, 0.5], [0.02, 0.01, 0.1, 0.005])
CORNER = segments([1, 1, 1], [10, 0.1, 0.05])
COSTS = segments([5, 1, 2, 0.5], [0.02, 0.01, 0.1, 0.005], [1, 1, 4, 0.25])
EIGHT = segments([1] * 8, [0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10])


def test_every_segment_is_refreshed_where_the_budget_is_worth_it_for_all() -> None:
    rates = optimal_rates(INTERIOR, 0.8)
    assert 1 / rates == pytest.approx([3.49363, 11.20298, 2.63247, 22.40596], abs=5e-6)
    assert totals(INTERIOR, 0.8) == pytest.approx((0.493244, 0.698780, 0.493638), abs=5e-7)
    assert 1 - total(INTERIOR, rates) / 0.698780 == pytest.approx(0.2941, abs=5e-5)


def test_a_segment_that_changes_too_fast_is_left_alone() -> None:
    rates = optimal_rates(CORNER, 0.3)
    assert rates == pytest.approx([0, 0.171150, 0.128850], abs=5e-7)
    assert rates[0] == 0.0
    assert totals(CORNER, 0.3) == pytest.approx((1.413855, 1.570941, 2.383847), abs=5e-7)


def test_a_dearer_segment_is_refreshed_less() -> None:
    assert optimal_rates(COSTS, 0.8) == pytest.approx([0.219965, 0.068297, 0.123559, 0.070010], abs=5e-7)
    assert totals(COSTS, 0.8) == pytest.approx((0.936656, 1.030808, 0.945165), abs=5e-7)


@pytest.mark.parametrize(
    ("budget", "rates", "digits", "exposure"),
    [
        (2, [0.097, 0.207, 0.283, 0.523, 0.600, 0.290, 0, 0], 3, (4.0436, 4.4115, 5.2100)),
        (8, [0.188, 0.412, 0.572, 1.180, 1.557, 1.959, 2.131, 0], 3, (2.6018, 2.9279, 2.9285)),
        (80, [0.94, 2.09, 2.95, 6.51, 9.10, 12.67, 19.38, 26.35], 2, (0.48568, 0.75554, 0.48635)),
    ],
)
def test_eight_segments_at_three_budgets(
    budget: float, rates: list[float], digits: int, exposure: tuple[float, float, float]
) -> None:
    assert optimal_rates(EIGHT, budget) == pytest.approx(rates, abs=0.5 * 10**-digits)
    assert totals(EIGHT, budget) == pytest.approx(exposure, abs=5e-5)


def test_the_conditions_of_the_optimum_share_one_multiplier() -> None:
    for found, budget, multiplier in ((INTERIOR, 0.8, 0.582577), (CORNER, 0.3, 1.167532), (COSTS, 0.8, 0.972829)):
        rates = optimal_rates(found, budget)
        inside = rates > 0
        limit = found.weight / (found.change_rate * found.cost)
        u = found.change_rate[inside] / rates[inside]
        assert limit[inside] * (1 - np.exp(-u) * (1 + u)) == pytest.approx(multiplier, abs=5e-7)
        assert (limit[~inside] <= multiplier).all()


def test_what_never_changes_or_has_no_weight_is_never_refreshed() -> None:
    found = segments([1, 0, 1, 0], [0, 3, 2, 0])
    assert optimal_rates(found, 4).tolist() == [0, 0, 4, 0]
    assert exposures(found, optimal_rates(found, 4))[[0, 1, 3]].tolist() == [0, 0, 0]


def test_where_nothing_can_go_stale_nothing_is_spent() -> None:
    found = segments([1, 0], [0, 3])
    assert optimal_rates(found, 4).tolist() == square_root_rates(found, 4).tolist() == [0, 0]
    assert totals(found, 4) == (0, 0, 0)
    assert avoided_per_cost(found, optimal_rates(found, 4)).tolist() == [0, 0]


@pytest.mark.parametrize("budget", [1e-30, 1e-6, 1, 1e6, 1e30])
@pytest.mark.parametrize("change", [1e-30, 1e-12, 1, 1e12, 1e30])
def test_one_segment_gets_the_whole_budget(change: float, budget: float) -> None:
    found = segments([3.0], [change], [4.0])
    assert optimal_rates(found, budget) == pytest.approx([budget / 4], rel=1e-12)


@pytest.mark.parametrize("budget", [1e-12, 1e-3, 1, 1e3, 1e12])
def test_equal_segments_share_alike_however_little_there_is(budget: float) -> None:
    found = segments([2.0] * 5, [0.3] * 5, [7.0] * 5)
    assert optimal_rates(found, budget) == pytest.approx([budget / 35] * 5, rel=1e-12)


@pytest.mark.parametrize("budget", [1e-9, 1e-3, 1, 1e3, 1e9, 1e15])
def test_change_rates_24_magnitudes_apart_spend_the_budget(budget: float) -> None:
    found = segments([1, 1e6, 1e-6, 1, 1, 0], [1e-12, 1e-6, 1, 1e6, 1e12, 1], [1, 2, 3, 4, 5, 6])
    rates = optimal_rates(found, budget)
    assert found.cost @ rates == pytest.approx(budget, rel=1e-12)
    best, uniform, square_root = totals(found, budget)
    assert best <= min(uniform, square_root) * (1 + 1e-12)


def test_a_budget_for_everything_leaves_the_square_root_law() -> None:
    rates = optimal_rates(EIGHT, 1e9)
    assert rates == pytest.approx(square_root_rates(EIGHT, 1e9), rel=1e-6)
    assert 0 < total(EIGHT, rates) < 1e-7


def test_between_two_floats_of_the_multiplier_the_budget_is_still_spent_exactly() -> None:
    """The second segment takes up 1,000 at a multiplier that no float tells from the one at which it takes up none."""
    found = segments([1.0, 0.999e6], [1.0, 1e6])
    rates = optimal_rates(found, 1000.0)
    assert rates.sum() == pytest.approx(1000.0, rel=1e-12)
    assert 0.05 < rates[0] < 0.2
    assert total(found, rates) < total(found, np.array([1000.0, 0.0]))


def test_a_million_segments_are_solved() -> None:
    generator = np.random.default_rng(7)
    found = Segments(*(np.exp(generator.normal(0, 3, 1_000_000)) for _ in range(3)))
    rates = optimal_rates(found, 100_000.0)
    assert found.cost @ rates == pytest.approx(100_000.0, rel=1e-9)
    assert 0 < (rates == 0).sum() < 1_000_000
    best, uniform, square_root = totals(found, 100_000.0)
    assert best < min(uniform, square_root)


def test_the_stale_share_keeps_its_digits_from_none_to_all() -> None:
    u = np.array([0, 1e-300, 1e-9, 1e-3, 0.1, 0.4999999, 0.5, 3, 800, np.inf])
    found = stale_share(u)
    assert found[:3] == pytest.approx([0, 5e-301, 5e-10], rel=1e-9, abs=0)
    assert found[3:5] == pytest.approx([x / 2 - x**2 / 6 + x**3 / 24 - x**4 / 120 + x**5 / 720 for x in (1e-3, 0.1)])
    assert found[5] == pytest.approx(1 - (1 - math.exp(-0.4999999)) / 0.4999999, rel=1e-14)
    assert found[6:9] == pytest.approx([1 - (1 - math.exp(-x)) / x for x in (0.5, 3, 800)], rel=1e-14)
    assert found[9] == 1


def test_refreshes_avoid_at_least_the_multiplier_per_cost_and_the_left_alone_at_most_that() -> None:
    worth = avoided_per_cost(CORNER, optimal_rates(CORNER, 0.3))
    assert worth[0] == pytest.approx(0.1)
    assert (worth[1:] >= 1.167532).all()


def test_the_estimator_corrects_for_changes_that_one_poll_hides() -> None:
    assert estimated_rate(10, 5, 2.0) == pytest.approx(-math.log(5.5 / 10.5) / 2)
    assert estimated_rate(1, 0, 1.0) == pytest.approx(math.log(3))
    assert estimated_rate(4, 4, 1.0) == 0
    generator = np.random.default_rng(5)
    unchanged = (generator.poisson(1.0, (4000, 50)) == 0).sum(axis=1)
    told = np.mean([estimated_rate(50, int(z), 1.0) for z in unchanged])
    assert told == pytest.approx(1.0, abs=0.01)
    assert np.mean(1 - unchanged / 50) < 0.65
