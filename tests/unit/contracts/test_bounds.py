from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import pytest

from snapline.contracts import bounds

HALF_SPANS = [1e-8, 1e-4, 0.01, 0.0999, 0.1001, 1.0, 3.0, 10.0, 50.0]


def pair(half_span: float, log_odds: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return p, q and log(q/p) of two tokens, +s on the first and -s on the second.

    The log ratio of the first is `log_ratio_range`'s, which its own test holds against long decimals.
    """
    odds = np.array([log_odds, -log_odds])
    p, q = (np.exp(-np.logaddexp(0, -x)) for x in (odds, odds + 2 * half_span * np.array([1, -1])))
    up = bounds.log_ratio_range(half_span, p[0])[1]
    down = -np.log1p(p[0] * np.expm1(2 * half_span))  # by the first token's mass: the second's rounds to 1
    return p, q, np.array([up, down])


def tv(p: np.ndarray, q: np.ndarray, log_ratio: np.ndarray) -> float:
    return float(abs(p * np.expm1(log_ratio)).max())


def jeffreys(p: np.ndarray, q: np.ndarray, log_ratio: np.ndarray) -> float:
    return float((p * np.expm1(log_ratio) * log_ratio).sum())


def chi2(p: np.ndarray, q: np.ndarray, log_ratio: np.ndarray) -> float:
    return float((p * np.expm1(log_ratio) ** 2).sum())


def squared_hellinger(p: np.ndarray, q: np.ndarray, log_ratio: np.ndarray) -> float:
    return float((p * np.expm1(log_ratio / 2) ** 2).sum() / 2)


def kl_of_log_ratio(p: np.ndarray, q: np.ndarray, log_ratio: np.ndarray) -> float:
    # sum p (expm1(l) - l): the naive sum loses every digit at small half spans.
    small = abs(log_ratio) < 1e-3
    l2 = log_ratio**2
    series = l2 / 2 + l2 * log_ratio / 6 + l2**2 / 24
    return float((p * np.where(small, series, np.expm1(np.minimum(log_ratio, 700)) - log_ratio)).sum())


def odds(mass: float) -> float:
    return math.log(mass) - math.log1p(-mass)


EXTREMAL: dict[str, tuple[Callable[[float], float], Callable[[float], float], Callable[..., float]]] = {
    "tv": (bounds.tv, lambda s: -s, tv),
    "jeffreys": (bounds.jeffreys, lambda s: -s, jeffreys),
    "chi2": (bounds.chi2, lambda s: -2 * s, chi2),
    "hellinger": (
        bounds.squared_hellinger,
        lambda s: -s,
        squared_hellinger,
    ),
}


@pytest.mark.parametrize("half_span", HALF_SPANS)
@pytest.mark.parametrize("name", EXTREMAL)
def test_the_extremal_pair_attains_the_bound(name, half_span):
    bound, extremal_log_odds, divergence = EXTREMAL[name]
    attained = divergence(*pair(half_span, extremal_log_odds(half_span)))
    assert attained == pytest.approx(bound(half_span), rel=1e-7)


@pytest.mark.parametrize("half_span", HALF_SPANS)
def test_the_extremal_pair_attains_kl(half_span):
    # Mass 1/(2s) - 1/(e^{2s} - 1) with its digits kept at both ends.
    s = half_span
    mass = 0.5 - s / 6 if s < 1e-3 else 1 / (2 * s) - 1 / math.expm1(2 * s)
    assert kl_of_log_ratio(*pair(s, odds(mass))) == pytest.approx(bounds.kl(s), rel=1e-6)


@pytest.mark.parametrize("half_span", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("size", [2, 3, 50])
def test_no_pair_exceeds_a_bound(half_span, size):
    random = np.random.default_rng(size)
    for _ in range(200):
        logits = random.normal(size=size) * 5
        shift = random.choice([-half_span, half_span], size)
        shift[:2] = half_span, -half_span
        p = np.exp(logits - np.logaddexp.reduce(logits))
        moved = logits + shift + random.normal()
        log_q = moved - np.logaddexp.reduce(moved)
        q, ratio = np.exp(log_q), log_q - np.log(p)
        slack = 1 + 1e-9
        assert abs(p - q).sum() / 2 <= bounds.tv(half_span) * slack
        assert abs(p - q).sum() / 2 <= bounds.tv_given_top(half_span, p.max()) * slack + 1e-14
        assert (p * (np.expm1(ratio) - ratio)).sum() <= bounds.kl(half_span) * slack
        assert (q * (np.expm1(-ratio) + ratio)).sum() <= bounds.kl(half_span) * slack
        assert ((q - p) * ratio).sum() <= bounds.jeffreys(half_span) * slack
        assert (q * q / p).sum() - 1 <= bounds.chi2(half_span) * slack + 1e-12
        assert 1 / (q * q / p).sum() >= bounds.effective_sample_share(half_span) / slack
        assert abs(ratio).max() <= bounds.log_ratio(half_span) * slack
        for token in range(size):
            low, high = bounds.log_ratio_range(half_span, p[token])
            assert low - 1e-9 <= ratio[token] <= high + 1e-9
        reward = random.uniform(-2, 3, size)
        assert abs(((q - p) * reward).sum()) <= bounds.reward_drift(half_span, 5.0) * slack
        margin = np.diff(np.sort(logits)[-2:])[0]
        if p.argmax() != q.argmax():
            assert bounds.greedy_flip_possible(half_span, margin)


@pytest.mark.parametrize("half_span", HALF_SPANS)
def test_small_half_spans_follow_their_expansion_and_large_ones_stay_finite(half_span):
    values = [
        bounds.tv(half_span),
        bounds.kl(half_span),
        bounds.jeffreys(half_span),
        bounds.chi2(half_span),
        bounds.squared_hellinger(half_span),
    ]
    assert all(math.isfinite(value) and value > 0 for value in values)
    if half_span <= 1e-4:
        orders = [half_span / 2, half_span**2 / 2, half_span**2, half_span**2, half_span**2 / 8]
        assert values == pytest.approx(orders, rel=1e-7)


def test_kl_is_one_function_across_its_two_forms():
    below, above = bounds.kl(0.1 - 1e-12), bounds.kl(0.1 + 1e-12)
    assert above == pytest.approx(below, rel=1e-10)


def test_a_confident_reference_can_move_less():
    expected = {0.5: 0.05, 0.9: 0.0195, 0.99: 0.0022, 0.999: 0.00022}
    for p_top, most in expected.items():
        assert bounds.tv_given_top(0.1, p_top) == pytest.approx(most, rel=0.02)
    assert bounds.tv_given_top(0.0, 0.9) == 0.0


@pytest.mark.parametrize("half_span", HALF_SPANS)
@pytest.mark.parametrize("p", [1e-40, 1e-9, 0.3, 0.999999])
def test_the_log_ratio_of_a_token_with_known_probability(half_span, p):
    with localcontext(prec=120):
        moved = [Decimal(p) + (1 - Decimal(p)) * (sign * 2 * Decimal(half_span)).exp() for sign in (1, -1)]
        expected = [float(-value.ln()) for value in moved]
    assert bounds.log_ratio_range(half_span, p) == pytest.approx(expected, rel=1e-9)
    assert max(map(abs, expected)) <= bounds.log_ratio(half_span) * (1 + 1e-12)


def test_a_token_of_no_probability_can_move_by_the_whole_span():
    assert bounds.log_ratio_range(50.0, 0.0) == (-100.0, 100.0)
    assert bounds.log_ratio_range(0.1, 0.0) == pytest.approx((-0.2, 0.2))


def test_a_runner_up_at_the_bound_draws_level():
    assert bounds.greedy_flip_possible(0.25, 0.5)
    assert not bounds.greedy_flip_possible(0.25, 0.5000001)


def test_the_policy_gradient_moves_by_twice_the_tv():
    assert bounds.policy_gradient_bias(0.3, 2.0, 5.0) == pytest.approx(20 * bounds.tv(0.3))


@pytest.mark.parametrize("limit", [1e-8, 0.01, 0.5, 0.999])
def test_the_half_span_that_keeps_a_tv_limit(limit):
    assert bounds.tv(bounds.half_span_for_tv(limit)) == pytest.approx(limit, rel=1e-12)


def test_the_half_span_that_keeps_a_clip_range():
    assert [round(bounds.half_span_for_clip(c, c), 4) for c in (0.1, 0.2)] == [0.0477, 0.0912]
    assert round(bounds.half_span_for_clip(0.28, 0.28), 4) == 0.1234
