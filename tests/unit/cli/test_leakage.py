from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import typer
from lineage_home import DAY, NOW, START, LineageHome

from snapline.cli.leakage import leakage
from snapline.cli.wiring import Home, initialise
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.events import Linked
from snapline.lineage.model import ModelVersion, Use, UseKind
from snapline.lineage.register import Origin
from snapline.lineage.series import CutOptions

HEAD = "apiVersion: snapline/v1\nkind: LeakageRules\nname: pit\n"
CLEAN = HEAD + "prediction_time: seen\nfeatures: [{column: delay, time: at, known: seen}]\nentity: delay\n"
LEAKING = CLEAN.replace("prediction_time: seen", "prediction_time: at")  # known an hour after the prediction


@pytest.fixture
def made(tmp_path: Path) -> LineageHome:
    """A home on disk with one model, trained on six rows before 4 January; two later rows are another series."""
    initialise(tmp_path / "home", BulkAlgorithm.BLAKE3, "sqlite:///{home}/ledger.db")
    home, made = Home.open(tmp_path / "home"), LineageHome(tmp_path)
    made.ledger, made.objects = home.ledger, home.objects(BulkAlgorithm.BLAKE3)
    made.take()
    made.take("later", made.options(), CutOptions("2013-01-04", "2013-01-06"))
    made.define()
    made.register("delays", 1, Origin("delays", ("trips",)))
    return made


def model_of(made: LineageHome) -> ModelVersion:
    return made.state.models["delays"][0]


def evaluate_on(made: LineageHome, series: str) -> None:
    use = Use(kind=UseKind.EVALUATED_ON, snapshot=made.state.series[series][-1])
    made.ledger.commit(lambda _state: [Linked(at=NOW, model=model_of(made).key, uses=(use,))])


def run(made: LineageHome, text: str, as_json: bool = True) -> int:
    file = made.folder / "rules.yaml"
    file.write_text(text)
    with pytest.raises(typer.Exit) as left:
        leakage("delays", file, home=made.folder / "home", as_json=as_json)
    return left.value.exit_code


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_clean_model_is_recorded_as_clean_and_once(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate_on(made, "later")
    length = made.ledger.load().length
    assert run(made, CLEAN) == 0
    said = answer(capsys)
    assert (said["leaked"], said["complete"], said["unchecked"], said["remarks"]) == (False, True, [], [])
    assert [(side["name"], side["rows"]) for side in (*said["train"], *said["evaluation"])] == [
        ("trips", 6),
        ("later", 2),
    ]
    (recorded,) = made.state.leakage[model_of(made).key]
    assert not recorded.leaked
    assert recorded.notes == ()
    assert made.objects.read(recorded.rules).decode() == CLEAN
    assert run(made, CLEAN) == 0
    assert made.ledger.load().length == length + 1


def test_a_leaked_model_is_a_no_with_its_rows_kept(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate_on(made, "later")
    assert run(made, LEAKING) == 1
    said = answer(capsys)
    broken = {found["rule"]: found["rows"] for found in said["findings"] if found["rows"]}
    assert broken == {"training/feature-known-time/delay": 6, "evaluation/feature-known-time/delay": 2}
    (recorded,) = made.state.leakage[model_of(made).key]
    assert recorded.leaked
    rows = pq.read_table(io.BytesIO(made.objects.read(recorded.rows)))
    assert rows["key"].to_pylist() == ["0", "1", "2", "3", "4", "5", "6", "7"]
    sample = next(found["sample"] for found in said["findings"] if found["rule"].startswith("training/feature-known"))
    assert sample[0]["value"] == "2013-01-01T01:00:00.000000Z"
    assert len(sample) == 3
    assert run(made, CLEAN) == 0
    (again,) = made.state.leakage[model_of(made).key]
    assert not again.leaked


def test_other_rules_do_not_clear_a_leaked_model(made: LineageHome) -> None:
    evaluate_on(made, "later")
    assert run(made, LEAKING) == 1
    assert run(made, CLEAN.replace("name: pit", "name: other")) == 0
    assert [check.leaked for check in made.state.leakage[model_of(made).key]] == [True, False]


def test_people_read_rows_and_reasons(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(made, LEAKING, as_json=False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "LEAKED  delays/1 under leakage rules pit"
    assert "  ! training/feature-known-time/delay: 6 rows" in lines
    assert any(
        "seen 2013-01-01T01:00:00.000000Z, allowed: at most 2013-01-01T00:00:00.000000Z" in line for line in lines
    )
    assert "      and 3 more" in lines
    assert "  holds: training/feature-event-time/delay" in lines
    assert "  ? entity: no evaluation snapshot is named, by the rules or by the model" in lines


def test_what_cannot_be_checked_is_no_yes(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(made, CLEAN) == 3
    said = answer(capsys)
    assert (said["leaked"], said["complete"]) == (False, False)
    assert made.state.leakage[model_of(made).key][0].notes == tuple(said["unchecked"])
    assert run(made, CLEAN.replace("entity: delay\n", "")) == 0


def test_the_rules_may_name_the_snapshots(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(made, CLEAN + "evaluation: {snapshot: later}\n") == 0
    assert "nothing records that delays/1 was evaluated on later@" in answer(capsys)["remarks"][0]
    assert run(made, CLEAN + "evaluation: {snapshot: trips}\ntrain: {snapshot: trips}\n") == 1
    broken = {found["rule"]: found["rows"] for found in answer(capsys)["findings"] if found["rows"]}
    assert broken == {"entity-overlap": 6, "evaluation-before-cut": 6}


def test_a_name_means_the_snapshot_the_model_was_trained_on(
    made: LineageHome, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = made.state.series["trips"][-1]
    made.take(cut=CutOptions("2013-01-01", "2013-01-03"))
    assert made.state.series["trips"][-1] != trained
    run(made, CLEAN + "train: {snapshot: trips}\n")
    assert [side["id"] for side in answer(capsys)["train"]] == [trained]
    newest = made.state.series["trips"][-1]
    run(made, CLEAN + f"train: {{snapshot: 'trips@{newest[:8]}'}}\n")
    said = answer(capsys)
    assert [side["id"] for side in said["train"]] == [newest]
    assert "was trained on" in said["remarks"][0]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            CLEAN.replace("known: seen", "known: gone"),
            DefinitionError,
            "rules.yaml:5: features.0.known: snapshot trips",
        ),
        (
            CLEAN + "evaluation: {snapshot: nope}\n",
            NotFoundError,
            "rules.yaml:7: evaluation.snapshot: no snapshot 'nope'",
        ),
        (CLEAN.replace("entity", "entiti"), DefinitionError, "rules.yaml:6: entiti: no such field"),
    ],
)
def test_bad_input_records_nothing(made: LineageHome, text: str, kind: type[Exception], message: str) -> None:
    length = made.ledger.load().length
    file = made.folder / "rules.yaml"
    file.write_text(text)
    with pytest.raises(kind) as refused:
        leakage("delays", file, home=made.folder / "home", as_json=True)
    assert message in str(refused.value)
    assert made.ledger.load().length == length
    assert model_of(made).key not in made.state.leakage


def test_a_model_of_no_snapshot_needs_rules_that_name_one(made: LineageHome) -> None:
    made.register("base", 2)
    file = made.folder / "rules.yaml"
    file.write_text(CLEAN)
    with pytest.raises(DefinitionError, match="base/1 records no snapshot it was trained on"):
        leakage("base", file, home=made.folder / "home", as_json=True)


def test_rows_that_are_no_longer_there_are_not_guessed(made: LineageHome) -> None:
    made.rows[0]["delay"] = 99
    made.write()
    file = made.folder / "rules.yaml"
    file.write_text(CLEAN)
    with pytest.raises(ConflictError, match="no longer holds the rows of snapshot trips"):
        leakage("delays", file, home=made.folder / "home", as_json=True)
    assert len(made.state.leakage) == 0


def test_a_home_without_a_signing_key_answers_and_says_it_records_nothing(
    made: LineageHome, capsys: pytest.CaptureFixture[str]
) -> None:
    (made.folder / "home" / "keys" / "signing.key").unlink()
    length = made.ledger.load().length
    assert run(made, LEAKING) == 1
    assert "no signing key" in capsys.readouterr().err
    assert made.ledger.load().length == length


def test_rows_appended_outside_the_cut_are_not_examples(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    made.rows.append({"at": START + 90 * DAY, "seen": START + 91 * DAY, "id": 50, "delay": 0})
    made.write()
    assert run(made, CLEAN.replace("entity: delay\n", "")) == 0
    assert [side["rows"] for side in answer(capsys)["train"]] == [6]
