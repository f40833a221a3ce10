"""The soundness bench passes what is sound, catches what is not, and draws traffic whose truth it knows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from snapline.cli.bench import soundness as command
from snapline.cli.benchmarks import soundness, traffic
from snapline.cli.benchmarks.soundness import Estimator
from snapline.contracts import estimators

CONTRACTS = 300


@pytest.mark.parametrize("estimator", soundness.SOUND, ids=lambda estimator: estimator.name)
def test_a_sound_estimator_is_met_on_every_kind(estimator: Estimator) -> None:
    rows = soundness.soundness(estimator, CONTRACTS)
    assert len(rows) == len(estimator.kinds)
    assert all(row.met for row in rows), [row.line() for row in rows]


@pytest.mark.parametrize("estimator", soundness.UNSOUND, ids=lambda estimator: estimator.name)
def test_an_unsound_estimator_is_missed_and_told_as_caught(estimator: Estimator) -> None:
    assert not any(row.met for row in soundness.soundness(estimator, CONTRACTS))
    assert all(row.met for row in soundness.caught(estimator, CONTRACTS))


def test_a_level_that_is_not_the_stated_one_is_missed() -> None:
    def thrice(values: np.ndarray, limit: float) -> bool:
        return estimators.rate_upper(int(values.sum()), len(values), 3 * traffic.ALPHA) <= limit

    (row,) = soundness.soundness(Estimator("thrice", thrice, {"events": traffic.events}), 2000)
    assert not row.met


def test_the_allowance_is_three_binomial_standard_errors() -> None:
    row = soundness.soundness(soundness.SOUND[0], 10_000 // 100)[0]
    assert row.target == "at most 11.54%"


@pytest.mark.parametrize("kinds", ["MEANS", "RATES", "DIFFERENCES"])
def test_the_truth_of_a_kind_is_its_mean(kinds: str) -> None:
    for name, kind in getattr(traffic, kinds).items():
        drawn = kind(np.random.default_rng(5), 40, 4000).per_prompt()
        errors = drawn.values.mean(axis=1) - drawn.truth
        spread = drawn.values.std(axis=1) / np.sqrt(4000) + 1e-3
        assert (abs(errors) < 5 * spread).all(), name


@pytest.mark.parametrize("name", traffic.QUANTILES)
def test_the_truth_of_a_kind_is_its_quantile(name: str) -> None:
    drawn = traffic.QUANTILES[name](np.random.default_rng(5), 40, 4000)
    below = (drawn.values < drawn.truth[:, np.newaxis]).mean(axis=1)
    at_most = (drawn.values <= drawn.truth[:, np.newaxis]).mean(axis=1)
    slack = 5 * np.sqrt(traffic.QUANTILE * (1 - traffic.QUANTILE) / 4000)
    assert (below <= traffic.QUANTILE + slack).all()
    assert (at_most >= traffic.QUANTILE - slack).all()


def test_values_of_a_mean_lie_within_0_and_1() -> None:
    for kind in traffic.MEANS.values():
        values = kind(np.random.default_rng(1), 10, 50).per_prompt().values
        assert ((values >= 0) & (values <= 1)).all()


def test_the_command_tells_every_estimator_beside_hoeffding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(contracts=20, out=tmp_path / "rows.json", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["results"] == json.loads((tmp_path / "rows.json").read_text())["results"]
    rows = told["results"]
    said = {(row["subject"], row["what"].split(":")[0]) for row in rows}
    assert {("soundness", estimator.name) for estimator in soundness.SOUND} <= said
    assert {("control", estimator.name) for estimator in soundness.UNSOUND} <= said
    assert {("soundness", "holm"), ("soundness", "bonferroni"), ("power", "mean_sequence")} <= said
    power = [row for row in rows if row["subject"] == "power"]
    assert all(row["ratio"] < 1 for row in power if not row["what"].startswith("Hoeffding"))
