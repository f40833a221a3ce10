"""Whatever the half span and the event, no bound is exceeded, and every inverse leads back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from snapline.contracts import bounds

half_spans = st.floats(1e-8, 50)
log_odds = st.floats(-20, 20)
BOUNDED = ("tv", "squared_hellinger", "effective_sample_share")
UNBOUNDED = ("kl", "jeffreys", "chi2", "log_ratio")


@given(half_spans, log_odds)
def test_no_event_gains_more_than_the_bounds_say(half_span: float, odds: float) -> None:
    # 1 - p has lost digits of a small p: the slack is what is left of them.
    p, rest = np.exp(-np.logaddexp(0, -odds)), np.exp(-np.logaddexp(0, odds))
    gain = bounds.log_odds_shift(p, half_span)
    up, down = bounds.log_ratio_range(half_span, p)[1], bounds.log_ratio_range(half_span, rest)[0]
    slack = 1 + 1e-6
    assert 0 <= gain <= bounds.tv(half_span) * slack
    assert gain <= bounds.tv_given_top(half_span, max(p, rest)) * slack
    assert -bounds.log_ratio(half_span) <= down <= 0 <= up <= bounds.log_ratio(half_span)
    assert abs(up - down - 2 * half_span) <= 1e-6 * half_span
    assert gain * (up - down) <= bounds.jeffreys(half_span) * slack
    moved = np.array([p * np.expm1(up) ** 2, rest * np.expm1(down) ** 2])
    assert moved.sum() <= bounds.chi2(half_span) * slack


@given(st.floats(1e-8, 15))
def test_an_inverse_leads_back(half_span: float) -> None:
    for name in (*BOUNDED, *UNBOUNDED):
        back = getattr(bounds, f"half_span_for_{name}")(getattr(bounds, name)(half_span))
        # A bound close to 1 has lost the digits that would tell large half spans apart.
        lost = 1e-16 * np.exp(half_span) if name in ("tv", "squared_hellinger") else 0.0
        lost += 1e-16 / half_span if name == "effective_sample_share" else 0.0
        assert abs(back - half_span) <= 1e-11 * half_span + 4 * lost, name


@given(half_spans, st.integers(1, 10_000))
def test_bounds_of_answers_are_ordered(half_span: float, tokens: int) -> None:
    one, answer = bounds.tv(half_span), bounds.tv_answer(half_span, tokens)
    slack = 1 + 1e-9
    assert one <= answer * slack
    assert answer <= bounds.tv_answer_of_tv(one, tokens) * slack
    assert bounds.tv_answer_of_tv(one, tokens) <= tokens * one * slack
    assert answer <= bounds.tv_answer_of_kl(bounds.kl(half_span), tokens) * slack
    assert answer <= bounds.tv_answer(half_span, tokens + 1) * slack


@given(st.floats(1e-9, 0.999), st.integers(1, 10_000))
def test_the_half_span_of_an_answer_leads_back(limit: float, tokens: int) -> None:
    found = bounds.half_span_for_tv_answer(limit, tokens)
    assert abs(bounds.tv_answer(found, tokens) - limit) <= 1e-10 * limit


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_looser_limit_never_asks_for_a_smaller_half_span(one: float, other: float) -> None:
    for name in ("kl", "jeffreys", "chi2", "log_ratio", "tv", "squared_hellinger"):
        inverse = getattr(bounds, f"half_span_for_{name}")
        assert inverse(min(one, other)) <= inverse(max(one, other)), name
