"""A table of a database that keeps no history: one commit, which is the database as it is now, made of one file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Protocol

from snapline.lineage.digest import BulkAlgorithm, document_digest, hex_part
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.files import FileStamp
from snapline.lineage.snapshot import Commit
from snapline.lineage.sources.database import ATTACHED, Rows, choose, schema_of, stream
from snapline.lineage.sources.protocol import Window

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

_TABLES = "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = ?"
_VIEWS = "SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = ?"


class Place(Protocol):
    """Where a table lies: what differs between kinds of databases.

    Attributes:
        schema: The schema of a table that is named without one.
    """

    schema: ClassVar[str]

    @property
    def name(self) -> str:
        """The file's name, or what stands for it."""

    def open(self) -> AbstractContextManager[DuckDBPyConnection]:
        """Yield a connection to which the database is attached, read-only, as `database.ATTACHED`."""

    def relation(self, schema: str, table: str) -> str:
        """Return the SQL table expression of a table, with the types it was declared with."""

    def stamp(self) -> FileStamp:
        """Return what can be told of it without reading it."""

    def hexdigest(self, algorithm: BulkAlgorithm) -> str:
        """Return the hex digest of all its bytes."""


class DatabaseTable:
    """One table of a database, as a snapshot reads it.

    Args:
        place: The database.
        table: `NAME` or `SCHEMA.NAME`.
        algorithm: The hash for its bytes.
    """

    travels: ClassVar[bool] = False

    def __init__(self, place: Place, table: str, algorithm: BulkAlgorithm) -> None:
        self.place = place
        self.table = table
        self.algorithm = algorithm
        self._seen: set[str] = set()

    def commit(self, version: str | None = None, as_of: datetime | None = None) -> Commit:
        """Return the state the database is in now, named after its stamp; see `Source.commit`."""
        name = self.place.name
        stamp = {key: str(value) for key, value in self.place.stamp().model_dump().items()}
        now = Commit(id=hex_part(document_digest("commit", [name, stamp])))
        if as_of is not None or version not in (None, now.id):
            raise DefinitionError(
                f"{name} keeps no history, and only its present state can be read",
                hint="Leave out the version and the instant, or write the table to Delta, Iceberg or DuckLake.",
            )
        self._seen.add(now.id)
        return now

    def commits(self) -> tuple[Commit, ...]:
        """Return the present state alone."""
        return (self.commit(),)

    def names(self, commit: Commit) -> tuple[str, ...]:
        """Return the one name of the database; see `Source.names`.

        Raises:
            NotFoundError: The database is no longer as it was at that commit.
        """
        if commit.id not in self._seen and self.commit() != commit:
            raise NotFoundError(
                f"{self.place.name} is no longer as it was at {commit.id}, and keeps no history",
                hint="Read it as it is now.",
            )
        return (self.place.name,)

    def stamp(self, name: str) -> FileStamp:
        """Return the stamp of the whole database; see `Source.stamp`."""
        self._refuse_other(name)
        return self.place.stamp()

    def hexdigest(self, name: str) -> str:
        """Return the digest of the whole database; see `Source.hexdigest`."""
        self._refuse_other(name)
        return self.place.hexdigest(self.algorithm)

    def schema(self, commit: Commit) -> pa.Schema:
        """Return the columns of the table.

        Raises:
            ConflictError: The database is no longer as it was at that commit.
        """
        with self._rows() as (database, rows):
            schema = schema_of(database, rows)
        self._refuse_moved(commit)
        return schema

    def scan(
        self, commit: Commit, name: str, time: str, window: Window | None, columns: Sequence[str] | None
    ) -> Iterator[pa.Table]:
        """Yield the rows of the table; see `Source.scan`."""
        self._refuse_other(name)
        with self._rows() as (database, rows):
            yield from stream(database, rows, time, window, columns)
        self._refuse_moved(commit)

    @contextmanager
    def _rows(self) -> Iterator[tuple[DuckDBPyConnection, Rows]]:
        with self.place.open() as database:
            tables, views = (set(database.execute(query, [ATTACHED]).fetchall()) for query in (_TABLES, _VIEWS))
            yield database, Rows(self.place.relation(*choose(self.table, tables, views, self.place.schema)))

    def _refuse_moved(self, commit: Commit) -> None:
        if self.commit() != commit:
            raise ConflictError(
                f"{self.place.name} changed while it was read",
                hint="Wait until nothing writes to it and run this again.",
            )

    def _refuse_other(self, name: str) -> None:
        if name != self.place.name:
            raise NotFoundError(
                f"{self.place.name} has no file {name!r}; a database is one file", hint="Name the source anew."
            )
