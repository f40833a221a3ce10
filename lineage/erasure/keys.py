"""The keys of an erasure request: read from a file, and cast to what the series say their keys are.

A key that is misread is a key that is not erased, so nothing is guessed: the file must name the key column, every value
must be one of the key's type, and the first that is not refuses the whole file. In CSV an empty cell is no value; an
empty text as a key can be given as Parquet.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.rows.encoding import columns_of, decoded

_MAGIC = b"PAR1"
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_NAMED = {
    "timestamp": (pa.timestamp("us"), pa.timestamp("ns")),
    "timestamp[utc]": (pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")),
    "date": (pa.date32(),),
    "time": (pa.time64("ns"),),
    "string": (pa.large_string(),),
}
_UUID = 'extension<"arrow.uuid",binary>'  # as the encoding of rows writes the type
_PLAIN = re.compile(r"u?int(8|16|32|64)|float(16|32|64)|bool")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """What a series calls its key, and the logical type it has in the series' newest snapshot."""

    series: str
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Listed:
    """Values of one column of a file, and where in it each stands, for messages: `line` 7 or `row` 6."""

    values: pa.Array
    file: Path
    unit: str
    places: Sequence[int]

    def where(self, index: int) -> str:
        """Return what messages call the place of a value."""
        return f"{self.file}: {self.unit} {self.places[index]}"


def read_keys(path: Path, columns: Sequence[KeyColumn]) -> list[pa.Array]:
    """Return the keys a file lists for each of some series: arrays of one length, each of its key's logical type.

    Raises:
        NotFoundError: There is no such file.
        DefinitionError: It is neither CSV nor Parquet, has no column named like a key, has no rows, or has a value that
            is missing or not of the key's type.
    """
    listed = _read(path, list(dict.fromkeys(column.name for column in columns)))
    if not len(next(iter(listed.values())).values):
        raise DefinitionError(f"{path} lists no key", hint="Write one key a row, below the name of the key column.")
    return [cast_keys(listed[column.name], column) for column in columns]


def cast_keys(listed: Listed, column: KeyColumn) -> pa.Array:
    """Return values as keys of a series.

    Raises:
        DefinitionError: One is missing or cannot be of the key's type; the message names its place.
    """
    values = listed.values
    if values.null_count:
        missing = pc.index(values.is_null(), True).as_py()
        raise DefinitionError(f"{listed.where(missing)}: expected a key, found nothing", hint="Leave the row out.")
    found = columns_of(pa.schema([(column.name, values.type)]))[0].type
    if found == column.type:
        return values
    if types.is_large_string(values.type) and column.type != "string":
        values = pc.utf8_trim_whitespace(values)
    if types.is_large_string(values.type) and column.type == _UUID:
        return _uuids(values, listed, column)
    targets = _arrow_types(column.type)
    if not targets:
        raise DefinitionError(
            f"{listed.file}: keys of {column.series!r} are {column.type}, which cannot be made from {found}",
            hint=f"Write {column.name} as {column.type} into a Parquet file, or choose rows with --where.",
        )
    for target in targets:
        if _castable(values, target):
            return values.cast(target)
    raise _not_of_type(listed, values, _first_uncastable(values, targets[-1]), column)


def _uuids(texts: pa.Array, listed: Listed, column: KeyColumn) -> pa.Array:
    """Return texts, such as 67e55044-10b1-426f-9247-bb680e5fe0c8, as UUIDs."""
    found = []
    for place, text in enumerate(texts.to_pylist()):
        try:
            found.append(UUID(text).bytes)
        except ValueError:
            raise _not_of_type(listed, texts, place, column) from None
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(found, pa.uuid().storage_type))


def _not_of_type(listed: Listed, values: pa.Array, place: int, column: KeyColumn) -> DefinitionError:
    kind = "uuid" if column.type == _UUID else column.type
    return DefinitionError(
        f"{listed.where(place)}: {values[place].as_py()!r} is no {kind}, as the keys of {column.series!r} are",
        hint="Correct the value or leave the row out; nothing was recorded.",
    )


def _read(path: Path, names: list[str]) -> dict[str, Listed]:
    try:
        with path.open("rb") as stream:
            magic = stream.read(len(_MAGIC))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"no file {path}", hint="Check the path.") from error
    except OSError as error:
        raise DefinitionError(
            f"{path} cannot be read: {error.strerror}", hint="Name a Parquet or .csv file that you may read."
        ) from error
    if magic == _MAGIC:
        return _read_parquet(path, names)
    if path.suffix.lower() == ".csv":
        return _read_csv(path, names)
    raise DefinitionError(
        f"{path}: expected a Parquet file or a .csv file, found neither", hint="Write the keys as one of the two."
    )


def _read_parquet(path: Path, names: list[str]) -> dict[str, Listed]:
    try:
        with pq.ParquetFile(path) as file:
            _require(path, file.schema_arrow.names, names)
            table = decoded(file.read(columns=names, use_threads=False).select(names))
    except (pa.ArrowException, OSError) as error:
        raise DefinitionError(f"{path} cannot be read as Parquet: {error}", hint="Write it anew.") from error
    places = range(1, table.num_rows + 1)
    return {name: Listed(_plain_text(table.column(name).combine_chunks()), path, "row", places) for name in names}


def _plain_text(array: pa.Array) -> pa.Array:
    return array.cast(pa.large_string()) if types.is_string(array.type) else array


def _read_csv(path: Path, names: list[str]) -> dict[str, Listed]:
    cells: list[list[str | None]] = [[] for _ in names]
    lines: list[int] = []
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, strict=True)
        try:
            header = [cell.strip() for cell in next(reader, [])]
            _require(path, header, names)
            wanted = [header.index(name) for name in names]
            for row in reader:
                if row and len(row) != len(header):
                    raise DefinitionError(
                        f"{path}: line {reader.line_num}: expected {len(header)} cells, found {len(row)}",
                        hint="Write every row with as many cells as the first.",
                    )
                for column, place in zip(cells, wanted, strict=True) if row else ():
                    column.append(row[place] or None)
                lines += [reader.line_num] if row else []
        except UnicodeDecodeError as error:
            raise DefinitionError(f"{path} is no UTF-8 text: {error}", hint="Write it as UTF-8 text.") from error
        except csv.Error as error:
            raise DefinitionError(
                f"{path}: line {reader.line_num}: cannot be read as CSV: {error}", hint="Correct the line."
            ) from error
    arrays = [pa.array(column, pa.large_string()) for column in cells]
    return {name: Listed(array, path, "line", lines) for name, array in zip(names, arrays, strict=True)}


def _require(path: Path, found: Sequence[str], names: Sequence[str]) -> None:
    listed = ", ".join(found) or "none"
    for name in names:
        if list(found).count(name) != 1:
            raise DefinitionError(
                f"{path}: expected one column named {name!r}, as the key is; its columns are {listed}",
                hint="Name the column of keys in the file's first row as the snapshot's key column is named.",
            )


def _arrow_types(logical: str) -> tuple[pa.DataType, ...]:
    """Return the types that values of a logical type can be cast to, in the order to try them."""
    if match := _DECIMAL.fullmatch(logical):
        precision, scale = map(int, match.groups())
        return (pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale),)
    if _PLAIN.fullmatch(logical):
        return (pa.type_for_alias(logical),)
    return _NAMED.get(logical, ())


def _castable(values: pa.Array, target: pa.DataType) -> bool:
    try:
        values.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _first_uncastable(values: pa.Array, target: pa.DataType) -> int:
    """Return the place of the first value that cannot be cast; there is one."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if not _castable(values[low:middle], target) else (middle, high)
    return low
