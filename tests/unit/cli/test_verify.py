from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from lineage_home import DAY, NOW, START, LineageHome

from snapline.cli.retire import retire
from snapline.cli.status import status
from snapline.cli.verify import verify
from snapline.cli.wiring import Home, initialise
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.link import link
from snapline.lineage.model import parse_reference
from snapline.lineage.register import Origin


@pytest.fixture
def made(tmp_path: Path) -> LineageHome:
    """A home on disk with one model made from a snapshot, whose source then grew outside the window."""
    initialise(tmp_path / "home", BulkAlgorithm.BLAKE3, "sqlite:///{home}/ledger.db")
    home, made = Home.open(tmp_path / "home"), LineageHome(tmp_path)
    made.ledger, made.objects = home.ledger, home.objects(BulkAlgorithm.BLAKE3)
    made.take()
    made.define()
    made.register("delays", 1, Origin("delays", ("trips",)))
    append(made)
    return made


def append(made: LineageHome) -> None:
    made.rows.append({"at": START + 9 * DAY, "seen": START + 9 * DAY, "id": 50, "delay": 0})
    made.write()


def code_of(made: LineageHome, model: str | None = "delays") -> int:
    with pytest.raises(typer.Exit) as left:
        verify(model, home=made.folder / "home", as_json=True)
    return left.value.exit_code


def test_what_was_read_is_recorded_once(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    length = made.ledger.load().length
    assert code_of(made) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["findings"]) == (True, [])
    assert "certificate: none" in answer["facts"]
    assert made.ledger.load().length == length + 1
    assert code_of(made) == 0
    assert made.ledger.load().length == length + 1


def test_a_home_without_a_signing_key_verifies_and_says_it_records_nothing(
    made: LineageHome, capsys: pytest.CaptureFixture[str]
) -> None:
    (made.folder / "home" / "keys" / "signing.key").unlink()
    length = made.ledger.load().length
    assert code_of(made) == 0
    assert "no signing key" in capsys.readouterr().err
    assert made.ledger.load().length == length


def test_what_was_recorded_against_a_version_is_told_though_its_bytes_match(
    made: LineageHome, capsys: pytest.CaptureFixture[str]
) -> None:
    retire("delays", reason="superseded", home=made.folder / "home", as_json=True)
    capsys.readouterr()
    assert code_of(made) == 0
    told = [fact for fact in json.loads(capsys.readouterr().out)["facts"] if fact.startswith("not to be served")]
    assert [fact.endswith(": superseded") for fact in told] == [True]


def test_the_strongest_finding_gives_the_code(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    made.rows[0]["delay"] = 99
    made.write()
    assert code_of(made) == 1
    made.source.unlink()
    assert code_of(made) == 4
    (made.folder / "weights1" / "model.safetensors").write_bytes(b"other")
    capsys.readouterr()
    assert code_of(made) == 5
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert {finding["kind"] for finding in answer["findings"]} == {"source is gone", "weights differ"}
    assert code_of(made, None) == 0


def test_what_differs_is_named_by_bucket_and_kind(made: LineageHome, capsys: pytest.CaptureFixture[str]) -> None:
    made.rows[0]["delay"] = 99
    made.rows.pop(3)
    made.rows.append({"at": START + 2 * DAY, "seen": NOW + DAY, "id": 51, "delay": 0})
    made.write()
    assert code_of(made) == 1
    restated, deleted = json.loads(capsys.readouterr().out)["findings"]
    assert restated["details"] == ["2013-01-01: 1 corrected", "2013-01-02: 1 deleted", "2013-01-03: 1 late"]
    assert "1 of the rows it was made from were deleted" in deleted["message"]


def test_a_restated_evaluation_set_is_told_and_the_model_stays_fresh(
    made: LineageHome, capsys: pytest.CaptureFixture[str]
) -> None:
    apart = made.folder / "apart.parquet"
    apart.write_bytes(made.source.read_bytes())
    made.take("apart", made.options(source=str(apart)))
    link(parse_reference("delays"), ["evaluated_on=apart"], made.ledger, NOW)
    assert code_of(made) == 0
    assert any(fact.startswith("snapshot apart@") for fact in json.loads(capsys.readouterr().out)["facts"])
    pq.write_table(pq.read_table(apart).slice(1), apart)
    assert code_of(made) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["kind"], finding["details"]) == (
        "rows it was evaluated or calibrated on changed",
        ["2013-01-01: 1 deleted"],
    )
    status(home=made.folder / "home", as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert (row["state"], row["gate"], row["reasons"][-1]) == ("FRESH", "shut", finding["message"])


def test_status_tells_three_numbers_and_does_not_know_what_was_not_read(
    made: LineageHome, capsys: pytest.CaptureFixture[str]
) -> None:
    def row() -> dict:
        capsys.readouterr()
        status(home=made.folder / "home", as_json=True)
        (one,) = json.loads(capsys.readouterr().out)["models"]
        return one

    unread = row()
    assert (unread["state"], unread["lag"], unread["delta"]) == ("STALE_DATA", None, None)
    assert unread["age_seconds"] > 10 * 365 * 86_400
    assert unread["causes"]["snapshots"][0]["changes"][0]["kind"] == "source bytes changed and were not read yet"
    assert code_of(made) == 0
    read = row()
    assert read["state"] == "FRESH"
    assert read["delta"] == {"appended": 0, "corrected": 0, "deleted": 0, "late": 0, "newer": 3}
    status(home=made.folder / "home")
    assert "3 newer" in capsys.readouterr().out
