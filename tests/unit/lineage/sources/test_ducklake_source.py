from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from source_tables_more import lake

from snapline.lineage.cut import Bucket
from snapline.lineage.digest import BulkAlgorithm, file_hex
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.rows.fingerprint import fingerprint
from snapline.lineage.snapshot import Commit
from snapline.lineage.sources.ducklake import DuckLakeSource
from snapline.lineage.sources.protocol import Window

BLAKE3 = BulkAlgorithm.BLAKE3
START = datetime(2013, 1, 1, tzinfo=UTC)
_CREATE = "CREATE TABLE t(key BIGINT, time TIMESTAMPTZ, text VARCHAR)"
_INSERT = "INSERT INTO t SELECT i, TIMESTAMPTZ '2013-01-01' + i * INTERVAL 1 DAY, 'x' FROM range({}, {}) r(i)"


@pytest.fixture(params=["DuckDB", "SQLite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{'sqlite:' if request.param == 'SQLite' else ''}{tmp_path}/lake.db"


@contextmanager
def written(catalog: str, inlined_rows: int = 5) -> Iterator[duckdb.DuckDBPyConnection]:
    with lake(catalog, Path(catalog.removeprefix("sqlite:")).parent / "data", inlined_rows) as database:
        yield database


def write(catalog: str, *statements: str) -> DuckLakeSource:
    with written(catalog) as database:
        for statement in statements:
            database.execute(statement)
    return opened(catalog)


def opened(catalog: str, table: str = "t") -> DuckLakeSource:
    return DuckLakeSource(catalog.removeprefix("sqlite:"), table, BLAKE3)


def rows(source: DuckLakeSource, commit: Commit, window: Window | None = None) -> pa.Table:
    pieces = [piece for name in source.names(commit) for piece in source.scan(commit, name, "time", window, None)]
    return pa.concat_tables([source.schema(commit).empty_table(), *pieces])


def keys(source: DuckLakeSource, commit: Commit, window: Window | None = None) -> list[int]:
    return sorted(rows(source, commit, window)["key"].to_pylist())


def digests(source: DuckLakeSource) -> list[str]:
    return [
        fingerprint(rows(source, commit), time="time", key="key", bucket=Bucket.DAY, algorithm=BLAKE3).digest
        for commit in source.commits()
    ]


def test_rows_and_deletes_kept_in_the_catalogue_are_read_and_told_apart(catalog):
    source = write(catalog, _CREATE, _INSERT.format(0, 100), _INSERT.format(100, 103), "DELETE FROM t WHERE key = 7")
    _, filled, added, deleted = source.commits()
    (file,) = source.names(filled)
    assert source.hexdigest(file) == file_hex(Path(catalog.removeprefix("sqlite:")).parent / file, BLAKE3)
    (inlined,) = set(source.names(added)) - {file}
    assert inlined.startswith("ducklake_inlined_data_")
    (touched,) = set(source.names(deleted)) - {inlined}
    assert touched.startswith(f"{file}#ducklake_inlined_delete_")
    assert len({source.hexdigest(name) for name in (file, inlined, touched)}) == 3
    assert keys(source, filled) == list(range(100))
    assert keys(source, added) == list(range(103))
    assert keys(source, deleted) == [*range(7), *range(8, 103)]
    window = Window(START + timedelta(days=6), START + timedelta(days=9))
    assert keys(source, deleted, window) == [6, 8]


def test_what_a_name_in_the_catalogue_stands_for_keeps_its_digest_while_other_things_change(catalog):
    source = write(catalog, _CREATE, _INSERT.format(0, 100), _INSERT.format(100, 103), "DELETE FROM t WHERE key = 7")
    commit = source.commit()
    before = {name: source.hexdigest(name) for name in source.names(commit)}
    stamps = {name: source.stamp(name) for name in before}
    write(catalog, "CREATE TABLE other(a INTEGER)", "INSERT INTO other VALUES (1)", _INSERT.format(200, 300))
    assert {name: source.hexdigest(name) for name in before} == before
    assert {name for name in before if source.stamp(name) != stamps[name]} == set(before)
    assert set(before) < set(source.names(source.commit()))


def test_upkeep_puts_rows_into_other_files_and_every_listed_commit_still_has_its_rows(catalog):
    parts = (_INSERT.format(0, 40), _INSERT.format(40, 42), "DELETE FROM t WHERE key = 40", _INSERT.format(50, 90))
    source = write(catalog, _CREATE, *parts, "DELETE FROM t WHERE key = 3", "DELETE FROM t WHERE key BETWEEN 60 AND 80")
    commits, before = source.commits(), digests(source)
    assert len(set(before)) == len(commits) == 7
    write(catalog, "CALL ducklake_flush_inlined_data('lake')", "CALL ducklake_merge_adjacent_files('lake')")
    assert source.commits()[: len(commits)] == commits
    assert digests(source)[: len(commits)] == before
    write(catalog, "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    assert digests(source)[: len(commits)] == before
    assert digests(source)[-1] == before[-1]


def test_upkeep_during_a_scan_is_a_conflict_and_never_a_table_without_rows(tmp_path):
    catalog = f"sqlite:{tmp_path}/lake.db"
    source = write(catalog, _CREATE, _INSERT.format(0, 4))
    commit = source.commit()
    (name,) = source.names(commit)
    scan = source.scan(commit, name, "time", None, None)
    next(scan)
    write(catalog, "CALL ducklake_flush_inlined_data('lake')")
    with pytest.raises(ConflictError, match="changed while it was read"):
        list(scan)
    with pytest.raises(NotFoundError, match="no file"):
        list(source.scan(commit, name, "time", None, None))


def test_changes_of_other_tables_are_no_commits_of_this_one(catalog):
    source = write(
        catalog, _CREATE, _INSERT.format(0, 9), "CREATE TABLE u(a INTEGER)", "INSERT INTO u SELECT * FROM range(99)"
    )
    created, filled = source.commits()
    newest = str(int(filled.id) + 2)
    assert source.commit() == source.commit(newest) == filled
    assert source.commit(as_of=filled.at + timedelta(days=1)) == filled
    assert source.commit(as_of=filled.at - timedelta(microseconds=1)) == created
    with pytest.raises(NotFoundError, match=f"no listed snapshot {int(newest) + 1}"):
        source.commit(str(int(newest) + 1))


def test_where_the_snapshot_that_changed_the_table_was_expired_the_next_one_stands_for_it(catalog):
    source = write(catalog, _CREATE, _INSERT.format(0, 9), "CREATE TABLE u(a INTEGER)", _INSERT.format(9, 20))
    _, filled, _ = source.commits()
    write(catalog, f"CALL ducklake_expire_snapshots('lake', versions => [0, 1, {filled.id}])")
    with pytest.raises(NotFoundError, match="expired"):
        source.commit(filled.id)
    with pytest.raises(NotFoundError, match="expired"):
        source.names(filled)
    still, newest = source.commits()
    assert int(still.id) == int(filled.id) + 1
    assert keys(source, still) == list(range(9))
    assert keys(source, newest) == list(range(20))
    with pytest.raises(NotFoundError, match="no listed snapshot at or before"):
        source.commit(as_of=still.at - timedelta(microseconds=1))


def test_schemas_and_renamed_columns_are_those_of_the_commit(catalog):
    source = write(
        catalog,
        "CREATE SCHEMA s",
        "CREATE TABLE s.t(key BIGINT, time TIMESTAMPTZ)",
        "INSERT INTO s.t SELECT i, TIMESTAMPTZ '2013-01-01' FROM range(20) r(i)",
        "ALTER TABLE s.t RENAME COLUMN key TO id",
        "ALTER TABLE s.t ADD COLUMN gate VARCHAR DEFAULT 'B1'",
    )
    with pytest.raises(NotFoundError, match="no table t"):
        source.commit()
    source = opened(catalog, "s.t")
    commits = source.commits()
    assert [source.schema(commit).names for commit in commits] == [
        ["key", "time"],
        ["key", "time"],
        ["id", "time"],
        ["id", "time", "gate"],
    ]
    assert len({source.names(commit) for commit in commits[1:]}) == 1
    (name,) = source.names(commits[3])
    assert {
        gate for piece in source.scan(commits[3], name, "time", None, ["gate"]) for gate in piece["gate"].to_pylist()
    } == {"B1"}


def test_a_missing_data_file_is_named(catalog, tmp_path):
    source = write(catalog, _CREATE, _INSERT.format(0, 20))
    commit = source.commit()
    (name,) = source.names(commit)
    (tmp_path / name).unlink()
    for ask in (source.stamp, source.hexdigest, lambda name: list(source.scan(commit, name, "time", None, None))):
        with pytest.raises(NotFoundError, match=Path(name).name):
            ask(name)


def test_a_column_named_as_what_tells_files_apart_is_refused(catalog):
    source = write(
        catalog,
        "CREATE TABLE t AS SELECT i AS key, TIMESTAMP '2013-01-01' AS time, 'f' AS filename FROM range(20) r(i)",
    )
    with pytest.raises(DefinitionError, match="a column 'filename'"):
        rows(source, source.commit())


def test_a_lake_whose_data_path_is_relative_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with lake(f"sqlite:{tmp_path}/lake.db", Path("data"), 0) as database:
        database.execute(_CREATE)
        database.execute(_INSERT.format(0, 20))
    source = opened(f"{tmp_path}/lake.db")
    with pytest.raises(DefinitionError, match="'data/main/t/'; expected an absolute path"):
        source.names(source.commit())


def test_what_is_no_lake_is_refused(tmp_path):
    with pytest.raises(NotFoundError):
        opened(f"{tmp_path}/lake.db").commit()
    with duckdb.connect(str(tmp_path / "lake.db")) as database:
        database.execute("CREATE TABLE t(key BIGINT)")
    with pytest.raises(NotFoundError, match="ducklake_metadata does not exist"):
        opened(f"{tmp_path}/lake.db").commit()
    (tmp_path / "lake.db").write_bytes(b"no lake " * 1000)
    with pytest.raises(DefinitionError, match="cannot be read"):
        opened(f"{tmp_path}/lake.db").commit()


def test_a_lake_of_another_format_is_refused(tmp_path):
    with duckdb.connect(str(tmp_path / "lake.db")) as database:
        database.execute("CREATE TABLE ducklake_metadata AS SELECT 'version' AS key, '2.0' AS value")
    with pytest.raises(DefinitionError, match=r"a lake of format 2\.0; expected 1\."):
        opened(f"{tmp_path}/lake.db").commit()


def test_a_dropped_table_is_gone_and_one_made_anew_goes_on_with_its_history(catalog):
    source = write(catalog, _CREATE, _INSERT.format(0, 20))
    then = source.commit()
    write(catalog, "DROP TABLE t")
    with pytest.raises(NotFoundError, match="no table t"):
        source.commit()
    write(catalog, _CREATE, _INSERT.format(50, 70))
    assert keys(source, source.commit()) == list(range(50, 70))
    assert keys(source, source.commit(then.id)) == list(range(20))


def test_reading_leaves_the_lake_as_it_is(catalog, tmp_path):
    source = write(catalog, _CREATE, _INSERT.format(0, 20), _INSERT.format(20, 22), "DELETE FROM t WHERE key = 3")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    stamp = source.stamp(source.names(source.commit())[0])
    assert digests(source)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert source.stamp(source.names(source.commit())[0]) == stamp
    shutil.rmtree(tmp_path)
