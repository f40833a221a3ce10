"""Rounds of looking, planning and computing again; and only one process at a time that does them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from journeys import ROOT
from lineage_home import DAY, NOW, START, VIEW, LineageHome

from snapline.cli import materialize as materializing
from snapline.cli import refresh
from snapline.cli.output import Output
from snapline.cli.watch import alone, watch
from snapline.cli.wiring import Home, initialise, now
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.series import CutOptions

WATCH = """
import sys
from pathlib import Path
from snapline.cli.output import fail
from snapline.cli.watch import watch
from snapline.lineage.errors import SnaplineError
try:
    watch(every="1h", home=Path(sys.argv[1]), as_json=True)
except SnaplineError as error:
    fail(error, True)
"""


@pytest.fixture
def made(tmp_path: Path) -> LineageHome:
    """A home on disk with one model that Snapline made from a snapshot."""
    initialise(tmp_path / "home", BulkAlgorithm.BLAKE3, "sqlite:///{home}/ledger.db")
    home, made = Home.open(tmp_path / "home"), LineageHome(tmp_path)
    made.ledger, made.objects = home.ledger, home.objects(BulkAlgorithm.BLAKE3)
    made.take()
    made.define()
    materializing.run(home, Output(False), "delays", CutOptions(), None)
    return made


def restate(made: LineageHome) -> None:
    made.rows[0]["delay"] += 90
    made.write()


def rounds(made: LineageHome, capsys: pytest.CaptureFixture[str], number: int) -> list[Any]:
    """Watch for some rounds; return each one's document."""
    capsys.readouterr()
    watch(every="1s", rounds=number, home=made.folder / "home", as_json=True)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_round_computes_what_is_due_and_the_next_finds_nothing(
    made: LineageHome, capsys: pytest.CaptureFixture[str]
) -> None:
    restate(made)
    first, second = rounds(made, capsys, 2)
    assert first == {
        "round": 1,
        "done": [{"step": "materialize", "model": "delays/2"}],
        "blocked": [],
        "beyond_budget": [],
        "failed": [],
    }
    assert second == first | {"round": 2, "done": []}
    assert len(made.state.models["delays"]) == 2


def test_a_window_that_slides_is_moved_on_when_its_model_is_too_old(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    today = now().replace(hour=0, minute=0, second=0, microsecond=0)
    initialise(tmp_path / "home", BulkAlgorithm.BLAKE3, "sqlite:///{home}/ledger.db")
    home, made = Home.open(tmp_path / "home"), LineageHome(tmp_path)
    made.ledger, made.objects = home.ledger, home.objects(BulkAlgorithm.BLAKE3)
    at = [today + (n - 80) * DAY / 2 for n in range(80)]
    made.rows = [{"at": event, "seen": event, "id": n, "delay": n} for n, event in enumerate(at)]
    made.write()
    window = CutOptions((today - 20 * DAY).isoformat(), (today - 15 * DAY).isoformat())
    made.take(cut=window, now=now())
    made.define(VIEW.replace("max_age: 36500d", "max_age: 3d, slide: 5d"))
    materializing.run(home, Output(False), "delays", window, None)
    first, second = rounds(made, capsys, 2)
    assert (first["done"], second["done"]) == ([{"step": "materialize", "model": "delays/2"}], [])
    assert made.state.snapshot("trips").cut.until >= today


def test_what_was_seen_of_a_source_is_recorded_once(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    made.rows.append({"at": START + 9 * DAY, "seen": START + 9 * DAY, "id": 50, "delay": 0})
    made.write()
    length = made.ledger.load().length
    assert [one["done"] for one in rounds(made, capsys, 2)] == [[], []]
    kinds = [record.event.kind for record in made.ledger.entries()[length:]]
    assert kinds == ["source-compared"]


def test_a_failure_is_told_and_the_next_round_tries_again(
    made: LineageHome, capsys: pytest.CaptureFixture[str]
) -> None:
    restate(made)
    made.define(trainer="raise SystemExit(3)")
    with pytest.raises(typer.Exit) as left:
        watch(every="1s", rounds=2, home=made.folder / "home", as_json=True)
    assert left.value.exit_code == 6
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["failed"][0]["error"] for line in lines] == ["TrainerError", "TrainerError"]
    assert len(made.state.models["delays"]) == 1


def test_what_only_a_person_can_mend_is_named_and_the_answer_is_no(
    made: LineageHome, capsys: pytest.CaptureFixture[str]
) -> None:
    made.source.unlink()
    with pytest.raises(typer.Exit) as left:
        refresh.run(home=made.folder / "home")
    assert left.value.exit_code == 1
    assert "left to you: delays/1" in capsys.readouterr().out


def test_refresh_run_is_one_round_under_a_budget(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    restate(made)
    capsys.readouterr()
    refresh.run(budget="1h", home=made.folder / "home", as_json=True)
    assert json.loads(capsys.readouterr().out)["done"] == [{"step": "materialize", "model": "delays/2"}]
    refresh.run(home=made.folder / "home")
    assert capsys.readouterr().out == "nothing to do\n"


POLICY = """
apiVersion: snapline/v1
kind: RefreshPolicy
budget: {budget}
segments: [{{name: {view}, weight: 1, change_rate: 2}}]
"""


def test_a_policy_says_when_a_view_is_due_and_nothing_new_is_not_taken_in(
    made: LineageHome, capsys: pytest.CaptureFixture[str]
) -> None:
    made.define(VIEW.replace("max_age: 36500d", "on_restatement: warn"))
    policy = made.folder / "policy.yaml"
    policy.write_text(POLICY.format(budget="100000000", view="delays"))

    def run() -> Any:
        capsys.readouterr()
        refresh.run(policy=policy, home=made.folder / "home", as_json=True)
        return json.loads(capsys.readouterr().out)["done"]

    assert run() == []
    restate(made)
    assert run() == [{"step": "materialize", "model": "delays/2"}]
    assert run() == []
    restate(made)
    policy.write_text(POLICY.format(budget="0.001", view="delays"))
    assert run() == []
    policy.write_text(POLICY.format(budget="1", view="nothing"))
    with pytest.raises(NotFoundError, match="no view 'nothing'; there are: delays"):
        run()


@pytest.mark.parametrize("wrong", [{"every": "0s"}, {"every": "often"}, {"budget": "much"}])
def test_a_wrong_length_of_time_starts_no_round(made: LineageHome, wrong: dict[str, str]) -> None:
    before = made.ledger.load().head
    restate(made)
    with pytest.raises(DefinitionError, match="expected a duration"):
        watch(home=made.folder / "home", **wrong)  # type: ignore[arg-type]
    assert made.ledger.load().head == before


@contextmanager
def watching(made: LineageHome) -> Iterator[subprocess.Popen[str]]:
    """A real watcher that finished a round and waits for the next."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".namespace")}
    command = [sys.executable, "-c", WATCH, str(made.folder / "home")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["round"] == 1
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_watcher_is_refused_by_name_until_the_first_is_killed(
    made: LineageHome, capsys: pytest.CaptureFixture[str]
) -> None:
    home = made.folder / "home"
    with watching(made) as first:
        restate(made)
        for attempt in (lambda: refresh.run(home=home), lambda: watch(rounds=1, home=home)):
            with pytest.raises(ConflictError, match=rf"works in .*: process {first.pid}$"):
                attempt()
        command = [sys.executable, "-c", WATCH, str(home)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / ".namespace")}
        second = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert second.returncode == 4
        assert json.loads(second.stdout)["error"] == "ConflictError"
        assert len(made.state.models["delays"]) == 1
    assert (home / "refresh.pid").exists(), "a killed watcher cleans nothing up"
    assert rounds(made, capsys, 1)[0]["done"] == [{"step": "materialize", "model": "delays/2"}]
    assert not (home / "refresh.pid").exists()


def test_the_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), alone(tmp_path):
        raise ZeroDivisionError
    with alone(tmp_path):
        assert (tmp_path / "refresh.pid").read_text() == f"{os.getpid()}\n"


def test_a_change_rate_comes_from_the_ledger_of_the_home(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    restate(made)
    made.take(now=NOW + 400 * 365 * DAY)
    policy = made.folder / "policy.yaml"
    head = "apiVersion: snapline/v1\nkind: RefreshPolicy\nbudget: 1\nsegments:\n"
    policy.write_text(f"{head}- {{name: trips, weight: 1, snapshot: trips}}\n")
    capsys.readouterr()
    refresh.plan(policy, home=made.folder / "home", as_json=True)
    (told,) = json.loads(capsys.readouterr().out)["estimated"]
    assert (told["snapshot"], told["polls"] >= 1, told["change_rate"] > 0) == ("trips", True, True)
    refresh.plan(policy, home=made.folder / "home")
    out = capsys.readouterr().out
    assert "changes a day, estimated from" in out
    assert "equivalent to a timer of 1 days" in out
