"""Every bound is attained by a pair of distributions, worked out here with 200 digits from the definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest

from snapline.contracts import bounds

HALF_SPANS = [1e-8, 1e-6, 1e-4, 0.01, 0.0999, 0.1001, 0.4999, 0.5001, 1.0, 3.0, 10.0, 50.0]
PRECISE = 2e-15
Pair = tuple[list[mp.mpf], list[mp.mpf]]


@pytest.fixture(autouse=True)
def digits():
    with mp.workdps(200):
        yield


def pair(half_span: float, mass: mp.mpf, parts: int = 1) -> Pair:
    """Return p and q: logits up by s on an event of that mass, down by s off it, each cut into equal parts."""
    s = mp.mpf(half_span)
    p = [mass / parts] * parts + [(1 - mass) / parts] * parts
    moved = [x * mp.exp(sign * s) for x, sign in zip(p, [1] * parts + [-1] * parts, strict=True)]
    return p, [x / mp.fsum(moved) for x in moved]


def over(pair: Pair, term: Callable[[mp.mpf, mp.mpf], mp.mpf]) -> mp.mpf:
    return mp.fsum(term(p, q) for p, q in zip(*pair, strict=True))


def tv(pair: Pair) -> mp.mpf:
    return over(pair, lambda p, q: abs(p - q)) / 2


def kl(pair: Pair) -> mp.mpf:
    return over(pair, lambda p, q: p * mp.log(p / q))


def jeffreys(pair: Pair) -> mp.mpf:
    return over(pair, lambda p, q: (q - p) * mp.log(q / p))


def chi2(pair: Pair) -> mp.mpf:
    return over(pair, lambda p, q: q * q / p) - 1


def share(pair: Pair) -> mp.mpf:
    return mp.fsum(pair[1]) ** 2 / over(pair, lambda p, q: q * q / p)


def squared_hellinger(pair: Pair) -> mp.mpf:
    return over(pair, lambda p, q: (mp.sqrt(p) - mp.sqrt(q)) ** 2) / 2


def half(s: float) -> mp.mpf:
    return 1 / (1 + mp.exp(mp.mpf(s)))


def of_kl(s: float) -> mp.mpf:
    return 1 / (2 * mp.mpf(s)) - 1 / mp.expm1(2 * mp.mpf(s))


def of_chi2(s: float) -> mp.mpf:
    return 1 / (1 + mp.exp(2 * mp.mpf(s)))


EXTREMAL = {
    "tv": (bounds.tv, half, tv),
    "kl": (bounds.kl, of_kl, kl),
    "kl, the other way": (bounds.kl, lambda s: 1 - pair(s, of_kl(s))[1][0], lambda pair: kl(pair[::-1])),
    "jeffreys": (bounds.jeffreys, half, jeffreys),
    "chi2": (bounds.chi2, of_chi2, chi2),
    "effective sample share": (bounds.effective_sample_share, of_chi2, share),
    "squared hellinger": (bounds.squared_hellinger, half, squared_hellinger),
    "reward drift": (
        lambda s: bounds.reward_drift(s, 4.0),
        half,
        lambda pair: 3 * pair[1][0] - pair[1][1] - (3 * pair[0][0] - pair[0][1]),
    ),
}


@pytest.mark.parametrize("half_span", HALF_SPANS)
@pytest.mark.parametrize("name", EXTREMAL)
def test_the_extremal_pair_attains_the_bound(name, half_span):
    bound, mass, divergence = EXTREMAL[name]
    assert bound(half_span) == pytest.approx(float(divergence(pair(half_span, mass(half_span)))), rel=PRECISE, abs=0)


@pytest.mark.parametrize("half_span", [1e-4, 0.3, 3.0, 20.0])
@pytest.mark.parametrize("name", EXTREMAL)
def test_an_event_of_any_other_mass_stays_within(name, half_span):
    bound, mass, divergence = EXTREMAL[name]
    most, sign = bound(half_span), -1 if divergence is share else 1
    for factor in ("0.5", "0.99", "1.01", "1.9"):
        other = divergence(
            pair(half_span, mass(half_span) * mp.mpf(factor) if factor < "1" else squeezed(mass, half_span))
        )
        assert sign * other < sign * most


def squeezed(mass: Callable[[float], mp.mpf], half_span: float) -> mp.mpf:
    return 1 - (1 - mass(half_span)) * mp.mpf("0.99")


@pytest.mark.parametrize("half_span", HALF_SPANS)
def test_four_tokens_attain_the_policy_gradient_bias(half_span):
    # Scores have mean 0 under p, which two tokens cannot combine with advantages that point one way on the event.
    p, q = pair(half_span, half(half_span), parts=2)
    scores, advantages = [5, -5, 5, -5], [2, -2, -2, 2]
    assert mp.fsum(x * score for x, score in zip(p, scores, strict=True)) == 0
    weights = [score * advantage for score, advantage in zip(scores, advantages, strict=True)]
    bias = mp.fsum((y - x) * weight for x, y, weight in zip(p, q, weights, strict=True))
    assert bounds.policy_gradient_bias(half_span, 2.0, 5.0) == pytest.approx(float(bias), rel=PRECISE, abs=0)


@pytest.mark.parametrize("half_span", HALF_SPANS)
def test_a_vanishing_token_attains_the_log_ratio(half_span):
    p, q = pair(half_span, mp.mpf("1e-150"))
    assert bounds.log_ratio(half_span) == pytest.approx(float(mp.log(q[0] / p[0])), rel=PRECISE, abs=0)


@pytest.mark.parametrize("half_span", HALF_SPANS)
@pytest.mark.parametrize("p", [1e-40, 1e-9, 0.3, 0.5, 0.999999, 1 - 2**-53])
def test_a_token_against_all_others_attains_the_range_of_its_log_ratio(half_span, p):
    (before, _), (up, _) = pair(half_span, mp.mpf(p))
    (_, other), (_, down) = pair(half_span, 1 - mp.mpf(p))
    expected = float(mp.log(down / other)), float(mp.log(up / before))
    assert bounds.log_ratio_range(half_span, p) == pytest.approx(expected, rel=PRECISE, abs=0)


def test_a_token_of_no_probability_can_move_by_the_whole_span():
    assert bounds.log_ratio_range(50.0, 0.0) == (-100.0, 100.0)
    assert bounds.log_ratio_range(0.1, 0.0) == pytest.approx((-0.2, 0.2))


@pytest.mark.parametrize("half_span", HALF_SPANS)
@pytest.mark.parametrize("p_top", [0.5, 0.9, 0.999, 1 - 1e-12])
def test_a_confident_reference_attains_its_own_bound(half_span, p_top):
    # The rest moves up as one, unless the event of `tv` can be made up within it.
    rest = 1 - mp.mpf(p_top)
    attained = tv(pair(half_span, min(rest, half(half_span))))
    assert bounds.tv_given_top(half_span, p_top) == pytest.approx(float(attained), rel=PRECISE, abs=0)
    assert bounds.log_odds_shift(1 - p_top, half_span) == pytest.approx(float(tv(pair(half_span, rest))), rel=PRECISE)


def test_a_confident_reference_can_move_less():
    expected = {0.5: 0.0500, 0.9: 0.0195, 0.99: 0.0022, 0.999: 0.00022}
    for p_top, most in expected.items():
        assert bounds.tv_given_top(0.1, p_top) == pytest.approx(most, rel=0.01)
    assert bounds.tv_given_top(0.0, 0.9) == 0.0
    assert bounds.log_odds_shift(0.0, 1e3) == 0.0


@pytest.mark.parametrize("half_span", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("size", [2, 3, 50])
def test_no_pair_exceeds_a_bound(half_span, size):
    random = np.random.default_rng(size)
    for _ in range(100):
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
        assert (np.sqrt(p) - np.sqrt(q)) @ (np.sqrt(p) - np.sqrt(q)) / 2 <= bounds.squared_hellinger(half_span) * slack
        assert abs(ratio).max() <= bounds.log_ratio(half_span) * slack
        low, high = bounds.log_ratio_range(half_span, p)
        assert (low - 1e-9 <= ratio).all()
        assert (ratio <= high + 1e-9).all()
        reward = random.uniform(-2, 3, size)
        assert abs(((q - p) * reward).sum()) <= bounds.reward_drift(half_span, 5.0) * slack
        if p.argmax() != q.argmax():
            assert bounds.greedy_flip_possible(half_span, np.diff(np.sort(logits)[-2:])[0])


@pytest.mark.parametrize("half_span", HALF_SPANS)
def test_small_half_spans_follow_their_expansion_and_large_ones_stay_finite(half_span):
    names = ("tv", "kl", "jeffreys", "chi2", "squared_hellinger")
    values = [getattr(bounds, name)(half_span) for name in names]
    assert all(math.isfinite(value) and value > 0 for value in values)
    assert bounds.kl(half_span) <= half_span**2 / 2
    if half_span <= 1e-4:
        orders = [half_span / 2, half_span**2 / 2, half_span**2, half_span**2, half_span**2 / 8]
        assert values == pytest.approx(orders, rel=1e-7)


def test_a_runner_up_at_the_bound_draws_level():
    assert bounds.greedy_flip_possible(0.25, 0.5) is True
    assert bounds.greedy_flip_possible(0.25, 0.5000001) is False
    assert bounds.half_span_of_flip(0.5) == 0.25
    exposed = bounds.greedy_flip_possible(0.25, np.array([0.1, 0.5, 0.6, np.nan]))
    assert exposed.tolist() == [True, True, False, True]


VECTORS: dict[str, Callable[..., object]] = {
    "log_ratio": bounds.log_ratio,
    "tv": bounds.tv,
    "kl": bounds.kl,
    "jeffreys": bounds.jeffreys,
    "chi2": bounds.chi2,
    "effective_sample_share": bounds.effective_sample_share,
    "squared_hellinger": bounds.squared_hellinger,
    "reward_drift": lambda s: bounds.reward_drift(s, 2.0),
    "policy_gradient_bias": lambda s: bounds.policy_gradient_bias(s, 2.0, 3.0),
    "tv_given_top": lambda s: bounds.tv_given_top(s, 0.9 + 0 * s),
    "log_ratio_range": lambda s: bounds.log_ratio_range(s, 0.9 + 0 * s)[1],
    "tv_answer": lambda s: bounds.tv_answer(s, 7),
    "kl_answer": lambda s: bounds.kl_answer(s, 7),
    "log_ratio_answer_likely": lambda s: bounds.log_ratio_answer_likely(s, 7, 0.01),
}


@pytest.mark.parametrize("name", VECTORS)
def test_arrays_go_element_by_element_and_floats_give_floats(name):
    bound = VECTORS[name]
    found = bound(np.array(HALF_SPANS).reshape(3, 4))
    assert found.shape == (3, 4)
    alone = [bound(half_span) for half_span in HALF_SPANS]
    assert {type(value) for value in alone} == {float}
    assert found.ravel() == pytest.approx(alone, rel=1e-15, abs=0)
    direction = -1 if name == "effective_sample_share" else 1
    assert all(direction * a <= direction * b for a, b in pairwise(alone)), "a wider half span allows no less"


@pytest.mark.parametrize("name", VECTORS)
def test_nonsense_is_refused_and_what_is_no_number_bounds_nothing(name):
    with pytest.raises(ValueError, match="at least 0"):
        VECTORS[name](-0.1)
    assert math.isnan(VECTORS[name](math.nan))


def test_an_infinite_half_span_gives_what_always_holds():
    found = {name: VECTORS[name](math.inf) for name in ("tv", "kl", "jeffreys", "chi2", "squared_hellinger")}
    assert found == {"tv": 1, "kl": math.inf, "jeffreys": math.inf, "chi2": math.inf, "squared_hellinger": 1}
    assert bounds.effective_sample_share(math.inf) == 0
