"""Bounds of whole answers, against sequences of tokens whose distributions are known exactly."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from snapline.contracts import bounds

LENGTHS = [1, 2, 7, 100, 4000]


def worst_tokens(half_span: float, tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return P, Q and log Q/P by the count of events, for independent tokens that each attain `bounds.tv`."""
    counts, mass = np.arange(tokens + 1), 1 / (1 + np.exp(half_span))
    return (
        binom.pmf(counts, tokens, mass),
        binom.pmf(counts, tokens, 1 - mass),
        (2 * counts - tokens) * half_span,
    )


def test_one_token_attains_the_bound_of_an_answer():
    for half_span in (1e-8, 1e-3, 0.4, 2.5, 50.0):
        assert bounds.tv_answer(half_span, 1) == pytest.approx(bounds.tv(half_span), rel=1e-15)


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("half_span", [1e-3, 0.05, 0.5])
def test_independent_worst_tokens_come_within_a_factor_of_it(half_span, tokens):
    p, q, log_ratio = worst_tokens(half_span, tokens)
    attained, bound = abs(p - q).sum() / 2, bounds.tv_answer(half_span, tokens)
    assert attained <= bound * (1 + 1e-9)
    assert bound <= 1.26 * attained or tokens < 100
    assert (q * log_ratio).sum() <= bounds.kl_answer(half_span, tokens) * (1 + 1e-9)


@pytest.mark.parametrize("tokens", LENGTHS)
def test_no_other_bound_of_a_half_span_is_tighter(tokens):
    half_spans = np.geomspace(1e-6, 50, 200)
    bound = bounds.tv_answer(half_spans, tokens) * (1 - 1e-12)
    assert (bound <= bounds.tv_answer_of_tv(bounds.tv(half_spans), tokens)).all()
    assert (bound <= bounds.tv_answer_of_kl(bounds.kl(half_spans), tokens)).all()


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("distance", [1e-9, 0.01, 0.6, 1.0])
def test_tokens_that_give_themselves_away_attain_the_bound_of_a_tv_per_token(distance, tokens):
    # p and q share all but a mass of `distance`, each on a symbol of its own: they overlap in (1 - distance)^T.
    overlap = float(np.prod(np.full(tokens, 1 - distance))) if distance > 1e-3 else np.exp(tokens * np.log1p(-distance))
    assert 1 - bounds.tv_answer_of_tv(distance, tokens) == pytest.approx(overlap, rel=1e-9, abs=1e-15)
    assert bounds.tv_answer_of_tv(distance, tokens) <= tokens * distance * (1 + 1e-12)


@pytest.mark.parametrize("tokens", LENGTHS)
def test_a_divergence_per_token_bounds_the_distance_of_answers(tokens):
    for half_span in (0.01, 0.3, 3.0):
        p, q, log_ratio = worst_tokens(half_span, tokens)
        per_token = max(0.0, (q * log_ratio).sum() / tokens)
        assert abs(p - q).sum() / 2 <= bounds.tv_answer_of_kl(per_token, tokens) + 1e-12


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("alpha", [0.2, 0.01, 1e-6])
def test_the_likely_log_ratio_is_exceeded_no_more_often_than_stated(tokens, alpha):
    for half_span in (0.01, 0.3, 3.0):
        _, q, log_ratio = worst_tokens(half_span, tokens)
        likely = bounds.log_ratio_answer_likely(half_span, tokens, alpha)
        assert q[log_ratio > likely].sum() <= alpha
        assert likely <= bounds.log_ratio_answer(half_span, tokens)


def test_published_figures_of_a_long_answer():
    assert bounds.log_ratio_answer(0.05, 1000) == pytest.approx(100)
    assert bounds.log_ratio_answer_likely(0.05, 1000, 1e-6) == pytest.approx(9.6, abs=0.05)


def test_the_divergence_of_independent_tokens_is_attained_exactly():
    s, tokens = 0.3, 12
    mass = 1 / (2 * s) - 1 / np.expm1(2 * s)
    moved = mass * np.exp(2 * s) / (1 + mass * np.expm1(2 * s))
    counts = np.arange(tokens + 1)
    p, q = binom.pmf(counts, tokens, mass), binom.pmf(counts, tokens, moved)
    assert (p * np.log(p / q)).sum() == pytest.approx(bounds.kl_answer(s, tokens), rel=1e-12)


def test_an_answer_has_tokens_and_a_level_is_a_probability():
    with pytest.raises(ValueError, match="at least one token"):
        bounds.tv_answer(0.1, 0)
    for alpha in (0.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match="within 0 and 1"):
            bounds.log_ratio_answer_likely(0.1, 3, alpha)
