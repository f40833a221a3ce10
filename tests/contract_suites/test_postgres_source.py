"""What a table of a PostgreSQL server shows of itself: its rows, and which versions of them it holds."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from source_rows import HOUR, START, flights

from snapline.lineage.cut import Bucket
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.rows.fingerprint import fingerprint
from snapline.lineage.sources.opening import normalise, open_source
from snapline.lineage.sources.protocol import Source, Window

pytestmark = pytest.mark.postgres
Run = Callable[[str], None]


@pytest.fixture
def schema() -> str:
    return f"s{uuid.uuid4().hex}"


@pytest.fixture
def run(postgres_server: Path, schema: str) -> Iterator[Run]:
    """Run statements on a connection of their own, where the table `flights` has ten rows."""
    with psycopg.connect(f"host={postgres_server} user=postgres dbname=postgres", autocommit=True) as connection:

        def execute(statement: str) -> None:
            connection.execute(statement.encode())

        execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}")
        execute("CREATE TABLE flights(key bigint, time timestamptz, carrier text, delay double precision)")
        execute(
            "INSERT INTO flights SELECT i, timestamptz '2013-01-01 00:00+00' + i * interval '1 hour', 'UA', i / 2.0 "
            "FROM generate_series(0, 9) r(i)"
        )
        yield execute


def opened(server: Path, schema: str, table: str = "flights") -> Source:
    spec = f"attach:postgres:host={server} user=postgres dbname=postgres#{schema}.{table}"
    return open_source(normalise(spec, Path("/")), BulkAlgorithm.BLAKE3)


def rows(source: Source, window: Window | None = None) -> pa.Table:
    commit = source.commit()
    (name,) = source.names(commit)
    pieces = list(source.scan(commit, name, "time", window, None))
    return pa.concat_tables([source.schema(commit).empty_table(), *pieces])


def test_the_rows_have_the_digest_they_have_everywhere(postgres_server: Path, schema: str, run: Run) -> None:
    found = rows(opened(postgres_server, schema))
    digests = {
        fingerprint(table, time="time", key="key", bucket=Bucket.DAY, algorithm=BulkAlgorithm.BLAKE3).digest
        for table in (found, flights(range(10)))
    }
    assert len(digests) == 1
    window = Window(START + 2 * HOUR, START + 4 * HOUR)
    assert rows(opened(postgres_server, schema), window)["key"].to_pylist() == [2, 3]


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO flights VALUES (10, now(), 'UA', 1)",
        "UPDATE flights SET carrier = 'AA' WHERE key = 3",
        "UPDATE flights SET carrier = carrier WHERE key = 3",
        "DELETE FROM flights WHERE key = 3",
        "TRUNCATE flights",
        "ALTER TABLE flights ADD COLUMN gate text DEFAULT 'B1'",
        "ALTER TABLE flights RENAME COLUMN carrier TO airline",
        "DROP TABLE flights; CREATE TABLE flights(key bigint, time timestamptz)",
    ],
)
def test_every_change_shows(postgres_server: Path, schema: str, run: Run, change: str) -> None:
    source = opened(postgres_server, schema)
    commit = source.commit()
    (name,) = source.names(commit)
    before = source.stamp(name), source.hexdigest(name)
    run(change)
    assert source.commit() != commit
    assert source.stamp(name) != before[0]
    assert source.hexdigest(name) != before[1]


def test_what_changes_no_row_does_not_show(postgres_server: Path, schema: str, run: Run) -> None:
    source = opened(postgres_server, schema)
    commit = source.commit()
    (name,) = source.names(commit)
    before = source.stamp(name), source.hexdigest(name)
    run("CREATE TABLE other(a int); INSERT INTO other VALUES (1)")
    run("VACUUM ANALYZE flights")
    run("BEGIN; DELETE FROM flights; ROLLBACK")
    assert source.commit() == commit
    assert (source.stamp(name), source.hexdigest(name)) == before


def test_a_change_during_a_scan_is_a_conflict(postgres_server: Path, schema: str, run: Run) -> None:
    source = opened(postgres_server, schema)
    scan = source.scan(source.commit(), f"{schema}.flights", "time", None, None)
    next(scan)
    run("DELETE FROM flights WHERE key = 3")
    with pytest.raises(ConflictError, match="changed while it was read"):
        list(scan)


@pytest.mark.parametrize("kind", ["numeric", "numeric(50, 2)"])
def test_numbers_that_would_be_rounded_are_refused(postgres_server: Path, schema: str, run: Run, kind: str) -> None:
    run(f"ALTER TABLE flights ADD COLUMN price {kind}")
    with pytest.raises(DefinitionError, match="would be rounded: price"):
        opened(postgres_server, schema).commit()
    run("ALTER TABLE flights ALTER COLUMN price TYPE numeric(38, 2)")
    assert rows(opened(postgres_server, schema)).schema.field("price").type == pa.decimal128(38, 2)


def test_what_is_no_plain_table_is_refused(postgres_server: Path, schema: str, run: Run) -> None:
    run("CREATE VIEW v AS SELECT * FROM flights")
    run("CREATE UNLOGGED TABLE u(key bigint)")
    for table in ("v", "u"):
        with pytest.raises(DefinitionError, match="is a view"):
            opened(postgres_server, schema, table).commit()
    with pytest.raises(NotFoundError, match="has no table"):
        opened(postgres_server, schema, "missing").commit()
    with pytest.raises(DefinitionError, match="keeps no history"):
        opened(postgres_server, schema).commit(as_of=START + timedelta(days=1))


def test_a_partitioned_table_is_one_table(postgres_server: Path, schema: str, run: Run) -> None:
    run("CREATE TABLE p(key bigint, time timestamptz) PARTITION BY RANGE (key)")
    run("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    run("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
    run("INSERT INTO p VALUES (1, now()), (11, now())")
    source = opened(postgres_server, schema, "p")
    commit = source.commit()
    assert sorted(rows(source)["key"].to_pylist()) == [1, 11]
    run("DELETE FROM p2")
    assert source.commit() != commit


def test_a_server_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="PostgreSQL server"):
        opened(tmp_path, "public").commit()
