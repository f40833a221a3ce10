"""Parquet sources: one file, or a folder of files that together are one table, on this machine or in an object store.

There is no history: the only commit is how the files are now, named by a digest of their names and stamps. What was
overwritten is gone, and no earlier commit is pretended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from snapline.lineage.digest import BulkAlgorithm, bytes_hex, named
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.files import FileStamp
from snapline.lineage.snapshot import Column, Commit
from snapline.lineage.sources.location import Files, files_at
from snapline.lineage.sources.protocol import Window

if TYPE_CHECKING:
    from os import PathLike

    import pyarrow as pa
    import pyarrow.parquet as pq


class ParquetSource:
    """A Parquet table, as a snapshot reads it.

    Args:
        place: A file or a folder, or `s3://bucket/prefix`.
        algorithm: The hash for the bytes of its files.
    """

    travels = False

    def __init__(self, place: str | PathLike[str], algorithm: BulkAlgorithm) -> None:
        self.algorithm = algorithm
        self._files = files_at(str(place))
        self._listings: dict[str, dict[str, FileStamp]] = {}
        self._schemas: dict[str, tuple[str, pa.Schema]] = {}

    def commit(self, version: str | None = None, as_of: datetime | None = None) -> Commit:
        """Return the state of the files now; see `Source.commit`."""
        listing = self._files.parquet()
        identifier = _listing_digest(listing)
        if as_of is not None or version not in (None, identifier):
            asked = f"as of {as_of.isoformat()}" if as_of is not None else f"at {version}"
            raise DefinitionError(
                f"{self._files.place} keeps no history, so it cannot be read {asked}",
                hint="Leave the version and the instant out, or keep the table in Delta or Iceberg.",
            )
        self._listings[identifier] = listing
        return Commit(id=identifier)

    def commits(self) -> tuple[Commit, ...]:
        """Return the state of the files now, alone."""
        return (self.commit(),)

    def names(self, commit: Commit) -> tuple[str, ...]:
        """Return the files of a commit, sorted.

        Raises:
            NotFoundError: The files are no longer as they were at that commit.
        """
        return tuple(self._listing(commit))

    def _listing(self, commit: Commit) -> dict[str, FileStamp]:
        if commit.id not in self._listings and self.commit().id != commit.id:
            raise NotFoundError(
                f"{self._files.place} is no longer as it was at {commit.id}, and keeps no history",
                hint="Read it as it is now.",
            )
        return self._listings[commit.id]

    def stamp(self, name: str) -> FileStamp:
        """Return a file's stamp."""
        return self._files.stamp(name)

    def hexdigest(self, name: str) -> str:
        """Return the hex digest of a file's bytes."""
        return self._files.hexdigest(name, self.algorithm)

    def schema(self, commit: Commit) -> pa.Schema:
        """Return the columns of a commit, in plain types: those of its first file, which `scan` holds the others to."""
        return self._first(commit)[1]

    def _first(self, commit: Commit) -> tuple[str, pa.Schema]:
        from snapline.lineage.rows.encoding import plain

        if commit.id not in self._schemas:
            listing = self._listing(commit)
            name = next(iter(listing))
            with reading(self._files, name, listing[name]), opened(self._files, name) as file:
                self._schemas[commit.id] = (name, plain(file.schema_arrow.empty_table()).schema)
        return self._schemas[commit.id]

    def scan(
        self, commit: Commit, name: str, time: str, window: Window | None, columns: Sequence[str] | None
    ) -> Iterator[pa.Table]:
        """Yield the rows of one file; see `Source.scan`.

        Raises:
            DefinitionError: A column is unknown, the file is not Parquet, or its columns are not the first file's.
            ConflictError: The file changed since the commit.
        """
        from snapline.lineage.rows.encoding import columns_of
        from snapline.lineage.sources.row_groups import pieces, refuse_unknown

        first, schema = self._first(commit)
        listing = self._listing(commit)
        if name not in listing:
            raise NotFoundError(
                f"{self._files.place} had no file {name} at {commit.id}", hint="Read the files as they are now."
            )
        with reading(self._files, name, listing[name]), opened(self._files, name) as file:
            refuse_unknown(name, file.schema_arrow.names, (time, *(columns or ())))
            _refuse_difference(columns_of(schema), columns_of(file.schema_arrow), first, name)
            yield from pieces(file, time, window, columns)


@contextmanager
def reading(files: Files, name: str, before: FileStamp) -> Iterator[None]:
    """Read one file inside this block; what Arrow complains of becomes ours.

    Args:
        files: Where the file lies.
        name: The file.
        before: Its stamp before it was read.

    Raises:
        ConflictError: It changed meanwhile.
        DefinitionError: It is not Parquet.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        _refuse_change(files, name, before)
        raise DefinitionError(
            f"{files.place}: {name} cannot be read as Parquet: {error}", hint="Replace it by a Parquet file."
        ) from error
    _refuse_change(files, name, before)


@contextmanager
def opened(files: Files, name: str, int96: str | None = None) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file, and close it afterwards.

    Args:
        files: Where the file lies.
        name: The file.
        int96: The unit of timestamps stored the old way, in 96 bits; None for nanoseconds.
    """
    import pyarrow.parquet as pq

    with files.open(name) as stream, pq.ParquetFile(stream, coerce_int96_timestamp_unit=int96) as file:
        yield file


def _refuse_change(files: Files, name: str, before: FileStamp) -> None:
    try:
        if files.stamp(name) == before:
            return
    except NotFoundError:
        pass  # a file that is gone changed too
    raise ConflictError(
        f"{files.place} changed while it was read: {name}", hint="Wait until nothing writes to it and run this again."
    )


def _refuse_difference(columns: Sequence[Column], found: Sequence[Column], first: str, name: str) -> None:
    expected, actual = ({column.name: column.type for column in side} for side in (columns, found))
    for column in sorted(expected.keys() | actual.keys()):
        before, here = expected.get(column, "missing"), actual.get(column, "missing")
        if before != here:
            raise DefinitionError(
                f"{name}: column {column!r} is {here}, but {before} in {first}",
                hint="Write all files of a source with the same columns.",
            )


def _listing_digest(listing: dict[str, FileStamp]) -> str:
    """Return a digest of names and stamps, each ended by a zero byte, which no name holds."""
    told = (
        f"{name}\0{stamp.size_bytes}\0{stamp.mtime_ns}\0{stamp.ctime_ns}\0{stamp.inode}\0"
        for name, stamp in listing.items()
    )
    data = "".join(told).encode(errors="surrogateescape")
    return named(BulkAlgorithm.SHA256, "listing-v1", bytes_hex(data, BulkAlgorithm.SHA256))
