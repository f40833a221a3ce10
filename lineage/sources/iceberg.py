"""Apache Iceberg tables, through pyiceberg.

A commit is a snapshot of the table's current branch. A name is a data file with the positional delete files and
deletion vectors that apply to it, `data/a.parquet#data/a-deletes.parquet`; a path below the table's location is written
from there. Columns are matched by Iceberg's field ids, under the schema the snapshot was written with. A data file is
held in memory whole while it is read. Tables with equality deletes are refused, as pyiceberg does.

The catalogue is a SQLite file, opened read-only and looked up here (pyiceberg's own client makes tables in it), or one
that the user's pyiceberg configuration names. Under a SQLite catalogue, files in S3 are reached by the rules of the AWS
SDK, as they are everywhere else; under a named one, by what its configuration says.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from snapline.lineage.digest import CHUNK_BYTES, BulkAlgorithm, hasher
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.files import FileStamp, hash_file, stamp_of
from snapline.lineage.snapshot import Commit
from snapline.lineage.sources.bundle import bundle_hex, bundle_stamp
from snapline.lineage.sources.protocol import Window

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

_AND = "#"
_SQLITE = "sqlite:///"
_UNREACHED = "AWS Error"
_FILES = "snapline.lineage.sources.iceberg_files.IcebergFiles"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOOK_UP = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?"


class IcebergSource:
    """An Iceberg table, as a snapshot reads it.

    Args:
        catalog: An absolute path or `sqlite:///` URL of a SQLite catalogue, or a name in pyiceberg's configuration.
        table: `NAMESPACE.NAME`.
        algorithm: The hash for the bytes of its files.
    """

    travels: ClassVar[bool] = True

    def __init__(self, catalog: str, table: str, algorithm: BulkAlgorithm) -> None:
        self.catalog = catalog
        self.table = table
        self.algorithm = algorithm
        self._loaded: Table | None = None
        self._planned: dict[str, dict[str, FileScanTask]] = {}

    def commit(self, version: str | None = None, as_of: datetime | None = None) -> Commit:
        """Return the newest snapshot, one by its id on any branch, or the branch's last one at or before an instant.

        Raises:
            NotFoundError: There is no such snapshot, it was expired, or nothing was ever written.
        """
        metadata = self._load().metadata
        if version is not None:
            return _commit(self._snapshot(metadata, version))
        commits = self._history(metadata)
        if as_of is None:
            return commits[-1]
        # A writer's clock may run behind: what counts is what was there when the first later one was not.
        earlier = tuple(takewhile(lambda commit: commit.at is not None and commit.at <= as_of, commits))
        if not earlier:
            raise NotFoundError(
                f"{self.table} lists no snapshot at or before {as_of.isoformat()}; its oldest is of {commits[0].at}",
                hint="Ask for a later instant; older snapshots were expired, or never were.",
            )
        return earlier[-1]

    def commits(self) -> tuple[Commit, ...]:
        """Return the snapshots of the current branch that were not expired, oldest first."""
        return self._history(self._load().metadata)

    def names(self, commit: Commit) -> tuple[str, ...]:
        """Return the data files of a snapshot, each with its delete files; see `Source.names`."""
        self._load()
        return tuple(sorted(self._tasks(commit)))

    def stamp(self, name: str) -> FileStamp:
        """Return the stamp of a data file and its delete files; see `Source.stamp`."""
        return bundle_stamp([self._stamp(location) for location in self._locations(name)])

    def hexdigest(self, name: str) -> str:
        """Return the digest of a data file and its delete files; see `Source.hexdigest`."""
        return bundle_hex([self._hexdigest(location) for location in self._locations(name)], self.algorithm)

    def schema(self, commit: Commit) -> pa.Schema:
        """Return the columns of a snapshot."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        from snapline.lineage.rows.encoding import plain

        schema = _as_it_was(self._load().metadata, self._snapshot(self._table.metadata, commit.id)).schema()
        return plain(schema_to_pyarrow(schema, include_field_ids=False).empty_table()).schema

    def scan(
        self, commit: Commit, name: str, time: str, window: Window | None, columns: Sequence[str] | None
    ) -> Iterator[pa.Table]:
        """Yield the rows of one data file that its delete files leave; see `Source.scan`."""
        import pyarrow as pa
        from pyiceberg.io.pyarrow import ArrowScan

        from snapline.lineage.rows.encoding import plain
        from snapline.lineage.sources.row_groups import inside, refuse_unknown

        task = self._tasks(commit).get(name)
        if task is None:
            raise NotFoundError(
                f"snapshot {commit.id} of {self.table} has no file {name}", hint="Read a commit that lists it."
            )
        metadata = _as_it_was(self._table.metadata, self._snapshot(self._table.metadata, commit.id))
        schema = metadata.schema()
        refuse_unknown(self.table, schema.column_names, (time, *(columns or ())))
        chosen = [field.name for field in schema.fields] if columns is None else list(columns)
        wanted = chosen if window is None else list(dict.fromkeys([*chosen, time]))
        before = self.stamp(name)
        with self._reading(name):
            scan = ArrowScan(metadata, self._table.io, schema.select(*wanted), _filter(schema, time, window))
            for batch in scan.to_record_batches([task]):
                rows = plain(pa.Table.from_batches([batch]))
                rows = rows if window is None else inside(rows, time, window)
                if rows.num_rows:
                    yield rows.select(chosen)
        self._refuse_change(name, before, self.stamp(name))

    @property
    def _table(self) -> Table:
        return self._loaded or self._load()

    def _load(self) -> Table:
        """Read the table's present metadata."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError
        from pyiceberg.table import StaticTable

        if self.catalog.startswith((_SQLITE, "/")):
            metadata = self._metadata_location(Path(self.catalog.removeprefix(_SQLITE)))
            with self._reading(self.table):
                self._loaded = StaticTable.from_metadata(metadata, {"py-io-impl": _FILES})
            return self._loaded
        try:
            catalog = load_catalog(self.catalog)
        except (ValueError, TypeError) as error:
            raise DefinitionError(
                f"{self.catalog!r} names no catalogue of pyiceberg's configuration: {error}",
                hint="Describe it in .pyiceberg.yaml, or write the path of a SQLite catalogue, as in ./catalog.db.",
            ) from error
        try:
            with self._reading(self.table):
                self._loaded = catalog.load_table(self.table)
        except NoSuchTableError as error:
            raise self._no_table() from error
        return self._loaded

    def _metadata_location(self, catalog: Path) -> str:
        """Look the table up in a SQLite catalogue, which is only read."""
        if not catalog.is_file():
            raise NotFoundError(f"no catalogue {catalog}", hint="Put it back, or name the source anew.")
        namespace, _, name = self.table.rpartition(".")
        try:
            with closing(sqlite3.connect(f"{catalog.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                found = connection.execute(_LOOK_UP, (namespace, name)).fetchall()
        except sqlite3.Error as error:
            raise DefinitionError(
                f"{catalog} cannot be read as an Iceberg catalogue: {error}", hint="Name one that pyiceberg made."
            ) from error
        if not found or found[0][0] is None:
            raise self._no_table()
        if len(found) > 1:
            raise DefinitionError(
                f"{catalog} holds {len(found)} catalogues with a table {self.table}",
                hint="Describe the one meant in .pyiceberg.yaml, and write its name.",
            )
        return str(found[0][0])

    def _no_table(self) -> NotFoundError:
        return NotFoundError(
            f"no table {self.table} in the catalogue {self.catalog}", hint="Name it as NAMESPACE.NAME."
        )

    def _history(self, metadata: TableMetadata) -> tuple[Commit, ...]:
        from pyiceberg.table.snapshots import ancestors_of

        listed = [_commit(snapshot) for snapshot in ancestors_of(metadata.current_snapshot(), metadata)]
        if not listed:
            raise NotFoundError(f"{self.table} has no snapshot yet", hint="Write rows to it first.")
        return tuple(reversed(listed))

    def _snapshot(self, metadata: TableMetadata, version: str) -> Snapshot:
        found = metadata.snapshot_by_id(int(version)) if version.isdecimal() else None
        if found is None:
            raise NotFoundError(
                f"{self.table} lists no snapshot {version}; it was expired, or never was",
                hint="Name one that the table still lists.",
            )
        return found

    def _tasks(self, commit: Commit) -> dict[str, FileScanTask]:
        """Return what to read for each name, from the manifests of a snapshot."""
        table = self._table
        snapshot = self._snapshot(table.metadata, commit.id)
        if commit.id not in self._planned:
            with self._reading(f"snapshot {commit.id} of {self.table}"):
                tasks = table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
                self._planned[commit.id] = {self._name(table, task): task for task in tasks}
        return self._planned[commit.id]

    def _name(self, table: Table, task: FileScanTask) -> str:
        below = f"{table.location().rstrip('/')}/"
        paths = [task.file.file_path, *sorted(file.file_path for file in task.delete_files)]
        if any(_AND in path.removeprefix(below) for path in paths):
            raise DefinitionError(
                f"{self.table} has a file whose path has a {_AND}: {', '.join(paths)}",
                hint="Rewrite the table's files.",
            )
        return _AND.join(path.removeprefix(below) for path in paths)

    def _locations(self, name: str) -> list[str]:
        below = self._table.location().rstrip("/")
        return [path if "://" in path or path.startswith("/") else f"{below}/{path}" for path in name.split(_AND)]

    def _stamp(self, location: str) -> FileStamp:
        local = _local(location)
        if local is not None:
            return stamp_of(local)
        from pyiceberg.io.pyarrow import PyArrowFileIO

        files = self._table.io
        if not isinstance(files, PyArrowFileIO):
            raise DefinitionError(
                f"{location} is read by {type(files).__name__}, which tells no modification times",
                hint="Set py-io-impl to pyiceberg.io.pyarrow.PyArrowFileIO in pyiceberg's configuration.",
            )
        with self._reading(location):
            scheme, netloc, path = files.parse_location(location, files.properties)
            found = files.fs_by_scheme(scheme, netloc).get_file_info(path)
        if not found.is_file:
            raise NotFoundError(f"no file {location}", hint="Put it back, or read another snapshot.")
        return FileStamp(size_bytes=found.size, mtime_ns=found.mtime_ns or 0, ctime_ns=0, inode=0)

    def _hexdigest(self, location: str) -> str:
        local = _local(location)
        if local is not None:
            return hash_file(local.parent, local.name, self.algorithm).hexdigest
        before, state = self._stamp(location), hasher(self.algorithm)
        with self._reading(location), self._table.io.new_input(location).open() as stream:
            while chunk := stream.read(CHUNK_BYTES):
                state.update(chunk)
        self._refuse_change(location, before, self._stamp(location))
        return state.hexdigest()

    def _refuse_change(self, what: str, before: FileStamp, now: FileStamp) -> None:
        if now != before:
            raise ConflictError(
                f"{what} changed while it was read", hint="Iceberg never writes a file twice; find out who did."
            )

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Turn the errors of pyiceberg and Arrow into ours."""
        import pyarrow as pa
        from pyiceberg.exceptions import ResolveError, ValidationError

        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(
                f"{what} is not all there: {error}", hint="Put the files back, or read another snapshot."
            ) from error
        except (pa.ArrowException, OSError, ValueError, NotImplementedError, ResolveError, ValidationError) as error:
            if _UNREACHED in str(error):
                raise NotFoundError(
                    f"{what} cannot be reached: {error}",
                    hint="Check the AWS_* variables: credentials, AWS_REGION, and AWS_ENDPOINT_URL of your own server.",
                ) from error
            raise DefinitionError(
                f"{what} cannot be read: {error}", hint="Read another snapshot, or rewrite the table's files."
            ) from error


def _commit(snapshot: Snapshot) -> Commit:
    at = _EPOCH + timedelta(milliseconds=snapshot.timestamp_ms)
    return Commit(id=str(snapshot.snapshot_id), at=at)


def _as_it_was(metadata: TableMetadata, snapshot: Snapshot) -> TableMetadata:
    """Return the metadata with the schema of a snapshot as the current one, so that names mean what they meant."""
    if snapshot.schema_id is None:
        return metadata
    return metadata.model_copy(update={"current_schema_id": snapshot.schema_id})


def _filter(schema: Schema, time: str, window: Window | None) -> BooleanExpression:
    """Return what lets Arrow skip row groups; pyiceberg has no literals of nanoseconds, and rounds those of dates."""
    from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, IsNull, LessThan, Or, Reference
    from pyiceberg.types import TimestampType, TimestamptzType

    kind = schema.find_type(time)
    if window is None or not isinstance(kind, (TimestampType, TimestamptzType)):
        return AlwaysTrue()
    zone = UTC if isinstance(kind, TimestamptzType) else None
    since, until = (
        side.astimezone(UTC).replace(tzinfo=zone).isoformat(timespec="microseconds")
        for side in (window.since, window.until)
    )
    column = Reference(time)
    inside = And(GreaterThanOrEqual(term=column, value=since), LessThan(term=column, value=until))
    return Or(inside, IsNull(term=column))


def _local(location: str) -> Path | None:
    """Return the path of a location on this machine; Iceberg does not percent-encode them."""
    if location.startswith("/"):
        return Path(location)
    parts = urlsplit(location)
    return Path(location.removeprefix("file:").removeprefix("//")) if parts.scheme == "file" else None
