"""Delta Lake tables, on this machine or in an object store, through deltalake.

A commit is a version, and a version's files are those its log adds up to. The log's folder is listed here, and the time
of a commit is read from its own log file: deltalake 1.6 numbers the entries of `history()` by counting back from the
newest, which is wrong once a writer left out `commitInfo`, as writers may.

A version is listed while its log can be loaded. Its files may be gone all the same, for vacuuming removes files and
leaves the log: then looking at or reading such a file raises NotFoundError.

Where a deletion vector deletes rows of a data file, the file's name carries a digest of which rows: the same file with
more of its rows deleted goes by another name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote

from snapline.lineage.digest import BulkAlgorithm, bytes_hex
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.files import FileStamp
from snapline.lineage.snapshot import Commit
from snapline.lineage.sources.location import files_at
from snapline.lineage.sources.parquet import opened, reading
from snapline.lineage.sources.protocol import Window

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from deltalake import DeltaTable
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

_LOG = "_delta_log"
_COMMIT_FILE = re.compile(r"(\d{20})\.json")
_CHECKPOINT_FILE = re.compile(r"(\d{20})\.checkpoint\..+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WITHOUT = re.compile(r"(.+)#without-([0-9a-f]{64})", re.DOTALL)
_NAMED_ALIKE = re.compile(r"s3://[A-Za-z0-9._=/-]+")
_HTTP = {"allow_http": "true"}  # whoever names an http:// endpoint in AWS_ENDPOINT_URL means it, as for Parquet


@dataclass(frozen=True, slots=True)
class _Version:
    """A loaded version: its columns, each file's value of every partition column, and which of its rows are deleted."""

    schema: pa.Schema
    partitions: dict[str, dict[str, pa.Scalar]]
    deleted: dict[str, Rows]


class DeltaSource:
    """A Delta table, as a snapshot reads it.

    Args:
        url: A folder, or `s3://bucket/prefix`.
        algorithm: The hash for the bytes of its files.

    Raises:
        DefinitionError: deltalake would read another place than this one.
    """

    travels = True

    def __init__(self, url: str, algorithm: BulkAlgorithm) -> None:
        if url.startswith("s3://") and not _NAMED_ALIKE.fullmatch(url):
            raise DefinitionError(
                f"deltalake reads another place than {url}, whose key has letters that it takes for an encoding",
                hint="Keep the table under a prefix of ASCII letters, digits and the signs - _ . = /",
            )
        self.url = url
        self.algorithm = algorithm
        self._files = files_at(url)
        self._tables: dict[str, DeltaTable] = {}
        self._masks: dict[str, dict[str, Rows]] = {}
        self._described: dict[str, _Version] = {}

    def commit(self, version: str | None = None, as_of: datetime | None = None) -> Commit:
        """Return the newest version, the one a number names, or the last one at or before an instant.

        Raises:
            NotFoundError: There is no such version, or its log is gone.
        """
        if as_of is not None:
            return self._as_of(as_of)
        versions = self._versions()
        if version is None:
            return self._commit(versions[-1])
        if version not in map(str, versions):
            raise NotFoundError(
                f"the Delta table {self.url} has no version {version}; it has {versions[0]} to {versions[-1]}",
                hint="Name one of those; older ones are gone with the table's log.",
            )
        return self._commit(int(version))

    def commits(self) -> tuple[Commit, ...]:
        """Return the versions whose log can be loaded, oldest first."""
        with ThreadPoolExecutor() as pool:
            return tuple(pool.map(self._commit, self._versions()))

    def _as_of(self, instant: datetime) -> Commit:
        """Return the last version before the first one that is later; a writer's clock may run behind."""
        found = None
        commits = self.commits()
        for commit in commits:
            if commit.at is not None and commit.at > instant:
                break
            found = commit
        if found is None:
            raise NotFoundError(
                f"the Delta table {self.url} had no version at {instant.isoformat()}; its first is "
                f"{commits[0].id}, of {commits[0].at}",
                hint="Ask for a later instant.",
            )
        return found

    def _versions(self) -> tuple[int, ...]:
        """Return the versions that the log can load: all from its start, or from the oldest checkpoint left."""
        names = self._files.inside(_LOG)
        listed = sorted(int(found[1]) for name in names if (found := _COMMIT_FILE.fullmatch(name)))
        checkpoints = [int(found[1]) for name in names if (found := _CHECKPOINT_FILE.fullmatch(name))]
        first = 0 if 0 in listed else min(checkpoints, default=None)
        versions = () if first is None else tuple(version for version in listed if version >= first)
        if not versions:
            raise NotFoundError(f"no Delta table at {self.url}", hint="Put it back, or name the source anew.")
        return versions

    def _commit(self, version: int) -> Commit:
        """Return a version and its time: that of its commitInfo, else that of its log file."""
        name = f"{_LOG}/{version:020}.json"
        actions = [json.loads(line) for line in self._files.read(name).splitlines() if line.strip()]
        said: dict[str, int] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        milliseconds = said.get("inCommitTimestamp", said.get("timestamp"))
        if milliseconds is None:
            milliseconds = self._files.stamp(name).mtime_ns // 10**6
        return Commit(id=str(version), at=_EPOCH + timedelta(milliseconds=milliseconds))

    def names(self, commit: Commit) -> tuple[str, ...]:
        """Return the files of a version, sorted."""
        self._files.look()
        return tuple(sorted(_names(_paths(self._table(commit)), self._deleted(commit), self.algorithm)))

    def stamp(self, name: str) -> FileStamp:
        """Return the stamp of a data file; which of its rows are deleted is in its name."""
        return self._files.stamp(_parts(name)[0])

    def hexdigest(self, name: str) -> str:
        """Return the hex digest of a file's bytes, and of which rows are deleted, if any."""
        path, rows = _parts(name)
        hexdigest = self._files.hexdigest(path, self.algorithm)
        return bytes_hex(f"{hexdigest} {rows}".encode(), self.algorithm) if rows else hexdigest

    def schema(self, commit: Commit) -> pa.Schema:
        """Return the columns of a version, in plain types."""
        return self._describe(commit).schema

    def scan(
        self, commit: Commit, name: str, time: str, window: Window | None, columns: Sequence[str] | None
    ) -> Iterator[pa.Table]:
        """Yield the rows of one file, with the partition's values and the version's columns; see `Source.scan`.

        Raises:
            NotFoundError: The file is gone, or is none of this version's.
            DefinitionError: A column is unknown, or the file cannot be read.
            ConflictError: The file changed while it was read.
        """
        from snapline.lineage.sources.row_groups import pieces, refuse_unknown

        version = self._describe(commit)
        refuse_unknown(f"version {commit.id} of {self.url}", version.schema.names, (time, *(columns or ())))
        if name not in version.partitions:
            raise NotFoundError(
                f"version {commit.id} of {self.url} has no file {name}", hint="Read a commit that lists it."
            )
        wanted = version.schema.names if columns is None else tuple(dict.fromkeys((*columns, time)))
        path, _ = _parts(name)
        try:
            before = self._files.stamp(path)
        except NotFoundError as error:
            raise NotFoundError(
                f"version {commit.id} of {self.url} can no longer be read: {error.message}",
                hint="Its files were vacuumed; read a newer version.",
            ) from error
        complete = _completer(version, name, wanted)
        with reading(self._files, path, before), opened(self._files, path, int96="us") as file:
            yield from pieces(file, time, window, columns, complete, version.deleted.get(name))

    def _table(self, commit: Commit) -> DeltaTable:
        """Return deltalake's table at a version.

        Raises:
            NotFoundError: The version cannot be loaded any more.
            DefinitionError: The table uses what is not read here.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        if commit.id not in self._tables:
            try:
                table = DeltaTable(self.url, version=int(commit.id), storage_options=_HTTP)
            except OSError as error:
                raise NotFoundError(
                    f"the Delta table {self.url} cannot be reached: {_first_line(error)}",
                    hint="Check the URL, and the AWS_* variables.",
                ) from error
            except (DeltaError, ValueError) as error:
                self.commit(commit.id)  # says so itself when the version is gone
                raise DefinitionError(
                    f"the Delta table {self.url} cannot be read at version {commit.id}: {_first_line(error)}",
                    hint="Write it with features that deltalake reads.",
                ) from error
            _refuse_mapping(table, self.url)
            self._tables[commit.id] = table
        return self._tables[commit.id]

    def _deleted(self, commit: Commit) -> dict[str, Rows]:
        """Return which rows of which data files a version deletes by deletion vectors, ascending.

        Raises:
            NotFoundError: A deletion vector's file is gone.
            DefinitionError: One cannot be read.
        """
        table = self._table(commit)
        if "deletionVectors" not in (table.protocol().reader_features or ()):
            return {}
        if commit.id not in self._masks:
            self._masks[commit.id] = _deleted_rows(table, f"version {commit.id} of {self.url}")
        return self._masks[commit.id]

    def _describe(self, commit: Commit) -> _Version:
        import pyarrow as pa

        from snapline.lineage.rows.encoding import plain

        if commit.id not in self._described:
            table, deleted = self._table(commit), self._deleted(commit)
            schema = plain(pa.schema(table.schema().to_arrow()).empty_table()).schema
            actions = pa.table(table.get_add_actions())
            values = actions.column("partition") if "partition" in actions.column_names else None
            names = _names(_paths(table), deleted, self.algorithm)
            partitions = {name: {} if values is None else dict(values[row].items()) for row, name in enumerate(names)}
            without = {name: deleted[path] for name in names if (path := _parts(name)[0]) in deleted}
            self._described[commit.id] = _Version(schema, partitions, without)
        return self._described[commit.id]


def _deleted_rows(table: DeltaTable, what: str) -> dict[str, Rows]:
    import numpy as np
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    try:
        batches = pa.table(table.deletion_vectors()).to_batches()
    except (DeltaError, OSError) as error:
        problem = f"the deletion vectors of {what} cannot be read: {_first_line(error)}"
        if any(sign in str(error).lower() for sign in ("not found", "no such file")):
            raise NotFoundError(problem, hint="They were vacuumed; read a newer version.") from error
        raise DefinitionError(problem, hint="Rewrite the files: REORG TABLE ... APPLY (PURGE).") from error
    found = {}
    for batch in batches:
        for file, kept in zip(batch.column("filepath").to_pylist(), batch.column("selection_vector"), strict=True):
            path = unquote(file.removeprefix(table.table_uri))
            found[path] = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
    unknown = found.keys() - set(_paths(table))
    if unknown:
        raise DefinitionError(
            f"{what} has deletion vectors of files that it does not have: {', '.join(sorted(unknown))}",
            hint="Read another version, or rewrite the table's files.",
        )
    return found


def _names(paths: Sequence[str], deleted: dict[str, Rows], algorithm: BulkAlgorithm) -> list[str]:
    """Return what each data file is called, with a digest of its deleted rows where it has some."""
    return [
        f"{path}#without-{bytes_hex(deleted[path].astype('<i8').tobytes(), algorithm)}" if path in deleted else path
        for path in paths
    ]


def _parts(name: str) -> tuple[str, str]:
    """Return the path of a data file, and the digest of its deleted rows; empty when it has none."""
    found = _WITHOUT.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def _first_line(error: Exception) -> str:
    """Return what an error says, without the stack that deltalake may add."""
    return str(error).partition("\n")[0]


def _paths(table: DeltaTable) -> list[str]:
    """Return the paths of a version's files, which the log keeps as parts of URLs, in the log's order."""
    paths = [unquote(path) for path in table.get_add_actions().column("path").to_pylist()]
    outside = next((path for path in paths if path.startswith("/") or "://" in path), None)
    if outside is not None:
        raise DefinitionError(
            f"the Delta table has the file {outside}, which lies outside its own folder",
            hint="Make a deep clone of the table, and name that.",
        )
    return paths


def _refuse_mapping(table: DeltaTable, url: str) -> None:
    """Pass when columns have their own names in the data files.

    Raises:
        DefinitionError: They have others.
    """
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        raise DefinitionError(
            f"the Delta table {url} maps its columns to other names in the files, which is not read here",
            hint="Copy it into a table without column mapping.",
        )


def _completer(version: _Version, name: str, wanted: Sequence[str]) -> Callable[[pa.Table], pa.Table]:
    """Return what gives the rows of a file the columns of its version.

    A partition's value lies in the log alone, a file written before a column came lacks it, and one written before a
    type was widened has it narrower.
    """
    import pyarrow as pa

    from snapline.lineage.rows.encoding import plain

    fields = [version.schema.field(column) for column in wanted]
    values = version.partitions[name]

    def complete(stored: pa.Table) -> pa.Table:
        rows, found = stored.num_rows, plain(stored)
        arrays = []
        for field in fields:
            if field.name in values:
                arrays.append(pa.chunked_array([pa.repeat(values[field.name], rows)]).cast(field.type))
            elif field.name in found.column_names:
                arrays.append(found.column(field.name).cast(field.type))
            else:
                arrays.append(pa.chunked_array([pa.nulls(rows, field.type)]))
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    return complete
