"""What a half span allows: sharp bounds on every divergence one token's logits, or an answer's, can show.

With d the difference of two logit vectors, the half span is s = (max d - min d) / 2: the smallest sup norm of d after
any shift, which softmax ignores. Every bound of one token is attained by some pair of distributions with that half
span, so none can be improved; the pair is two-valued, log(q/p) up by s on an event and down by s off it, and only the
event's mass differs from bound to bound. All are stable from s = 1e-8 to 50, in nats where a logarithm is involved. At
a temperature t the half span is s / t.

Functions take a float and give a float, or take arrays and work element by element. A negative half span or limit, or
no token at all, is a ValueError. NaN stays NaN, which is under no limit, and an infinite half span gives the bound that
always holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Number = TypeVar("Number", float, Floats)

# s coth s - 1 + ln(sinh s / s) = sum over n of 4^n B_2n / (2n)! (1 + 1/(2n)) s^2n, with B the Bernoulli numbers.
_KL_SERIES = (
    1 / 2,
    -1 / 36,
    1 / 405,
    -1 / 4200,
    1 / 42525,
    -691 / 294698250,
    2 / 8513505,
    -3617 / 153243090000,
    43867 / 18463876806375,
    -174611 / 729204507281250,
)
_KL_OF_ONE = 0.474  # just under kl(1): kl(s)/s^2 falls and kl(s)/s grows with s
_BISECTIONS = 80


def log_ratio(half_span: Number) -> Number:
    """Return the largest |log(q/p)| of any token: 2s, approached as its probability falls to 0."""
    return _shaped(half_span, 2 * _checked(half_span))


def log_ratio_range(half_span: Number, p: Number) -> tuple[Number, Number]:
    """Return the smallest and largest log(q/p) of a token with reference probability `p`."""
    s, p_array = _checked(half_span), np.asarray(p, dtype=np.float64)
    rest = 1 - p_array
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        lowest = np.maximum(-np.log1p(rest * np.expm1(2 * s)), -2 * s)
        # log1p keeps the digits where little moves, the plain logarithm those of a small p.
        kept = p_array + rest * np.exp(-2 * s)
        highest = np.where(kept < 0.5, -np.log(kept), -np.log1p(rest * np.expm1(-2 * s)))
    return _shaped(half_span, lowest), _shaped(half_span, np.minimum(highest, 2 * s))


def tv(half_span: Number) -> Number:
    """Return the largest total variation distance: tanh(s/2), of an event with mass 1/(1 + e^s)."""
    return _shaped(half_span, np.tanh(_checked(half_span) / 2))


def tv_given_top(half_span: Number, p_top: Number) -> Number:
    """Return the largest total variation distance when the reference's most likely token has probability `p_top`.

    The worst event holds all of the mass 1/(1 + e^s) that `tv` needs, if the distribution can be split that way. A top
    token heavier than the rest of it leaves only the events the rest makes up: with less than half of the mass it gains
    more than the top token would.
    """
    s, rest = _checked(half_span), 1 - np.asarray(p_top, dtype=np.float64)
    splits = rest >= 1 / (1 + np.exp(np.minimum(s, 700)))
    return _shaped(half_span, np.where(splits, np.tanh(s / 2), _shift(rest, s)))


def log_odds_shift(mass: Number, half_span: Number) -> Number:
    """Return how much an event of reference probability `mass` can gain: sigmoid(logit(mass) + 2s) - mass."""
    return _shaped(half_span, _shift(np.asarray(mass, dtype=np.float64), _checked(half_span)))


def kl(half_span: Number) -> Number:
    """Return the largest Kullback-Leibler divergence, either way: s coth s - 1 + ln(sinh s / s), in nats.

    At most s^2/2; attained by an event of mass 1/(2s) - 1/(e^{2s} - 1).
    """
    return _shaped(half_span, _kl(_checked(half_span)))


def jeffreys(half_span: Number) -> Number:
    """Return the largest sum of both Kullback-Leibler divergences: 2 s tanh(s/2), in nats; mass 1/(1 + e^s)."""
    return _shaped(half_span, _jeffreys(_checked(half_span)))


def chi2(half_span: Number) -> Number:
    """Return the largest chi-square divergence: sinh(s)^2, of an event with mass 1/(1 + e^{2s})."""
    with np.errstate(over="ignore"):
        return _shaped(half_span, np.sinh(_checked(half_span)) ** 2)


def effective_sample_share(half_span: Number) -> Number:
    """Return the smallest share of samples that survives importance weighting: sech(s)^2, where chi2 is largest."""
    with np.errstate(over="ignore"):
        return _shaped(half_span, 1 / np.cosh(_checked(half_span)) ** 2)


def squared_hellinger(half_span: Number) -> Number:
    """Return the largest squared Hellinger distance, 1 - sum sqrt(pq): 1 - sech(s/2); mass 1/(1 + e^s)."""
    squared = np.tanh(_checked(half_span) / 4) ** 2
    return _shaped(half_span, 2 * squared / (1 + squared))


def reward_drift(half_span: Number, reward_range: float) -> Number:
    """Return the largest change of a token's expected reward, for rewards within an interval of that length.

    Attained by the reward that pays on the event of `tv` and nowhere else.
    """
    return _shaped(half_span, reward_range * np.tanh(_checked(half_span) / 2))


def policy_gradient_bias(half_span: Number, advantage: float, score: float) -> Number:
    """Return the largest bias of a token's policy gradient, for |advantage| and score norm at most those given.

    It is 2 A G tanh(s/2). Scores have mean 0 under the policy, so two tokens do not attain it; four do: the event of
    `tv` and the rest, each cut into halves with opposite scores and opposite advantages.
    """
    return _shaped(half_span, 2 * advantage * score * np.tanh(_checked(half_span) / 2))


@overload
def greedy_flip_possible(half_span: float, margin: float) -> bool: ...
@overload
def greedy_flip_possible(half_span: ArrayLike, margin: ArrayLike) -> NDArray[np.bool_]: ...
def greedy_flip_possible(half_span: ArrayLike, margin: ArrayLike) -> bool | NDArray[np.bool_]:
    """Return whether the most likely token can change, given the reference's margin between its two best logits.

    Impossible only above 2s. The share of positions where it is possible, the flip exposure, bounds the flip rate from
    above and needs the reference only. NaN rules nothing out.
    """
    possible: NDArray[np.bool_] = np.logical_not(np.asarray(margin) > 2 * _checked(half_span))
    return possible if possible.ndim else bool(possible)


def tv_answer(half_span: Number, tokens: int) -> Number:
    """Return a bound on the total variation distance of whole answers: sqrt(1 - sech(s/2)^{2T}), about s sqrt(T) / 2.

    The overlap sum sqrt(PQ) of two sequence distributions is at least the product of the tokens' smallest overlaps,
    sech(s/2) each, whatever each token depends on; and TV <= sqrt(1 - overlap^2), Le Cam's inequality. It is sharp for
    one token, and for any number at or below 1 - (1 - tanh(s/2))^T and both bounds that `tv_answer_of_kl` gives. Many
    independent worst tokens come within a factor sqrt(pi/2) = 1.25 of it.
    """
    return _shaped(half_span, np.sqrt(-np.expm1(-2 * _tokens(tokens) * _log_cosh(_checked(half_span) / 2))))


def tv_answer_of_tv(tv_token: Number, tokens: int) -> Number:
    """Return the largest total variation distance of answers whose tokens are within `tv_token`: 1 - (1 - tv)^T.

    Sharp when nothing but each token's distance is known: each token gives itself away with that probability.
    """
    with np.errstate(divide="ignore"):
        kept = np.log1p(-np.minimum(_checked(tv_token), 1))
    return _shaped(tv_token, -np.expm1(_tokens(tokens) * kept))


def tv_answer_of_kl(kl_token: Number, tokens: int) -> Number:
    """Return a bound on the total variation distance of answers whose tokens have at most that expected divergence.

    The smaller of Pinsker's sqrt(T kl / 2) and of Bretagnolle and Huber's sqrt(1 - exp(-T kl)). For the `kl` of a half
    span `tv_answer` is tighter; this one serves a divergence that was measured.
    """
    total = _tokens(tokens) * _checked(kl_token)
    return _shaped(kl_token, np.minimum(np.sqrt(total / 2), np.sqrt(-np.expm1(-total))))


def kl_answer(half_span: Number, tokens: int) -> Number:
    """Return the largest Kullback-Leibler divergence of answers, either way: T times a token's."""
    return _shaped(half_span, _tokens(tokens) * _kl(_checked(half_span)))


def log_ratio_answer(half_span: Number, tokens: int) -> Number:
    """Return the largest |log Q(y)/P(y)| of any answer: 2sT."""
    return _shaped(half_span, 2 * _tokens(tokens) * _checked(half_span))


def log_ratio_answer_likely(half_span: Number, tokens: int, alpha: float) -> Number:
    """Return what log Q(y)/P(y) exceeds with probability at most `alpha`, for answers y sampled from Q.

    T kl(s) + s sqrt(2 T ln(1/alpha)): each token's log ratio has mean at most kl(s) and lies in an interval of length
    2s, so Azuma and Hoeffding's inequality holds for the sum; never above `log_ratio_answer`. By symmetry it bounds
    log P(y)/Q(y) of answers from P.

    Raises:
        ValueError: `alpha` is not within (0, 1).
    """
    if not 0 < alpha < 1:
        raise ValueError(f"expected a probability within 0 and 1, found {alpha}")
    s, count = _checked(half_span), _tokens(tokens)
    likely = count * _kl(s) + s * np.sqrt(-2 * count * np.log(alpha))
    return _shaped(half_span, np.minimum(likely, 2 * count * s))


def half_span_for_log_ratio(limit: Number) -> Number:
    """Return the largest half span that keeps every |log(q/p)| within `limit`."""
    return _shaped(limit, _checked(limit) / 2)


def half_span_for_tv(limit: Number) -> Number:
    """Return the largest half span that keeps the total variation distance within `limit`; infinite from 1 on."""
    with np.errstate(divide="ignore"):
        return _shaped(limit, 2 * np.arctanh(np.minimum(_checked(limit), 1)))


def half_span_for_tv_answer(limit: Number, tokens: int) -> Number:
    """Return the largest half span that `tv_answer` keeps within `limit` over so many tokens; infinite from 1 on."""
    kept = np.minimum(_checked(limit), 1)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        overlap = np.where(kept < 0.5, np.log1p(-(kept**2)), np.log1p(-kept) + np.log1p(kept))
        log_cosh = -overlap / (2 * _tokens(tokens))
        # acosh(e^y), without the cancellation; for a large y it is y + ln 2.
        root = np.where(log_cosh < 300, np.arcsinh(np.sqrt(np.expm1(2 * log_cosh))), log_cosh + np.log(2))
    return _shaped(limit, 2 * root)


def half_span_for_kl(limit: Number) -> Number:
    """Return the largest half span, in floats, that keeps both Kullback-Leibler divergences within `limit` nats."""
    x = _checked(limit)
    return _shaped(limit, _inverse(_kl, x, np.sqrt(2 * x), np.maximum(np.sqrt(x / _KL_OF_ONE), x / _KL_OF_ONE)))


def half_span_for_jeffreys(limit: Number) -> Number:
    """Return the largest half span, in floats, that keeps their sum within `limit` nats."""
    x = _checked(limit)
    # tanh(s/2) is at most 1 and s/2; it is at least .75 above s = 2, and at least .75 s/2 below.
    low, high = np.maximum(np.sqrt(x), x / 2), np.maximum(np.sqrt(x / 0.75), x / 1.5)
    return _shaped(limit, _inverse(_jeffreys, x, low, high))


def half_span_for_chi2(limit: Number) -> Number:
    """Return the largest half span that keeps the chi-square divergence within `limit`."""
    return _shaped(limit, np.arcsinh(np.sqrt(_checked(limit))))


def half_span_for_effective_sample_share(share: Number) -> Number:
    """Return the largest half span that leaves at least this share of samples; infinite for none.

    Raises:
        ValueError: `share` is not within 0 and 1.
    """
    kept = _checked(share)
    if (kept > 1).any():
        raise ValueError(f"expected a share within 0 and 1, found {share}")
    with np.errstate(divide="ignore"):
        return _shaped(share, np.arcsinh(np.sqrt((1 - kept) / kept)))


def half_span_for_squared_hellinger(limit: Number) -> Number:
    """Return the largest half span that keeps the squared Hellinger distance within `limit`; infinite from 1 on."""
    x = np.minimum(_checked(limit), 1)
    with np.errstate(divide="ignore"):
        return _shaped(limit, 4 * np.arctanh(np.sqrt(x / (2 - x))))


def half_span_for_reward_drift(limit: Number, reward_range: float) -> Number:
    """Return the largest half span that keeps the reward drift within `limit`; infinite from the whole range on."""
    return half_span_for_tv(_shaped(limit, _checked(limit) / reward_range))


def half_span_for_policy_gradient_bias(limit: Number, advantage: float, score: float) -> Number:
    """Return the largest half span that keeps a policy gradient's bias within `limit`."""
    return half_span_for_tv(_shaped(limit, _checked(limit) / (2 * advantage * score)))


def half_span_for_clip(low: Number, high: Number) -> Number:
    """Return the largest half span that alone cannot push a ratio q/p out of the clip range [1 - low, 1 + high]."""
    with np.errstate(divide="ignore"):
        room = np.minimum(np.log1p(_checked(high)), -np.log1p(-np.minimum(_checked(low), 1)))
    return _shaped(low, room / 2)


def half_span_of_flip(margin: Number) -> Number:
    """Return the smallest half span that can flip a choice with that reference margin: a flip proves at least it."""
    return _shaped(margin, _checked(margin) / 2)


def _checked(given: ArrayLike) -> Floats:
    figures = np.asarray(given, dtype=np.float64)
    if (figures < 0).any():
        raise ValueError(f"expected a figure of at least 0, found {figures.min()}")
    return figures


def _tokens(tokens: int) -> int:
    if not tokens >= 1:
        raise ValueError(f"expected at least one token, found {tokens}")
    return tokens


def _shaped(like: Number, found: Any) -> Number:  # noqa: ARG001
    """Return an array as it is and a single figure as a float; `like` is there for its type."""
    result: Number = found if np.ndim(found) else found.item()
    return result


def _shift(mass: Floats, half_span: Floats) -> Floats:
    down = np.exp(-2 * half_span)
    gain = -np.expm1(-2 * half_span)
    with np.errstate(invalid="ignore"):
        return np.where(mass == 0, 0.0, mass * (1 - mass) * gain / (down + mass * gain))


def _kl(s: Floats) -> Floats:
    small = np.minimum(s, 0.5) ** 2
    series = small * np.polynomial.polynomial.polyval(small, _KL_SERIES)
    large = np.clip(s, 0.5, 1e300)
    # ln sinh s = s + ln(1 - e^{-2s}) - ln 2, which neither overflows nor cancels.
    closed = large / np.tanh(large) - 1 + large + np.log1p(-np.exp(-2 * large)) - np.log(2 * large)
    return np.where(s < 0.5, series, np.where(np.isinf(s), np.inf, closed))


def _jeffreys(s: Floats) -> Floats:
    return np.asarray(2 * s * np.tanh(s / 2))


def _log_cosh(u: Floats) -> Floats:
    near = np.log1p(2 * np.sinh(np.minimum(u, 1) / 2) ** 2)
    return np.where(u < 1, near, u + np.log1p(np.exp(-2 * u)) - np.log(2))


def _inverse(bound: Callable[[Floats], Floats], limit: Floats, low: Floats, high: Floats) -> Floats:
    """Return the largest argument found whose bound is within `limit`, between two that enclose it."""
    with np.errstate(invalid="ignore"):
        for _ in range(_BISECTIONS):
            middle = low + (high - low) / 2
            within = bound(middle) <= limit
            low, high = np.where(within, middle, low), np.where(within, high, middle)
    return np.where(np.isinf(limit), np.inf, low)
