"""Makers of the tables that Iceberg, DuckDB, attached databases and DuckLake keep."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import duckdb
import pyarrow as pa
from pyarrow.fs import FileSystem
from source_tables import BUCKET, KEY, Maker, corrected, without

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table, Transaction

_SMALL_INTEGERS = frozenset({"int8", "int16", "uint8", "uint16", "uint32", "uint64"})
_DUCKDB_LACKS = frozenset({"float16", "decimal256", "duration"})


class Iceberg:
    """A local table under a SQLite catalogue; what changes a row rewrites the files that hold it."""

    name = "iceberg"
    travels = True
    appends = True
    remote = False
    # Iceberg has no smaller integers than 32 bits and nothing unsigned, and nanoseconds only in its third format.
    cannot_hold: ClassVar[frozenset[str]] = _SMALL_INTEGERS | {
        "float16",
        "decimal256",
        "duration",
        "nanoseconds",
        "dictionary",
        "deep",
    }

    def create(self, folder: Path, table: pa.Table) -> str:
        self.folder = folder
        with self._catalog() as catalog:
            catalog.create_namespace("space")
            made = catalog.create_table("space.flights", schema=_in_utc(table).schema)
            made.append(_in_utc(table))
        return f"iceberg:{folder}/catalog.db#space.flights"

    def append(self, table: pa.Table) -> None:
        with self._catalog() as catalog:
            catalog.load_table("space.flights").append(_in_utc(table))

    def overwrite(self, table: pa.Table) -> None:
        self._rewrite(lambda rows: corrected(rows, table))

    def delete(self, keys: Sequence[int]) -> None:
        with self._catalog() as catalog:
            catalog.load_table("space.flights").delete(f"{KEY} in ({', '.join(map(str, keys))})")

    def replace(self, table: pa.Table) -> None:
        with self._catalog() as catalog:
            made = catalog.load_table("space.flights")
            there = made.schema().as_arrow()
            changed = [
                field.name
                for field in table.schema
                if field.name in there.names and not _alike(field.type, there.field(field.name).type)
            ]
            with made.update_schema(allow_incompatible_changes=True) as update:
                for name in changed:
                    update.delete_column(name)
            with made.update_schema() as update:
                update.union_by_name(table.schema)
        self._rewrite(lambda _: table)

    def expire(self) -> None:
        with self._catalog() as catalog:
            made = catalog.load_table("space.flights")
            made.maintenance.expire_snapshots().by_id(made.snapshots()[0].snapshot_id).commit()

    def drop(self) -> None:
        with self._catalog() as catalog:
            catalog.drop_table("space.flights")
        self._remove()

    def _warehouse(self) -> dict[str, str]:
        return {"warehouse": f"file://{self.folder}"}

    def _remove(self) -> None:
        shutil.rmtree(self.folder / "space")

    @contextmanager
    def _catalog(self) -> Iterator[SqlCatalog]:
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("any name", uri=f"sqlite:///{self.folder}/catalog.db", **self._warehouse())
        try:
            yield catalog
        finally:
            catalog.close()

    def _rewrite(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Put other rows in the place of all that are there, in one snapshot."""
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        with self._catalog() as catalog:
            made: Table = catalog.load_table("space.flights")
            there = made.scan()
            rows = _in_utc(change(there.to_arrow()))
            rows = rows.select(made.schema().column_names)
            transaction: Transaction
            with made.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
                for task in there.plan_files():
                    overwrite.delete_data_file(task.file)
                for file in _dataframe_to_data_files(transaction.table_metadata, rows, made.io):
                    overwrite.append_data_file(file)


class IcebergOnS3(Iceberg):
    """The same in an object store; the catalogue stays on this machine."""

    name = "iceberg on s3"
    remote = True

    def _warehouse(self) -> dict[str, str]:
        endpoint, region = os.environ["AWS_ENDPOINT_URL"], os.environ["AWS_REGION"]
        return {"warehouse": f"s3://{BUCKET}/{self.folder.name}", "s3.endpoint": endpoint, "s3.region": region}

    def _remove(self) -> None:
        store, path = FileSystem.from_uri(f"s3://{BUCKET}/{self.folder.name}")
        store.delete_dir(path)


def _alike(one: pa.DataType, other: pa.DataType) -> bool:
    return one.equals(other) or {str(one).removeprefix("large_"), str(other).removeprefix("large_")} == {"string"}


def _in_utc(table: pa.Table) -> pa.Table:
    """Return a table with the one zone that Iceberg writes, and with its coarser times as microseconds."""
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(at, field.name, table.column(at).cast(pa.timestamp("us", field.type.tz and "UTC")))
    return table


class DuckDB:
    """A DuckDB file, put in place whole for every change: while one program writes it, no other can read it."""

    name = "duckdb"
    travels = False
    appends = False
    remote = False
    cannot_hold: ClassVar[frozenset[str]] = _DUCKDB_LACKS

    def create(self, folder: Path, table: pa.Table) -> str:
        self.path = folder / "rows.duckdb"
        self.replace(table)
        return f"duckdb:{self.path}#flights"

    def append(self, table: pa.Table) -> None:
        self.replace(pa.concat_tables([self.table, table.cast(self.table.schema)]))

    def overwrite(self, table: pa.Table) -> None:
        self.replace(corrected(self.table, table))

    def delete(self, keys: Sequence[int]) -> None:
        self.replace(without(self.table, keys))

    def replace(self, table: pa.Table) -> None:
        self.table = table
        new = self.path.with_suffix(".new")
        with duckdb.connect(str(new)) as database:
            database.register("rows", table)
            # DuckDB's compression of floats takes 0.0 for -0.0 where both are near.
            database.execute("PRAGMA force_compression = 'uncompressed'")
            database.execute("CREATE TABLE flights AS FROM rows")
        new.replace(self.path)

    def expire(self) -> None:
        raise NotImplementedError

    def drop(self) -> None:
        self.path.unlink()


class Sqlite:
    """A table of a SQLite file, changed in place by transactions."""

    name = "attached sqlite"
    travels = False
    appends = False
    remote = False
    # SQLite knows 64-bit integers, floats without NaN or -0.0, text and bytes; the extension adds dates and timestamps.
    cannot_hold: ClassVar[frozenset[str]] = (
        _SMALL_INTEGERS
        | _DUCKDB_LACKS
        | {"int32", "float32", "float64", "boolean", "time_of_day", "nanoseconds", "decimal"}
        | {"list", "struct", "map", "deep"}
    )

    def create(self, folder: Path, table: pa.Table) -> str:
        self.path = folder / "rows.db"
        self.replace(table)
        return f"attach:sqlite:{self.path}#flights"

    def append(self, table: pa.Table) -> None:
        with self._writing() as database:
            _insert(database, table)

    def overwrite(self, table: pa.Table) -> None:
        with self._writing() as database:
            database.executemany(f"DELETE FROM flights WHERE {KEY} = ?", [(key,) for key in table[KEY].to_pylist()])
            _insert(database, table)

    def delete(self, keys: Sequence[int]) -> None:
        with self._writing() as database:
            database.executemany(f"DELETE FROM flights WHERE {KEY} = ?", [(key,) for key in keys])

    def replace(self, table: pa.Table) -> None:
        with self._writing() as database:
            database.execute("DROP TABLE IF EXISTS flights")
            columns = ", ".join(f'"{field.name}" {_sqlite_type(field.type)}' for field in table.schema)
            database.execute(f"CREATE TABLE flights ({columns})")
            _insert(database, table)

    def expire(self) -> None:
        raise NotImplementedError

    def drop(self) -> None:
        self.path.unlink()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path)) as database, database:
            yield database


def _insert(database: sqlite3.Connection, table: pa.Table) -> None:
    places = ", ".join("?" for _ in table.column_names)
    rows = zip(*(map(_sqlite_value, column.to_pylist()) for column in table.columns), strict=True)
    database.executemany(f"INSERT INTO flights VALUES ({places})", rows)


def _sqlite_type(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "TIMESTAMPTZ" if kind.tz else "TIMESTAMP"
    names = {"int64": "BIGINT", "double": "DOUBLE", "date32[day]": "DATE", "binary": "BLOB"}
    return names.get(str(kind), "TEXT")


def _sqlite_value(value: object) -> object:
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat(" ")
    return value.isoformat() if isinstance(value, date) else value


class DuckLake:
    """A lake of local files under a SQLite catalogue, which many programs can use at once."""

    name = "ducklake"
    travels = True
    appends = True
    remote = False
    cannot_hold: ClassVar[frozenset[str]] = _DUCKDB_LACKS
    inlined_rows: ClassVar[int] = 0

    def create(self, folder: Path, table: pa.Table) -> str:
        self.folder = folder
        self._run("CREATE TABLE flights AS FROM rows", table)
        return f"ducklake:{folder}/lake.db#flights"

    def append(self, table: pa.Table) -> None:
        self._run("INSERT INTO flights FROM rows", table)

    def overwrite(self, table: pa.Table) -> None:
        self._run(f"DELETE FROM flights WHERE {KEY} IN (SELECT {KEY} FROM rows); INSERT INTO flights FROM rows", table)

    def delete(self, keys: Sequence[int]) -> None:
        self._run(f"DELETE FROM flights WHERE {KEY} IN ({', '.join(map(str, keys))})")

    def replace(self, table: pa.Table) -> None:
        self._run("DROP TABLE flights; CREATE TABLE flights AS FROM rows", table)

    def expire(self) -> None:
        with self._lake() as database:
            made = "list_contains(changes['tables_created'], 'main.flights')"
            first = database.sql(f"SELECT snapshot_id FROM lake.snapshots() WHERE {made}").fetchall()[0][0]
            database.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{first}])")
            database.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")

    def drop(self) -> None:
        self._run("DROP TABLE flights")

    def _run(self, statements: str, rows: pa.Table | None = None) -> None:
        with self._lake() as database:
            if rows is not None:
                database.register("rows", rows)
            database.execute(f"BEGIN; {statements}; COMMIT")

    @contextmanager
    def _lake(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with lake(f"sqlite:{self.folder}/lake.db", self.folder / "data", self.inlined_rows) as database:
            yield database


class InliningDuckLake(DuckLake):
    """A lake that keeps few rows, and the deletes of few rows, in its catalogue."""

    name = "ducklake inlined"
    appends = False
    inlined_rows: ClassVar[int] = 100


@contextmanager
def lake(catalog: str, data: Path, inlined_rows: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection that can write a lake, which is its default database."""
    unchecked = {"threads": 1, "allow_unsigned_extensions": True}  # checking signatures takes most of the time
    with duckdb.connect(":memory:", config=unchecked) as database:
        for name in ("ducklake", "sqlite_scanner"):
            load(database, name)
        database.execute(
            f"ATTACH 'ducklake:{catalog}' AS lake (DATA_PATH '{data}/', DATA_INLINING_ROW_LIMIT {inlined_rows})"
        )
        database.execute("USE lake")
        yield database


def load(database: duckdb.DuckDBPyConnection, name: str) -> None:
    """Load a packaged extension."""
    (folder,) = find_spec(f"duckdb_extension_{name}").submodule_search_locations
    database.execute(f"LOAD '{folder}/extensions/v{duckdb.__version__}/{name}.duckdb_extension'")


MORE_MAKERS: list[type[Maker]] = [Iceberg, IcebergOnS3, DuckDB, Sqlite, DuckLake, InliningDuckLake]
