"""A source that cannot be cut: a clear error, the documented exit code, and nothing recorded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journeys import Answer, Snapline

START = datetime(2026, 1, 1, tzinfo=UTC)
INSTANT = pa.timestamp("us", "UTC")
TIMES = [START + timedelta(hours=hours) for hours in range(6)]


def table(**columns: Any) -> pa.Table:
    given = {"id": pa.array(range(6), pa.int64()), "at": pa.array(TIMES, INSTANT), "x": pa.array([1.0] * 6)}
    return pa.table(given | columns)


def take(snapline: Snapline, source: str | Path, *options: str) -> Answer:
    window = () if "--from" in options else ("--from", "2026-01-01", "--until", "2026-02-01")
    said = ("--time", "at", "--key", "id", *window, *options)
    return snapline("snapshot", "take", "rows", "--source", source, *said, "--json")


@pytest.fixture
def home(snapline: Snapline) -> Snapline:
    snapline.ok("init")
    return snapline


def refused(home: Snapline, answer: Answer, code: int, *told: str) -> None:
    """Insist on the exit code, on what the message names, on a hint, and that nothing was recorded."""
    assert answer.code == code, answer.out + answer.err
    for words in told:
        assert words in answer.json["message"], answer.json
    assert answer.json["hint"]
    assert home.ok("log")["length"] == 1
    assert not list(home.home.glob("objects/*"))


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (table(at=pa.array([None, *TIMES[1:]], INSTANT)), ("1 in 'at'",)),
        (table(id=pa.array([None, 1, 2, 3, 4, None], pa.int64())), ("2 in 'id'",)),
        (table(at=pa.array([f"2026-01-0{n}" for n in range(1, 7)])), ("'at' must hold timestamps or dates", "string")),
        (table(at=pa.array(range(6), pa.int64())), ("'at' must hold timestamps or dates", "int64")),
        (table(id=pa.array([[1]] * 6)), ("'id'", "cannot be sorted")),
        (table().drop(["id"]), ("'id'",)),
    ],
    ids=["null times", "null keys", "times as text", "times as numbers", "keys that are lists", "no key column"],
)
def test_columns_that_cannot_be_cut_by(home: Snapline, rows: pa.Table, told: tuple[str, ...]) -> None:
    pq.write_table(rows, home.folder / "rows.parquet")
    refused(home, take(home, "rows.parquet"), 2, *told)


def test_files_whose_zones_differ(home: Snapline) -> None:
    folder = home.folder / "rows"
    folder.mkdir()
    pq.write_table(table(), folder / "a.parquet")
    naive = pa.array([time.replace(tzinfo=None) for time in TIMES], pa.timestamp("us"))
    pq.write_table(table(at=naive), folder / "b.parquet")
    refused(home, take(home, "rows"), 2, "b.parquet", "column 'at' is timestamp", "timestamp[utc] in a.parquet")


def test_two_named_zones_are_one_type_and_the_same_instants(home: Snapline) -> None:
    folder = home.folder / "rows"
    folder.mkdir()
    pq.write_table(table(), folder / "a.parquet")
    pq.write_table(
        table(id=pa.array(range(6, 12)), at=pa.array(TIMES, pa.timestamp("us", "Asia/Tokyo"))), folder / "b.parquet"
    )
    assert take(home, "rows").json["rows"] == 12


def test_a_window_that_ends_before_it_starts(home: Snapline) -> None:
    pq.write_table(table(), home.folder / "rows.parquet")
    answer = take(home, "rows.parquet", "--from", "2026-02-01", "--until", "2026-01-01")
    refused(home, answer, 2, "the window is empty", "2026-02-01", "2026-01-01")


def test_no_rows_are_a_snapshot_of_the_columns(home: Snapline) -> None:
    pq.write_table(table().slice(0, 0), home.folder / "rows.parquet")
    answer = take(home, "rows.parquet")
    assert (answer.code, answer.json["rows"], answer.json["buckets"]) == (0, 0, 0)


def test_repeated_keys_are_rows_of_their_own(home: Snapline) -> None:
    pq.write_table(table(id=pa.array([1, 1, 1, 2, 2, 2])), home.folder / "rows.parquet")
    first = take(home, "rows.parquet").json
    assert first["rows"] == 6
    pq.write_table(table(id=pa.array([1, 1, 1, 1, 2, 2])), home.folder / "rows.parquet")
    assert home("snapshot", "take", "rows", "--json").json["digest"] != first["digest"]


def test_columns_that_drift_between_takes_are_restated_by_name(home: Snapline) -> None:
    pq.write_table(table(), home.folder / "rows.parquet")
    first = take(home, "rows.parquet").json
    pq.write_table(table(x=pa.array([1] * 6, pa.int32())), home.folder / "rows.parquet")
    answer = home("snapshot", "diff", "rows", "now", "--json")
    assert answer.code == 1
    assert "column 'x' was float64, is int32" in answer.out
    assert home("snapshot", "take", "rows", "--json").json["digest"] != first["digest"]


EVERY_TYPE: dict[str, Callable[[], pa.Array]] = {
    "dictionary": lambda: pa.array(["a", "b", None] * 2).dictionary_encode(),
    "decimal": lambda: pa.array(["1.50", "-2.25", None] * 2).cast(pa.decimal128(9, 2)),
    "zoned": lambda: pa.array(TIMES, pa.timestamp("ns", "Europe/Paris")),
    "binary": lambda: pa.array([b"\x00", b"", None] * 2),
    "map": lambda: pa.array([[("k", 1)], [], None] * 2, pa.map_(pa.string(), pa.int32())),
    "list": lambda: pa.array([[1, None], [], None] * 2),
    "struct": lambda: pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": []}] * 2),
    "float": lambda: pa.array([float("nan"), -0.0, 0.0, float("inf"), None, 1e-310]),
    "date": lambda: pa.array([date(2026, 1, 1), None] * 3),
}


@pytest.mark.parametrize("kind", EVERY_TYPE)
def test_every_kind_of_column_is_digested_and_compared(home: Snapline, kind: str) -> None:
    column = EVERY_TYPE[kind]()
    pq.write_table(table(x=column), home.folder / "rows.parquet")
    first = take(home, "rows.parquet").json
    pq.write_table(table(x=column).take([5, 3, 1, 0, 2, 4]), home.folder / "rows.parquet")
    again = home("snapshot", "take", "rows", "--json").json
    assert (again["digest"], again["id"]) == (first["digest"], first["id"])
    assert home("snapshot", "diff", "rows", "now", "--json").code == 0
    other = (
        pa.concat_arrays([column.slice(1), column.slice(0, 1)])
        if kind != "dictionary"
        else column.take([1, 2, 3, 4, 5, 0])
    )
    pq.write_table(table(x=other), home.folder / "rows.parquet")
    answer = home("snapshot", "diff", "rows", "now", "--json")
    assert answer.code == 1, answer.err
    assert home("snapshot", "take", "rows", "--json").json["digest"] != first["digest"]


@pytest.mark.parametrize(
    ("source", "code", "told"),
    [
        ("nowhere.parquet", 4, "nowhere.parquet"),
        ("delta:nowhere", 4, "nowhere"),
        ("duckdb:nowhere.db#t", 4, "nowhere.db"),
        ("duckdb:nowhere.db", 2, "duckdb:FILE#TABLE"),
        ("oracle:x#y", 2, "oracle"),
    ],
)
def test_a_source_that_is_none(home: Snapline, source: str, code: int, told: str) -> None:
    answer = take(home, source)
    assert answer.code == code, answer.out
    assert told in answer.json["message"] + answer.json["hint"]
    assert home.ok("log")["length"] == 1


def test_a_file_that_is_no_parquet(home: Snapline) -> None:
    (home.folder / "rows.parquet").write_bytes(b"PAR1 and nothing more")
    refused(home, take(home, "rows.parquet"), 2, "rows.parquet", "cannot be read as Parquet")


def test_a_version_of_what_has_no_history(home: Snapline) -> None:
    pq.write_table(table(), home.folder / "rows.parquet")
    assert take(home, "rows.parquet", "--version", "3").code == 2
    assert take(home, "rows.parquet", "--as-of", "2026-01-02").code == 2
    assert home.ok("log")["length"] == 1
