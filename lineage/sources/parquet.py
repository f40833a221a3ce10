"""Parquet sources: one file, or a folder of files that together are one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.encoding import columns_of, plain
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.files import FileStamp, HashedFile, hash_file, stamp_of
from snapline.lineage.snapshot import Column
from snapline.lineage.sources.location import locate
from snapline.lineage.sources.protocol import Keep, Reading


class ParquetSource:
    """A Parquet table, as a snapshot reads it.

    Args:
        path: A file or a folder.
        algorithm: The hash for the bytes of its files.
    """

    def __init__(self, path: Path, algorithm: BulkAlgorithm) -> None:
        self.path = path
        self.algorithm = algorithm

    def read(self, control: Sequence[str], keep: Keep) -> Reading:
        """Return the rows that `keep` chooses; see `Source.read`."""
        folder, names = locate(self.path)
        hashed: list[HashedFile] = []
        tables: list[pa.Table] = []
        columns: tuple[Column, ...] | None = None
        for name in names:
            try:
                hashed.append(hash_file(folder, name, self.algorithm))
                with pq.ParquetFile(folder / name) as file:
                    if columns is None:
                        columns = _checked(columns_of(file.schema_arrow), control, name)
                    _refuse_difference(columns, columns_of(file.schema_arrow), names[0], name)
                    tables.append(_chosen(file, control, keep))
            except (pa.ArrowException, OSError) as error:
                self._refuse_change(folder, names, hashed)
                raise DefinitionError(
                    f"{folder / name} cannot be read as Parquet: {error}", hint="Replace it by a Parquet file."
                ) from error
        self._refuse_change(folder, names, hashed)
        return Reading(_joined(tables, self.path), tuple(hashed))

    def _refuse_change(self, folder: Path, names: tuple[str, ...], hashed: Sequence[HashedFile]) -> None:
        """Compare the stamps of all files with those from before anything was parsed."""
        changed = [file.path for file in hashed if not _is_stamped(folder / file.path, file.stamp)]
        changed += set(names) ^ set(locate(self.path)[1])
        if changed:
            raise ConflictError(
                f"{self.path} changed while it was read: {', '.join(sorted(set(changed)))}",
                hint="Wait until nothing writes to it and run this again.",
            )


def _is_stamped(path: Path, stamp: FileStamp) -> bool:
    try:
        return stamp_of(path) == stamp
    except NotFoundError:
        return False


def _checked(columns: tuple[Column, ...], control: Sequence[str], name: str) -> tuple[Column, ...]:
    present = [column.name for column in columns]
    missing = [repr(column) for column in control if column not in present]
    if missing:
        raise DefinitionError(
            f"{name} has no column {', '.join(missing)}; its columns are {', '.join(present)}",
            hint="Name columns of the source for time, known time and key.",
        )
    return columns


def _refuse_difference(columns: tuple[Column, ...], found: tuple[Column, ...], first: str, name: str) -> None:
    expected, actual = ({column.name: column.type for column in side} for side in (columns, found))
    for column in sorted(expected.keys() | actual.keys()):
        before, here = expected.get(column, "missing"), actual.get(column, "missing")
        if before != here:
            raise DefinitionError(
                f"{name}: column {column!r} is {here}, but {before} in {first}",
                hint="Write all files of a source with the same columns.",
            )


def _chosen(file: pq.ParquetFile, control: Sequence[str], keep: Keep) -> pa.Table:
    """Return the chosen rows of one file, reading other columns only of row groups that have any."""
    tables = [plain(file.schema_arrow.empty_table())]
    for group in range(file.num_row_groups):
        chosen = keep(plain(file.read_row_group(group, columns=list(control)).select(list(control))))
        if chosen.any():
            rows = plain(file.read_row_group(group))
            tables.append(rows if chosen.all() else rows.filter(pa.array(chosen)))
    return pa.concat_tables(tables)


def _joined(tables: Sequence[pa.Table], path: Path) -> pa.Table:
    """Return the tables as one, with the finest of their units."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DefinitionError(
            f"the files of {path} cannot be read as one table: {error}",
            hint="Write all files with the same units.",
        ) from error
