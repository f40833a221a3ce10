"""Tables of SQLite files and PostgreSQL servers, which DuckDB attaches with its packaged extensions.

SQLite: the type of a column is the one it was declared with. Times must be declared DATE, DATETIME, TIMESTAMP or
TIMESTAMPTZ, and hold ISO text in UTC or seconds since 1970; integers are 64 bits wide, BOOLEAN is an integer, and
DECIMAL, which SQLite keeps as a float, is one. Text in a column of numbers stops the read.

PostgreSQL: a server shows no files, so it is asked which versions of rows (table, place and transaction of each) the
table holds. Reading that costs the server one pass over the table and sends no rows. Every insert, update and delete
makes another answer; so does a table that was only rewritten, and then its rows are read again. The answer stands for
the bytes: unlike those of a file, whoever runs the server could forge it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from snapline.lineage.digest import BulkAlgorithm, bytes_hex
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.files import FileStamp, hash_file, stamp_of
from snapline.lineage.sources.bundle import bundle_hex, bundle_stamp
from snapline.lineage.sources.database import ATTACHED, attached, identifier, literal
from snapline.lineage.sources.database_table import DatabaseTable, Place

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_INODE_DIGITS = 12  # 48 bits
_IN_FULL = 38  # decimal digits
_TIMES = """SELECT name, lower(type) LIKE 'timestamptz%' OR lower(type) LIKE '%with time zone%'
    FROM pragma_table_info(?) WHERE lower(type) LIKE 'timestamp%' OR lower(type) LIKE 'datetime%'"""
_SHIFTED = """(typeof({0}) = 'text' AND substr({0}, 12) GLOB '*[+-]*'
    AND NOT ({0} GLOB '*[+-]00:00' OR {0} GLOB '*[+-]0000' OR {0} GLOB '*[+-]00'))"""
_TABLE = """SELECT c.oid::text AS id, s.system_identifier::text AS server, c.relkind::text AS kind,
    c.relpersistence::text AS persistence,
    (SELECT string_agg(concat_ws(' ', attnum, attname, atttypid, atttypmod, attmissingval), ',' ORDER BY attnum)
        FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped) AS columns,
    (SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute
        WHERE attrelid = c.oid AND atttypid = 'numeric'::regtype AND NOT attisdropped
        AND (atttypmod < 0 OR ((atttypmod - 4) >> 16) > {digits})) AS wide
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, pg_control_system() s
    WHERE n.nspname = {schema} AND c.relname = {table}"""
_VERSIONS = """SELECT count(*)::text AS rows,
    coalesce(sum(hashtextextended(concat_ws(' ', tableoid, ctid, xmin), 0)), 0)::text AS one,
    coalesce(sum(hashtextextended(concat_ws(' ', tableoid, ctid, xmin), 1)), 0)::text AS two
    FROM {table}"""


class SqliteFile:
    """A SQLite file and, while it has one, the write-ahead log beside it."""

    schema: ClassVar[str] = "main"

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    def open(self) -> AbstractContextManager[DuckDBPyConnection]:
        """Attach the file."""
        stamp_of(self.path)
        statement = f"ATTACH {literal(str(self.path))} AS {ATTACHED} (TYPE sqlite, READ_ONLY)"
        return attached(statement, str(self.path), ["sqlite_scanner"], alone=True)

    def relation(self, schema: str, table: str) -> str:
        """Return a table, its instants declared with a zone as such; the extension reads them in UTC, without one.

        Raises:
            DefinitionError: A time is written with an offset from UTC, which the extension would drop.
        """
        with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            times = dict(connection.execute(_TIMES, (table,)).fetchall())
            columns = [identifier(name) for name in times]
            shifted = " OR ".join(_SHIFTED.format(column) for column in columns) or "false"
            if connection.execute(f"SELECT EXISTS (SELECT 1 FROM {identifier(table)} WHERE {shifted})").fetchone()[0]:
                raise DefinitionError(
                    f"{self.name} has times with an offset from UTC in {', '.join(times)}", hint="Write them in UTC."
                )
        named = identifier(ATTACHED, schema, table)
        zoned = [column for column, with_zone in zip(columns, times.values(), strict=True) if with_zone]
        casts = ", ".join(f"{column}::TIMESTAMPTZ AS {column}" for column in zoned)
        return f"(SELECT * REPLACE ({casts}) FROM {named})" if zoned else named

    def stamp(self) -> FileStamp:
        """Return the stamp of the file, with its log's.

        The log's change time is left out: SQLite run by root gives the log's owner to it whenever it opens it.
        """
        stamps = [stamp_of(path) for path in self._paths()]
        return bundle_stamp([*stamps[:1], *(stamp.model_copy(update={"ctime_ns": 0}) for stamp in stamps[1:])])

    def hexdigest(self, algorithm: BulkAlgorithm) -> str:
        """Return the digest of the file's bytes, with its log's.

        Raises:
            ConflictError: They changed while they were read.
        """
        hashed = [hash_file(path.parent, path.name, algorithm) for path in self._paths()]
        return bundle_hex([file.hexdigest for file in hashed], algorithm)

    def _paths(self) -> list[Path]:
        log = Path(f"{self.path}-wal")
        return [self.path, log] if log.exists() else [self.path]


class PostgresTable:
    """A table on a PostgreSQL server.

    Args:
        dsn: A libpq connection string or URI without a password; libpq finds that by itself.
        table: `NAME` in the schema public, or `SCHEMA.NAME`.
    """

    schema: ClassVar[str] = "public"

    def __init__(self, dsn: str, table: str) -> None:
        schema, _, name = table.rpartition(".")
        self.dsn = dsn
        self.name = f"{schema or self.schema}.{name}"
        self._named = (schema or self.schema, name)

    def open(self) -> AbstractContextManager[DuckDBPyConnection]:
        """Attach the server's database; all rows are read from one snapshot of it."""
        statement = f"ATTACH {literal(self.dsn)} AS {ATTACHED} (TYPE postgres, READ_ONLY)"
        return attached(statement, "the PostgreSQL server", ["postgres_scanner"], alone=True)

    def relation(self, schema: str, table: str) -> str:
        """Return the quoted name of a table."""
        return identifier(ATTACHED, schema, table)

    def stamp(self) -> FileStamp:
        """Return the number of rows, and 48 bits of what `hexdigest` digests in the place of the inode; no times."""
        rows, versions = self._versions()
        digest = bytes_hex(versions.encode(), BulkAlgorithm.SHA256)
        return FileStamp(size_bytes=rows, mtime_ns=0, ctime_ns=0, inode=int(digest[:_INODE_DIGITS], 16))

    def hexdigest(self, algorithm: BulkAlgorithm) -> str:
        """Return the digest of the server's, the table's and the columns' identity and the versions of all rows."""
        return bytes_hex(self._versions()[1].encode(), algorithm)

    def _versions(self) -> tuple[int, str]:
        schema, table = self._named
        with self.open() as database:

            def ask(query: str) -> list[tuple[str, ...]]:
                return database.execute(f"SELECT * FROM postgres_query('{ATTACHED}', ?)", [query]).fetchall()

            described = ask(_TABLE.format(schema=literal(schema), table=literal(table), digits=_IN_FULL))
            self._refuse(described)
            versions = ask(_VERSIONS.format(table=identifier(schema, table)))
        return int(versions[0][0]), repr((described, versions))

    def _refuse(self, described: list[tuple[str, ...]]) -> None:
        if not described:
            raise NotFoundError(f"the PostgreSQL server has no table {self.name}", hint="Name it as SCHEMA.NAME.")
        _, _, kind, persistence, _, wide = described[0]
        if kind not in ("r", "p") or persistence != "p":
            raise DefinitionError(
                f"{self.name} is a view, a foreign, an unlogged or a temporary table", hint="Name a plain table."
            )
        if wide:
            raise DefinitionError(
                f"{self.name} has numeric columns that would be rounded: {wide}",
                hint=f"Declare them numeric(P, S) with P of at most {_IN_FULL}.",
            )


class AttachedSource(DatabaseTable):
    """A table of a database that DuckDB attaches.

    Args:
        kind: `sqlite` or `postgres`.
        location: A file, or a connection string.
        table: `NAME` or `SCHEMA.NAME`.
        algorithm: The hash for its bytes.
    """

    def __init__(self, kind: str, location: str, table: str, algorithm: BulkAlgorithm) -> None:
        places: dict[str, Callable[[], Place]] = {
            "sqlite": lambda: SqliteFile(Path(location)),
            "postgres": lambda: PostgresTable(location, table),
        }
        if kind not in places:
            raise DefinitionError(
                f"expected a database of one of the kinds {', '.join(places)}, found {kind!r}",
                hint="Write attach:sqlite:FILE#TABLE or attach:postgres:DSN#TABLE.",
            )
        super().__init__(places[kind](), table, algorithm)
