from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from snapline.lineage.digest import BulkAlgorithm, file_hex
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.rows.encoding import columns_of
from snapline.lineage.sources.attach import AttachedSource
from snapline.lineage.sources.protocol import Window

BLAKE3 = BulkAlgorithm.BLAKE3
_LEAVE_A_LOG = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("PRAGMA journal_mode = WAL")
database.execute("INSERT INTO t VALUES (2, '2013-01-02')")
database.commit()
os._exit(0)
"""
WINDOW = Window(datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))


def made(folder: Path, *statements: str, table: str = "t") -> AttachedSource:
    with closing(sqlite3.connect(folder / "rows.db")) as database, database:
        for statement in statements:
            database.execute(statement)
    return AttachedSource("sqlite", str(folder / "rows.db"), table, BLAKE3)


def rows(source: AttachedSource, window: Window | None = None) -> pa.Table:
    commit = source.commit()
    pieces = list(source.scan(commit, "rows.db", "time", window, None))
    return pa.concat_tables(pieces) if pieces else source.schema(commit).empty_table()


def test_a_log_beside_the_file_is_read_and_hashed_and_its_stamp_stays(tmp_path):
    source = made(tmp_path, "CREATE TABLE t(key BIGINT, time TIMESTAMP)", "INSERT INTO t VALUES (1, '2013-01-01')")
    file, commit = tmp_path / "rows.db", source.commit()
    assert source.hexdigest("rows.db") == file_hex(file, BLAKE3)
    subprocess.run([sys.executable, "-c", _LEAVE_A_LOG, str(file)], check=True)
    log = tmp_path / "rows.db-wal"
    before = log.read_bytes(), file.read_bytes(), source.stamp("rows.db")
    assert before[0]
    assert source.commit() != commit
    assert source.hexdigest("rows.db") != file_hex(file, BLAKE3)
    assert rows(source)["key"].to_pylist() == [1, 2]
    assert (log.read_bytes(), file.read_bytes(), source.stamp("rows.db")) == before


def test_a_commit_during_a_scan_is_a_conflict(tmp_path):
    statements = "CREATE TABLE t(key BIGINT, time TIMESTAMP)", "INSERT INTO t VALUES (1, '2013-01-01')"
    source = made(tmp_path, "PRAGMA journal_mode = WAL", *statements)
    scan = source.scan(source.commit(), "rows.db", "time", None, None)
    assert next(scan)["key"].to_pylist() == [1]
    made(tmp_path, "INSERT INTO t VALUES (2, '2013-01-02')")
    with pytest.raises(ConflictError, match="changed while it was read"):
        list(scan)


def test_columns_have_the_type_they_were_declared_with(tmp_path):
    declared = {
        "key": ("INTEGER", "int64"),
        "time": ("DATETIME", "timestamp"),
        "zoned": ("TIMESTAMP WITH TIME ZONE", "timestamp[utc]"),
        "day": ("DATE", "date"),
        "flag": ("BOOLEAN", "int64"),
        "price": ("DECIMAL(9,2)", "float64"),
        "text": ("VARCHAR(20)", "string"),
        "bytes": ("BLOB", "binary"),
    }
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in declared.items())
    values = "1, '2013-01-01 00:30:00.25', '2013-01-01T05:00:00+00:00', '2013-01-01', 1, 1.25, 'é', x'00ff'"
    source = made(tmp_path, f"CREATE TABLE t({columns})", f"INSERT INTO t VALUES ({values})")
    found = rows(source, WINDOW)
    assert {column.name: column.type for column in columns_of(found.schema)} == {
        name: kind for name, (_, kind) in declared.items()
    }
    (row,) = found.to_pylist()
    assert row["time"].isoformat() == "2013-01-01T00:30:00.250000"
    assert row["zoned"] == datetime(2013, 1, 1, 5, tzinfo=UTC)
    assert (row["flag"], row["price"], row["text"], row["bytes"]) == (1, 1.25, "é", b"\x00\xff")


@pytest.mark.parametrize("value", ["2013-01-01 09:00:00+09:00", "2013-01-01T00:00:00-0330", "2013-01-01 00:00+01"])
@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMPTZ", "datetime"])
def test_an_offset_from_utc_is_refused_for_the_extension_would_drop_it(tmp_path, kind, value):
    source = made(tmp_path, f"CREATE TABLE t(key BIGINT, time {kind})", f"INSERT INTO t VALUES (1, '{value}')")
    with pytest.raises(DefinitionError, match="an offset from UTC in time"):
        rows(source)


@pytest.mark.parametrize(
    "value", ["'2013-01-01'", "'2013-01-01 00:00:00Z'", "'2013-01-01T00:00:00+00:00'", "1356998400"]
)
def test_iso_text_in_utc_and_seconds_since_1970_are_instants(tmp_path, value):
    source = made(tmp_path, "CREATE TABLE t(key BIGINT, time TIMESTAMPTZ)", f"INSERT INTO t VALUES (1, {value})")
    assert rows(source, WINDOW)["time"].to_pylist() == [datetime(2013, 1, 1, tzinfo=UTC)]


def test_times_declared_as_text_cannot_order_rows(tmp_path):
    source = made(tmp_path, "CREATE TABLE t(key BIGINT, time TEXT)", "INSERT INTO t VALUES (1, '2013-01-01')")
    with pytest.raises(DefinitionError, match=r"'time' must hold timestamps or dates.*VARCHAR") as refused:
        rows(source, WINDOW)
    assert "Declare time as a timestamp" in refused.value.hint


@pytest.mark.parametrize("values", ["'text', '2013-01-01'", "1, 'no time'"])
def test_a_value_of_another_type_than_declared_is_refused(tmp_path, values):
    source = made(tmp_path, "CREATE TABLE t(key BIGINT, time TIMESTAMP)", f"INSERT INTO t VALUES ({values})")
    with pytest.raises(DefinitionError, match="cannot be read"):
        rows(source)


def test_a_view_a_missing_table_and_a_missing_file_are_refused(tmp_path):
    made(tmp_path, "CREATE TABLE t(key BIGINT, time TIMESTAMP)", "CREATE VIEW v AS SELECT * FROM t")
    file = str(tmp_path / "rows.db")
    with pytest.raises(DefinitionError, match="v is a view"):
        rows(AttachedSource("sqlite", file, "v", BLAKE3))
    with pytest.raises(NotFoundError, match="no table u; the tables are t"):
        rows(AttachedSource("sqlite", file, "u", BLAKE3))
    with pytest.raises(NotFoundError):
        rows(AttachedSource("sqlite", f"{file}x", "t", BLAKE3))
    assert not os.path.lexists(f"{file}x")


def test_what_is_no_sqlite_file_is_refused(tmp_path):
    (tmp_path / "rows.db").write_bytes(b"no database " * 1000)
    with pytest.raises(DefinitionError, match="cannot be read"):
        rows(AttachedSource("sqlite", str(tmp_path / "rows.db"), "t", BLAKE3))


def test_another_kind_of_database_is_refused():
    with pytest.raises(DefinitionError, match="sqlite, postgres, found 'mysql'"):
        AttachedSource("mysql", "place", "t", BLAKE3)
