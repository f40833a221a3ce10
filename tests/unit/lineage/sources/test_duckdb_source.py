from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from snapline.lineage.cut import Bucket
from snapline.lineage.digest import BulkAlgorithm, file_hex
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.rows.encoding import columns_of
from snapline.lineage.rows.fingerprint import fingerprint
from snapline.lineage.sources.database import attached
from snapline.lineage.sources.duckdb_file import DuckDBSource
from snapline.lineage.sources.protocol import Window

BLAKE3 = BulkAlgorithm.BLAKE3
START = datetime(2013, 1, 1, tzinfo=UTC)
_LEAVE_A_LOG = """
import duckdb, os, sys
database = duckdb.connect(sys.argv[1])
database.execute("PRAGMA disable_checkpoint_on_shutdown")
database.execute("INSERT INTO t VALUES (2, TIMESTAMP '2013-01-02')")
os._exit(0)
"""
_HOLD = "import duckdb, sys; held = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"


def made(folder: Path, *statements: str, table: str = "t") -> DuckDBSource:
    with duckdb.connect(str(folder / "rows.duckdb")) as database:
        for statement in statements:
            database.execute(statement)
    return DuckDBSource(folder / "rows.duckdb", table, BLAKE3)


def rows(
    source: DuckDBSource, window: Window | None = None, columns: Sequence[str] | None = None, time: str = "time"
) -> pa.Table:
    commit = source.commit()
    (name,) = source.names(commit)
    pieces = list(source.scan(commit, name, time, window, columns))
    return pa.concat_tables(pieces) if pieces else source.schema(commit).empty_table()


def test_a_log_beside_the_file_is_read_hashed_and_left_alone(tmp_path):
    source = made(tmp_path, "CREATE TABLE t AS SELECT 1 AS key, TIMESTAMP '2013-01-01' AS time")
    path, commit = source.place.path, source.commit()
    stamp, hexdigest = source.stamp("rows.duckdb"), source.hexdigest("rows.duckdb")
    assert hexdigest == file_hex(path, BLAKE3)
    subprocess.run([sys.executable, "-c", _LEAVE_A_LOG, str(path)], check=True)
    log = tmp_path / "rows.duckdb.wal"
    before = log.read_bytes(), path.read_bytes(), source.stamp("rows.duckdb")
    assert before[1]
    assert before[2] != stamp
    assert source.commit() != commit
    assert source.hexdigest("rows.duckdb") not in (hexdigest, file_hex(path, BLAKE3))
    assert rows(source)["key"].to_pylist() == [1, 2]
    assert (log.read_bytes(), path.read_bytes(), source.stamp("rows.duckdb")) == before


def test_a_file_that_another_program_writes_is_a_conflict(tmp_path):
    source = made(tmp_path, "CREATE TABLE t AS SELECT 1 AS key, TIMESTAMP '2013-01-01' AS time")
    command = [sys.executable, "-c", _HOLD, str(source.place.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"held\n"
        with pytest.raises(ConflictError, match="written by another program") as refused:
            rows(source)
        writer.stdin.close()
    assert "Wait" in refused.value.hint
    assert rows(source).num_rows == 1


def test_a_file_that_this_program_writes_is_a_conflict(tmp_path):
    source = made(tmp_path, "CREATE TABLE t AS SELECT 1 AS key, TIMESTAMP '2013-01-01' AS time")
    with duckdb.connect(str(source.place.path)), pytest.raises(ConflictError):
        rows(source)


def test_a_file_replaced_during_a_scan_is_a_conflict(tmp_path):
    source = made(tmp_path, "CREATE TABLE t AS SELECT range AS key, TIMESTAMP '2013-01-01' AS time FROM range(300000)")
    commit = source.commit()
    scan = source.scan(commit, "rows.duckdb", "time", None, None)
    next(scan)
    copy = tmp_path / "copy"
    copy.write_bytes(source.place.path.read_bytes())
    copy.replace(source.place.path)
    with pytest.raises(ConflictError, match="changed while it was read"):
        list(scan)
    with pytest.raises(NotFoundError, match="keeps no history"):
        DuckDBSource(source.place.path, "t", BLAKE3).names(commit)


def test_a_view_is_refused_and_a_missing_table_named_with_those_there_are(tmp_path):
    statements = (
        "CREATE TABLE t AS SELECT 1 AS key, TIMESTAMP '2013-01-01' AS time",
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE SCHEMA s",
        "CREATE TABLE s.u AS FROM t",
    )
    made(tmp_path, *statements)
    file = tmp_path / "rows.duckdb"
    with pytest.raises(DefinitionError, match="v is a view"):
        rows(DuckDBSource(file, "v", BLAKE3))
    for missing in ("u", "s.t", "t; DROP TABLE t", "duckdb_tables()", ""):
        with pytest.raises(NotFoundError, match=r"the tables are s\.u, t"):
            rows(DuckDBSource(file, missing, BLAKE3))
    assert rows(DuckDBSource(file, "s.u", BLAKE3)).num_rows == rows(DuckDBSource(file, "main.t", BLAKE3)).num_rows == 1


def test_names_are_quoted(tmp_path):
    odd = 'a "b".c; --'
    quoted = '"a ""b"".c; --"'
    statement = f"CREATE TABLE {quoted} AS SELECT 1 AS {quoted}, TIMESTAMP '2013-01-01' AS \"the time?\""
    source = made(tmp_path, statement, table=odd)
    assert rows(source, Window(START, START + timedelta(days=1)), time="the time?").column_names == [odd, "the time?"]
    assert rows(source, None, [odd], "the time?")[odd].to_pylist() == [1]


@pytest.mark.parametrize(
    "value",
    [
        "1::HUGEINT",
        "1::UHUGEINT",
        "1::BIGNUM",
        "INTERVAL 1 DAY",
        "'01:00:00+02'::TIMETZ",
        "'101'::BIT",
        "union_value(n := 1)",
        "[1::HUGEINT]",
        "{'a': {'b': 1::HUGEINT}}",
        "MAP {'a'::ENUM('a'): 1}",
        "MAP {TIME '01:00': 1}",
    ],
)
def test_a_type_that_arrow_cannot_hold_in_full_is_refused(tmp_path, value):
    source = made(tmp_path, f"CREATE TABLE t AS SELECT 1 AS key, TIMESTAMP '2013-01-01' AS time, {value} AS odd")
    with pytest.raises(DefinitionError, match=r"'odd'.*cannot leave DuckDB"):
        source.schema(source.commit())
    with pytest.raises(DefinitionError, match=r"'odd'.*cannot leave DuckDB"):
        rows(source)


def test_enums_uuids_and_json_are_their_text(tmp_path):
    uuid = "6b0b3f7e-5f5c-4f0e-8a5c-2f9d3f0f1a2b"
    values = f"'a'::ENUM('b', 'a') AS e, '{uuid}'::UUID AS u, '{{\"x\":1}}'::JSON AS j"
    source = made(tmp_path, f"CREATE TABLE t AS SELECT TIMESTAMP '2013-01-01' AS time, {values}")
    found = rows(source, None, ["e", "u", "j"])
    assert [column.type for column in columns_of(found.schema)] == ["string"] * 3
    assert found.to_pylist() == [{"e": "a", "u": uuid, "j": '{"x":1}'}]


@pytest.mark.parametrize("kind", ["TIMESTAMP_NS", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_MS", "TIMESTAMP_S", "DATE"])
def test_every_kind_of_time_is_cut_exactly_before_1970_too(tmp_path, kind):
    texts = ["1969-12-30", "1969-12-31", "1970-01-01", "1970-01-02"]
    values = ", ".join(f"({key}, '{text}'::{kind})" for key, text in enumerate(texts))
    source = made(tmp_path, f"CREATE TABLE t(key BIGINT, time {kind})", f"INSERT INTO t VALUES {values}, (9, NULL)")
    window = Window(datetime(1969, 12, 31, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC))
    assert rows(source, window)["key"].to_pylist() == [1, 9]
    all_time = Window(datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))
    assert rows(source, all_time)["key"].to_pylist() == [0, 1, 2, 3, 9]


def test_a_nanosecond_before_1970_is_before_1970(tmp_path):
    values = "(0, '1969-12-31 23:59:59.999999999'), (1, '1970-01-01')"
    source = made(tmp_path, "CREATE TABLE t(key BIGINT, time TIMESTAMP_NS)", f"INSERT INTO t VALUES {values}")
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert rows(source, Window(epoch - timedelta(hours=1), epoch))["key"].to_pylist() == [0]
    assert rows(source, Window(epoch, epoch + timedelta(hours=1)))["key"].to_pylist() == [1]


def test_many_pieces_of_nested_rows_have_the_digest_of_the_arrow_table(tmp_path):
    count = 130_000  # more than one piece
    table = pa.table(
        {
            "key": pa.array(range(count), pa.int64()),
            "time": pa.array([START + timedelta(minutes=n) for n in range(count)], pa.timestamp("us", "UTC")),
            "map": pa.array(
                [[("k", n), ("l", None)] if n % 7 else None for n in range(count)], pa.map_("string", "int64")
            ),
            "list": pa.array([["x"] * (n % 3) for n in range(count)], pa.list_(pa.string())),
            "float": pa.array([float("nan") if n % 5 == 0 else n / 3 for n in range(count)], pa.float64()),
        }
    )
    with duckdb.connect(str(tmp_path / "rows.duckdb")) as database:
        database.register("given", table)
        database.execute("CREATE TABLE t AS FROM given")
    source = DuckDBSource(tmp_path / "rows.duckdb", "t", BLAKE3)
    pieces = list(source.scan(source.commit(), "rows.duckdb", "time", None, None))
    assert len(pieces) > 1
    digests = {
        fingerprint(each, time="time", key="key", bucket=Bucket.WEEK, algorithm=BLAKE3).digest
        for each in (table, pa.concat_tables(pieces))
    }
    assert len(digests) == 1


def test_what_is_no_duckdb_file_is_refused(tmp_path):
    file = tmp_path / "rows.duckdb"
    source = DuckDBSource(file, "t", BLAKE3)
    with pytest.raises(NotFoundError):
        source.commit()
    file.write_bytes(b"no database " * 1000)
    with pytest.raises(DefinitionError, match="not a valid DuckDB database"):
        rows(source)
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DefinitionError, match="not a regular file"):
        source.commit()


def test_an_extension_that_is_not_installed_is_named_with_its_extra():
    opening = attached("ATTACH ':memory:' AS source", "a database", ["nothing"], alone=True)
    with pytest.raises(DefinitionError, match="needs its extension nothing") as refused, opening:
        pass
    assert refused.value.hint == "pip install 'snapline[attach]'"


def test_the_connection_reaches_no_other_file_and_cannot_be_unlocked(tmp_path):
    with duckdb.connect(str(tmp_path / "rows.duckdb")) as database:
        database.execute("CREATE TABLE t(key BIGINT)")
    (tmp_path / "secret.csv").write_text("a\n1\n")
    statement = f"ATTACH '{tmp_path}/rows.duckdb' AS source (READ_ONLY)"
    for forbidden in (
        f"SELECT * FROM '{tmp_path}/secret.csv'",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
        f"ATTACH '{tmp_path}/new.duckdb'",
        "SET enable_external_access = true",
        "INSERT INTO source.t VALUES (1)",
        "INSTALL httpfs",
    ):
        opening = attached(statement, "a database", alone=True)
        with pytest.raises(DefinitionError, match="a database cannot be read"), opening as database:
            database.execute(forbidden)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.duckdb", "secret.csv"]


def test_another_name_or_version_is_refused(tmp_path):
    source = made(tmp_path, "CREATE TABLE t AS SELECT 1 AS key, TIMESTAMP '2013-01-01' AS time")
    for ask in (source.stamp, source.hexdigest):
        with pytest.raises(NotFoundError, match="no file 'other'"):
            ask("other")
    with pytest.raises(DefinitionError, match="keeps no history"):
        source.commit("other")
