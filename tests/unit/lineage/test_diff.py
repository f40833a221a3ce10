from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from lineage_home import DAY, NOW, SCHEMA, START, WINDOW, LineageHome
from recording_source import RecordingSource

from snapline.cli.diff import diff as command
from snapline.cli.diff import document, scripts, text
from snapline.cli.wiring import Home, initialise
from snapline.lineage.diff import Diff, diff
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError
from snapline.lineage.manifest import decode_manifest
from snapline.lineage.series import CutOptions, Desk, compared
from snapline.lineage.snapshot import Snapshot
from snapline.lineage.sources.parquet import ParquetSource


@pytest.fixture
def home(tmp_path: Path) -> LineageHome:
    return LineageHome(tmp_path)


def change(home: LineageHome) -> None:
    """Correct a row, delete one, and add one that came late and one that claims to have been known."""
    home.rows[2]["delay"] = 99
    home.rows.pop(0)
    home.rows.append({"at": START + 2 * DAY, "seen": NOW + DAY, "id": 50, "delay": 0})
    home.rows.append({"at": START + 2 * DAY, "seen": NOW - DAY, "id": 51, "delay": 0})
    home.write()


def held(home: LineageHome, then: Snapshot, now: Snapshot | None = None, bucket: str | None = None) -> Diff:
    return diff(then, now, home.state, Desk(home.objects, NOW), bucket)


def counts(found: Diff) -> dict[str, dict[str, int]]:
    return {bucket.label: {kind: n for kind, n in bucket.counts.items() if n} for bucket in found.buckets}


def test_nothing_differs_from_itself(home: LineageHome) -> None:
    taken = home.take()
    for found in (held(home, taken), held(home, taken, taken)):
        assert not found.differs
        assert found.buckets == ()
        assert text(found, 5).endswith("nothing differs")


def test_a_snapshot_held_against_now(home: LineageHome) -> None:
    taken = home.take()
    change(home)
    found = held(home, taken)
    assert counts(found) == {
        "2013-01-01": {"deleted": 1},
        "2013-01-02": {"corrected": 1},
        "2013-01-03": {"appended": 1, "late": 1},
    }
    assert [bucket.keys for bucket in found.buckets] == [
        {"appended": (), "corrected": (), "deleted": (), "late": ()},
        {"appended": (), "corrected": (2,), "deleted": (), "late": ()},
        {"appended": (51,), "corrected": (), "deleted": (), "late": (50,)},
    ]
    assert found.buckets[0].unnamed["deleted"] == 1
    assert "only hashes of their keys were kept" in text(found, 5)


def test_the_counts_are_those_that_a_comparison_finds(home: LineageHome) -> None:
    taken = home.take()
    change(home)
    found = held(home, taken)
    manifest = decode_manifest(home.objects.read(taken.manifest))
    comparison = compared(taken, manifest, home.state, Desk(home.objects, NOW)).comparison
    assert {kind: found.total(kind) for kind in ("appended", "corrected", "deleted", "late")} == {
        kind: comparison.total(kind) for kind in ("appended", "corrected", "deleted", "late")
    }


def test_two_snapshots_agree_with_now_where_their_windows_do(home: LineageHome) -> None:
    first = home.take()
    change(home)
    second = home.take(now=NOW + 2 * DAY)
    found = held(home, first, second)
    assert counts(found) == counts(held(home, first))
    assert found.buckets[1].keys["corrected"] == (2,)


def test_what_a_later_window_leaves_behind_was_not_deleted(home: LineageHome) -> None:
    first = home.take()
    second = home.take(cut=CutOptions("2013-01-02", "2013-01-05"))
    found = held(home, first, second)
    assert counts(found) == {"2013-01-01": {}, "2013-01-04": {"appended": 2}}
    assert [bucket.left_behind for bucket in found.buckets] == [2, 0]
    assert found.buckets[1].keys["appended"] == (6, 7)
    back = held(home, second, first)
    assert counts(back) == {"2013-01-01": {"appended": 2}, "2013-01-04": {}}


def test_two_snapshots_are_counted_though_their_source_is_gone(home: LineageHome) -> None:
    first = home.take()
    change(home)
    second = home.take(now=NOW + 2 * DAY)
    home.source.unlink()
    found = held(home, first, second)
    # Which of the new rows claims to have been known can no longer be read, so both count as late.
    assert counts(found)["2013-01-03"] == {"late": 2}
    assert counts(found)["2013-01-02"] == {"corrected": 1}
    assert found.buckets[1].unnamed["corrected"] == 1
    assert all(bucket.sql_now is None for bucket in found.buckets)


def test_one_bucket_may_be_asked_for_by_any_instant_in_it(home: LineageHome) -> None:
    taken = home.take()
    change(home)
    assert [bucket.label for bucket in held(home, taken, bucket="2013-01-03T05:00").buckets] == ["2013-01-03"]
    assert held(home, taken, bucket="2014-01-01").buckets == ()
    with pytest.raises(DefinitionError, match="expected an ISO date"):
        held(home, taken, bucket="yesterday")


def test_rows_after_the_window_are_told_apart_from_those_inside(home: LineageHome) -> None:
    taken = home.take()
    home.rows.append({"at": START + 9 * DAY, "seen": NOW, "id": 60, "delay": 0})
    home.write()
    found = held(home, taken)
    assert (found.buckets, found.newer, found.differs) == ((), 1, True)
    assert "rows after the window: 1 more than at the take" in text(found, 5)


def test_snapshots_of_two_series_have_no_difference_to_speak_of(home: LineageHome) -> None:
    first, other = home.take(), home.take("other", home.options())
    with pytest.raises(DefinitionError, match="two snapshots of one series"):
        held(home, first, other)


def test_files_of_buckets_that_did_not_change_are_not_read(home: LineageHome) -> None:
    folder = home.folder / "days"
    folder.mkdir()
    for day in range(3):
        rows = [row for row in home.rows if START + day * DAY <= row["at"] < START + (day + 1) * DAY]
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / f"{day}.parquet")
    taken = home.take("days", home.options(source=str(folder)))
    rows[0]["delay"] = 99
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "2.parquet")
    source = RecordingSource(ParquetSource(folder, BulkAlgorithm.BLAKE3))
    found = diff(taken, None, home.state, Desk(home.objects, NOW), source=source)
    assert counts(found) == {"2013-01-03": {"corrected": 1}}
    assert found.buckets[0].keys["corrected"] == (4,)
    assert set(source.scanned) == {"2.parquet"}
    again = home.take("days", now=NOW + DAY)
    source.scanned.clear()
    between = diff(taken, again, home.state, Desk(home.objects, NOW), source=source)
    assert counts(between) == counts(found)
    assert set(source.scanned) == {"2.parquet"}


def test_the_sql_selects_exactly_the_rows_that_were_named(home: LineageHome) -> None:
    taken = home.take()
    change(home)
    for bucket in held(home, taken).buckets[1:]:
        named = sorted(key for kind in ("appended", "corrected", "late") for key in bucket.keys[kind])
        assert bucket.sql_now is not None
        selected = duckdb.connect().execute(bucket.sql_now).to_arrow_table()
        assert selected.column("id").to_pylist() == named
    assert scripts(held(home, taken)).startswith("-- 2013-01-02: 1 corrected, as they are\nSELECT")


def test_the_sql_reads_text_keys_and_naive_times(tmp_path: Path) -> None:
    home = LineageHome(tmp_path)
    table = pa.table(
        {
            "at": pa.array([START.replace(tzinfo=None)], pa.timestamp("us")),
            "it's": ["o'clock"],
            "v": [1],
        }
    )
    pq.write_table(table, home.source)
    taken = home.take("odd", home.options(known=None, key="it's"))
    pq.write_table(table.set_column(2, "v", pa.array([2])), home.source)
    (bucket,) = held(home, taken).buckets
    assert bucket.sql_now is not None
    assert duckdb.connect().execute(bucket.sql_now).fetchall() == [(START.replace(tzinfo=None), "o'clock", 2)]


def test_a_duckdb_file_is_attached_by_the_sql(home: LineageHome) -> None:
    file = home.folder / "trips.duckdb"
    with duckdb.connect(str(file)) as database:
        database.execute(f"CREATE TABLE trips AS FROM read_parquet('{home.source}')")
    taken = home.take("kept", home.options(source=f"duckdb:{file}#trips"))
    with duckdb.connect(str(file)) as database:
        database.execute("UPDATE trips SET delay = 99 WHERE id = 2")
    (bucket,) = held(home, taken).buckets
    assert bucket.sql_now is not None
    assert [row[2:] for row in duckdb.connect().execute(bucket.sql_now).fetchall()] == [(2, 99)]


def test_a_table_that_travels_names_what_was_deleted(home: LineageHome) -> None:
    deltalake = pytest.importorskip("deltalake")
    place = home.folder / "trips"
    deltalake.write_deltalake(str(place), pa.Table.from_pylist(home.rows, schema=SCHEMA))
    taken = home.take("trips", home.options(source=f"delta:{place}", known=None))
    deltalake.DeltaTable(str(place)).delete("id = 3")
    found = held(home, taken)
    assert counts(found) == {"2013-01-02": {"deleted": 1}}
    (bucket,) = found.buckets
    assert (bucket.keys["deleted"], bucket.unnamed["deleted"]) == ((3,), 0)
    assert bucket.sql_then is not None
    assert f"delta_scan('{place}', version => 0)" in bucket.sql_then
    assert "2013-01-02: 1 deleted, as they were" in scripts(found)


def test_the_command_answers_and_its_exit_code_is_that_of_diff(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    initialise(tmp_path / "home", BulkAlgorithm.BLAKE3, "sqlite:///{home}/ledger.db")
    opened, made = Home.open(tmp_path / "home"), LineageHome(tmp_path)
    made.ledger, made.objects = opened.ledger, opened.objects(BulkAlgorithm.BLAKE3)
    taken = made.take(cut=WINDOW)

    def ask(limit: int = 5) -> tuple[int, dict]:
        with pytest.raises(typer.Exit) as left:
            command("trips", "now", bucket=None, limit=limit, sql=False, home=tmp_path / "home", as_json=True)
        return left.value.exit_code, json.loads(capsys.readouterr().out)

    assert ask()[0] == 0
    change(made)
    code, answer = ask()
    assert (code, answer["corrected"], answer["deleted"], answer["late"], answer["appended"]) == (1, 1, 1, 1, 1)
    assert answer["then"] == f"trips@{taken.id[:12]}"
    assert answer["buckets"][1]["keys"] == {"corrected": [2]}
    assert ask(0)[1]["buckets"][1]["keys"] == {"corrected": []}
    assert document(held(made, taken), 5)["buckets"] == answer["buckets"]
