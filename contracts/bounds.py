"""What a half span allows: sharp bounds on every divergence one token's logits can show.

With d the difference of two logit vectors, the half span is s = (max d - min d) / 2: the smallest sup norm of d after
any shift, which softmax ignores. Every bound here is attained by some pair of distributions with that half span, so
none can be improved. All are stable from s = 1e-8 to 50, in nats where a logarithm is involved. At a temperature t the
half span is s / t.
"""

from __future__ import annotations

import math


def log_ratio(half_span: float) -> float:
    """Return the largest |log(q/p)| of any token: 2s."""
    return 2 * half_span


def log_ratio_range(half_span: float, p: float) -> tuple[float, float]:
    """Return the smallest and largest log(q/p) of a token with reference probability `p`."""
    lowest = -math.log1p((1 - p) * math.expm1(2 * half_span))
    # log1p keeps the digits of a small half span, the plain logarithm those of a small p.
    if half_span < 0.5:
        return lowest, -math.log1p((1 - p) * math.expm1(-2 * half_span))
    return lowest, -math.log(p + (1 - p) * math.exp(-2 * half_span))


def tv(half_span: float) -> float:
    """Return the largest total variation distance: tanh(s/2)."""
    return math.tanh(half_span / 2)


def tv_given_top(half_span: float, p_top: float) -> float:
    """Return the largest total variation distance when the reference's most likely token has probability `p_top`.

    The worst event holds all of the mass 1/(1 + e^s) that `tv` needs, if the distribution can be split that way; a top
    token heavier than the rest of it leaves only the events it, or the rest, makes up.
    """
    if half_span == 0 or 1 - p_top >= 1 / (1 + math.exp(half_span)):
        return tv(half_span)
    return max(log_odds_shift(p_top, half_span), log_odds_shift(1 - p_top, half_span))


def log_odds_shift(mass: float, half_span: float) -> float:
    """Return how much an event of reference probability `mass` can gain: sigmoid(logit(mass) + 2s) - mass."""
    lift = math.expm1(2 * half_span)
    return mass * (1 - mass) * lift / (1 + mass * lift)


def kl(half_span: float) -> float:
    """Return the largest Kullback-Leibler divergence, either way: s coth s - 1 + ln(sinh s / s), in nats."""
    s = half_span
    if s < 0.1:
        return s**2 / 2 - s**4 / 36 + s**6 / 405 - s**8 / 4200
    return s / math.tanh(s) - 1 + s + math.log1p(-math.exp(-2 * s)) - math.log(2 * s)


def jeffreys(half_span: float) -> float:
    """Return the largest sum of both Kullback-Leibler divergences: 2 s tanh(s/2), in nats."""
    return 2 * half_span * math.tanh(half_span / 2)


def chi2(half_span: float) -> float:
    """Return the largest chi-square divergence: sinh(s)^2."""
    return math.sinh(half_span) ** 2


def effective_sample_share(half_span: float) -> float:
    """Return the smallest share of samples that survives importance weighting: sech(s)^2."""
    return 1 / math.cosh(half_span) ** 2


def squared_hellinger(half_span: float) -> float:
    """Return the largest squared Hellinger distance: 1 - sech(s/2)."""
    return 2 * math.sinh(half_span / 4) ** 2 / math.cosh(half_span / 2)


def reward_drift(half_span: float, reward_range: float) -> float:
    """Return the largest change of a token's expected reward, for rewards within an interval of that length."""
    return reward_range * tv(half_span)


def policy_gradient_bias(half_span: float, advantage: float, score: float) -> float:
    """Return the largest bias of a token's policy gradient, for |advantage| and score norm at most those given."""
    return 2 * advantage * score * tv(half_span)


def greedy_flip_possible(half_span: float, margin: float) -> bool:
    """Return whether the most likely token can change, given the reference's margin between its two best logits."""
    return margin <= 2 * half_span


def half_span_for_tv(limit: float) -> float:
    """Return the largest half span that keeps the total variation distance within `limit`, which is below 1."""
    return 2 * math.atanh(limit)


def half_span_for_clip(low: float, high: float) -> float:
    """Return the largest half span that alone cannot push a ratio q/p out of the clip range [1 - low, 1 + high]."""
    return min(math.log1p(high), -math.log1p(-low)) / 2
