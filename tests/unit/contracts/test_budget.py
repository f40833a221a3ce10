"""A budget of engine time goes to the work that avoids most staleness a second."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from workbench import NOW, Home, Replayed

from snapline.contracts.budget import DEFAULT_CHANGES_A_DAY, Work, schedule
from snapline.contracts.inspection import Inspector
from snapline.contracts.plan import ModelPlan, Step, StepKind
from snapline.lineage.model import ModelVersion

LATER = NOW + timedelta(days=1000)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def model(home: Home) -> ModelVersion:
    """A version that was certified for production once."""
    model = home.register()
    home.certify(model, Replayed())
    return model


@pytest.fixture(scope="module")
def inspector(home: Home, model: ModelVersion) -> Inspector:
    return home.inspector(at=LATER)


def certify(model: ModelVersion, target: str, seconds: int | None) -> Step:
    return Step(StepKind.CERTIFY, model, (), seconds, target, "tiny")


def plan(model: ModelVersion, *steps: Step) -> ModelPlan:
    return ModelPlan(model, (), steps, ())


def told(work: tuple[Work, ...]) -> list[tuple[str | None, bool | None]]:
    return [(piece.plan.steps[-1].target, piece.within_budget) for piece in work]


def test_nothing_to_do_spends_nothing(model: ModelVersion, inspector: Inspector) -> None:
    assert schedule([], 10, inspector) == schedule([plan(model)], 10, inspector) == ()


def test_among_equals_the_cheaper_comes_first_until_the_budget_is_spent(
    model: ModelVersion, inspector: Inspector
) -> None:
    steps = [certify(model, name, seconds) for name, seconds in (("dear", 1000), ("cheap", 10), ("mid", 100))]
    found = schedule([plan(model, *steps)], 110, inspector)
    assert told(found) == [("cheap", True), ("mid", True), ("dear", False)]
    assert told(schedule([plan(model, *steps)], 109, inspector)) == [("cheap", True), ("mid", False), ("dear", False)]
    assert {piece.changes_a_day for piece in found} == {DEFAULT_CHANGES_A_DAY}
    worth = [piece.avoided_per_second for piece in found]
    assert worth == sorted(worth, reverse=True)


def test_what_costs_nothing_is_first_and_what_nobody_timed_is_last(model: ModelVersion, inspector: Inspector) -> None:
    judged = Step(StepKind.REJUDGE, model, (), 0, "judged", "tiny")
    steps = certify(model, "untimed", None), certify(model, "timed", 5), judged
    found = schedule([plan(model, *steps)], 1, inspector)
    assert told(found) == [("judged", True), ("timed", False), ("untimed", None)]
    assert [piece.seconds for piece in found] == [0, 5, None]


def test_inputs_that_seldom_change_are_worth_more_and_a_smaller_piece_still_fits(
    model: ModelVersion, inspector: Inspector
) -> None:
    steps = certify(model, "fickle", 10), certify(model, "production", 50)
    found = schedule([plan(model, *steps)], 40, inspector)
    assert told(found) == [("production", False), ("fickle", True)]
    assert found[0].changes_a_day == pytest.approx(0.0011, rel=0.01)


def test_a_version_made_anew_and_its_certificates_are_one_piece(model: ModelVersion, inspector: Inspector) -> None:
    rebuild = Step(StepKind.MATERIALIZE, model, (), 30)
    (piece,) = schedule([plan(model, rebuild, certify(model, "a", 5), certify(model, "b", 5))], 39, inspector)
    assert (piece.seconds, piece.within_budget, len(piece.plan.steps)) == (40, False, 3)
    (piece,) = schedule([plan(model, rebuild, certify(model, "a", None))], 1000, inspector)
    assert (piece.seconds, piece.within_budget) == (None, None)
    (piece,) = schedule([plan(model, rebuild)], 30, inspector)
    assert piece.within_budget is True
    assert piece.changes_a_day == pytest.approx(0.0011, rel=0.01)


def test_a_certificate_given_again_unchanged_slows_the_estimate(tmp_path: Path) -> None:
    home = Home(tmp_path)
    model = home.register()
    home.certify(model, Replayed())
    step = plan(model, certify(model, "production", 5))
    (once,) = schedule([step], 10, home.inspector(at=LATER))
    home.certify(model, Replayed())
    (twice,) = schedule([step], 10, home.inspector(at=LATER))
    assert twice.changes_a_day == pytest.approx(0.00102, rel=0.01)
    assert twice.changes_a_day < once.changes_a_day
