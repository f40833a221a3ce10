"""Tables in a DuckDB file."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.files import FileStamp, hash_file, stamp_of
from snapline.lineage.sources.bundle import bundle_hex, bundle_stamp
from snapline.lineage.sources.database import ATTACHED, attached, identifier, literal
from snapline.lineage.sources.database_table import DatabaseTable

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class DuckDBFile:
    """A DuckDB file and, while it has one, the write-ahead log beside it."""

    schema: ClassVar[str] = "main"

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    def open(self) -> AbstractContextManager[DuckDBPyConnection]:
        """Attach the file; a log is replayed in memory, and left as it is."""
        stamp_of(self.path)
        statement = f"ATTACH {literal(str(self.path))} AS {ATTACHED} (TYPE duckdb, READ_ONLY)"
        return attached(statement, str(self.path), alone=True)

    def relation(self, schema: str, table: str) -> str:
        """Return the quoted name of a table."""
        return identifier(ATTACHED, schema, table)

    def stamp(self) -> FileStamp:
        """Return the stamp of the file, with its log's."""
        return bundle_stamp([stamp_of(path) for path in self._paths()])

    def hexdigest(self, algorithm: BulkAlgorithm) -> str:
        """Return the digest of the file's bytes, with its log's.

        Raises:
            ConflictError: They changed while they were read.
        """
        hashed = [hash_file(path.parent, path.name, algorithm) for path in self._paths()]
        return bundle_hex([file.hexdigest for file in hashed], algorithm)

    def _paths(self) -> list[Path]:
        log = Path(f"{self.path}.wal")
        return [self.path, log] if log.exists() else [self.path]


class DuckDBSource(DatabaseTable):
    """A table in a DuckDB file.

    Args:
        file: The file.
        table: `NAME` in the schema main, or `SCHEMA.NAME`; a view is refused.
        algorithm: The hash for the file's bytes.
    """

    def __init__(self, file: Path, table: str, algorithm: BulkAlgorithm) -> None:
        super().__init__(DuckDBFile(file), table, algorithm)
