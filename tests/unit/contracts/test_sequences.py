"""Limits that hold at every look."""

from __future__ import annotations

import math

import numpy as np
import pytest

from snapline.contracts.estimators import hoeffding_upper, mean_sequence, mean_sequence_lower, mean_upper


def test_it_is_its_formula_step_by_step():
    values, alpha = np.random.default_rng(0).beta(1, 5, 40), 0.01
    weighted = bets = paid = 0.0
    guess, spread, total, squares, smallest = 0.5, 0.25, 0.5, 0.25, 1.0
    for i, x in enumerate(values, start=1):
        bet = min(0.9, math.sqrt(2 * math.log(1 / alpha) / (spread * i * math.log(1 + i))))
        weighted, bets = weighted + bet * x, bets + bet
        paid += (x - guess) ** 2 * (-math.log(1 - bet) - bet)
        smallest = min(smallest, (weighted + math.log(1 / alpha) + paid) / bets)
        assert mean_sequence(values[:i], alpha)[-1] == pytest.approx(smallest, rel=1e-12)
        total += x
        guess = total / (i + 1)
        squares += (x - guess) ** 2
        spread = squares / (i + 1)


def test_what_was_said_before_stays_said():
    values = np.random.default_rng(1).random(50)
    whole = mean_sequence(values, 0.05)
    assert whole[:20].tolist() == mean_sequence(values[:20], 0.05).tolist()
    assert (np.diff(whole) <= 0).all()
    assert (np.diff(mean_sequence_lower(values, 0.05)) >= 0).all()


def test_every_look_is_covered_at_once():
    # Peeking at a fixed-n limit is wrong far more often than it says; the sequence is not.
    alpha, runs, n, mean = 0.1, 1500, 300, 0.5
    coins = (np.random.default_rng(7).random((runs, n)) < mean).astype(float)
    above = sum(mean_sequence(run, alpha)[-1] < mean for run in coins)
    below = sum(mean_sequence_lower(run, alpha)[-1] > mean for run in coins)
    counts = np.arange(1, n + 1)
    normal = np.cumsum(coins, axis=1) / counts + 1.2816 * 0.5 / np.sqrt(counts)
    allowed = runs * alpha + 3 * math.sqrt(runs * alpha * (1 - alpha))
    assert max(above, below) <= allowed < (normal < mean).any(axis=1).sum()


def test_looking_costs_little_where_values_are_small():
    values = np.random.default_rng(2).beta(1, 99, 500)
    looked, once = mean_sequence(values, 0.05)[-1], mean_upper(values, 0.05)
    assert values.mean() < looked < values.mean() + 1.5 * (once - values.mean())
    assert looked < hoeffding_upper(values, 0.05)
    assert mean_sequence(np.zeros(1000), 0.05)[-1] < 1.35 * mean_upper(np.zeros(1000), 0.05)


def test_a_faulty_engine_is_convicted_at_some_look():
    lower = mean_sequence_lower(np.random.default_rng(3).beta(2, 20, 400), 0.01)
    assert lower[10] < 0.02 < lower[-1] < 2 / 22


def test_no_values_give_no_limits_and_nonsense_is_refused():
    assert mean_sequence([], 0.05).tolist() == mean_sequence_lower([], 0.05).tolist() == []
    assert mean_sequence([1.0, 1.0], 0.05).tolist() == [1, 1]
    for sequence in (mean_sequence, mean_sequence_lower):
        for values in ([0.5, math.nan], [1.5], [-0.1]):
            with pytest.raises(ValueError, match="within 0 and 1"):
                sequence(values, 0.05)
        with pytest.raises(ValueError, match="error probability"):
            sequence([0.5], 0.0)
