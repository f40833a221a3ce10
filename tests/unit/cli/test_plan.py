"""Plans and applying them under a budget, over a home on disk with a toy trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from lineage_home import VIEW, LineageHome

from snapline.cli import materialize as materializing
from snapline.cli.output import Exit, Output
from snapline.cli.plan import Outcome, apply, plan, seconds_of
from snapline.cli.wiring import Home, initialise
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError, TrainerError
from snapline.lineage.register import Origin
from snapline.lineage.series import CutOptions


@pytest.fixture
def made(tmp_path: Path) -> LineageHome:
    """Two models from a snapshot whose rows were restated since, and one that Snapline never made itself."""
    initialise(tmp_path / "home", BulkAlgorithm.BLAKE3, "sqlite:///{home}/ledger.db")
    home, made = Home.open(tmp_path / "home"), LineageHome(tmp_path)
    made.ledger, made.objects = home.ledger, home.objects(BulkAlgorithm.BLAKE3)
    made.take()
    for name in ("delays", "waits"):
        made.define(VIEW.replace("name: delays", f"name: {name}"))
        materializing.run(home, Output(False), name, CutOptions(), None)
    made.register("bought", 1, Origin("waits", ("trips",)))
    made.rows[0]["delay"] = 99
    made.write()
    return made


def planned(made: LineageHome, capsys: pytest.CaptureFixture[str], budget: str | None = None) -> Any:
    capsys.readouterr()
    plan(budget=budget, home=made.folder / "home", as_json=True)
    return json.loads(capsys.readouterr().out)


def fits(document: Any) -> dict[str, list[bool | None]]:
    return {one["model"]: [step["within_budget"] for step in one["steps"]] for one in document["models"]}


def test_every_step_says_whether_it_fits(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(made, capsys)
    assert fits(found) == {"bought": [None], "delays": [None], "waits": [None]}
    assert (found["budget"], found["order"]) == (None, [])
    found = planned(made, capsys, "1h")
    assert fits(found) == {"bought": [None], "delays": [True], "waits": [True]}
    assert found["budget"] == 3600
    assert [piece["model"] for piece in found["order"]] == ["delays/1", "waits/1", "bought/1"]
    assert found["order"][0]["avoided_per_second"] > 0
    assert found["order"][2] | {"changes_a_day": 0} == {
        "model": "bought/1",
        "steps": [{"do": "materialize", "target": None}],
        "seconds": None,
        "changes_a_day": 0,
        "avoided_per_second": None,
        "within_budget": None,
    }


def test_people_are_told_what_is_beyond_the_budget(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    plan(budget="1s", home=made.folder / "home")
    told = capsys.readouterr().out
    assert "budget 1 s, best first:\n  delays/1: materialize (1 s, within the budget)" in told
    assert "  waits/1: materialize (1 s, beyond the budget)" in told
    assert "  bought/1: materialize (cost unknown, not counted)" in told
    assert "└─ do: materialize waits (about 1 s last time; beyond the budget)" in told
    plan(home=made.folder / "home")
    assert "budget" not in capsys.readouterr().out


def test_applying_does_what_fits_and_no_more(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    apply(budget="1s", home=made.folder / "home", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["done"] == [{"step": "materialize", "model": "delays/2"}]
    assert [one["model"] for one in found["beyond_budget"]] == ["waits/1", "bought/1"]
    assert fits(planned(made, capsys, "1s")) == {"bought": [None], "delays": [], "waits": [True]}


@pytest.mark.parametrize("text", ["0s", "soon", "-5s", "1.5h", "3600", "", "999999999999999999w"])
def test_a_budget_is_a_length_of_time(text: str) -> None:
    with pytest.raises(DefinitionError, match=r"^--budget: expected a duration such as 3600s"):
        seconds_of("--budget", text)
    assert seconds_of("--budget", "2h") == 7200


def test_a_wrong_budget_does_nothing(made: LineageHome) -> None:
    before = made.ledger.load().head
    with pytest.raises(DefinitionError):
        apply(budget="much", home=made.folder / "home")
    assert made.ledger.load().head == before


def test_the_exit_is_that_of_the_first_failure_or_the_worst_verdict() -> None:
    assert Outcome().exit is Exit.DONE
    assert Outcome(done=[{"verdict": "CERTIFIED"}, {"verdict": "UNDECIDED"}]).exit is Exit.CANNOT_SAY
    assert Outcome(done=[{"verdict": "REFUTED"}, {"verdict": "UNDECIDED"}]).exit is Exit.NO
    assert Outcome(blocked=["a/1: source is gone"]).exit is Exit.NO
    failed = Outcome(blocked=["a/1: source is gone"], failed=[("b/1", TrainerError("no luck", hint="Look."))])
    assert failed.exit is Exit.COULD_NOT_MEASURE
    assert failed.document()["failed"] == [
        {"model": "b/1", "error": "TrainerError", "message": "no luck", "hint": "Look."}
    ]
    assert failed.text() == "left to you: a/1: source is gone\nfailed: b/1: no luck"


def test_a_failure_is_raised_by_apply(made: LineageHome) -> None:
    made.define(trainer="raise SystemExit(3)")
    with pytest.raises((TrainerError, typer.Exit)) as caught:
        apply("delays", home=made.folder / "home")
    assert caught.type is TrainerError
