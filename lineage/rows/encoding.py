"""The canonical encoding of Arrow columns: equal values give equal bytes, however they were stored.

A column is hashed as its *logical* type and its values. Two physical types share a logical type when they can hold the
same values: string, large_string, string_view and a dictionary of strings are all `string`; timestamps are instants
whatever their unit. What two readers of one file may see differently is left out: units, zone names, nullability
flags, metadata, chunks, offsets, and whatever lies under a null.

Encoded, a column of n rows is, in this order:

    nulls      a flag byte: 0 when no row is null; or 1, and then n bytes, 1 for a null and 0 for a value
    values     n little-endian values of the type's width; nulls are zero, every NaN is one NaN, and -0.0 is not 0.0
               (booleans: a byte; dates: int32 days; times: int64 nanoseconds; decimals: 32 bytes, two's complement;
               timestamps and durations: int64 microseconds, rounded down; strings, binaries, lists and maps: the int32
               length of each; nothing for structs and the null type)
    rests      timestamps and durations only: a flag byte, 0 when every one is whole microseconds; or 1, and then n
               int16 nanoseconds, 0 to 999, to add to them
    below      the bytes of all strings end to end, or the encoded child or children

Both flags are 1 only where a byte after them is not zero, so a column has one encoding. And no two columns of a type
share one: reading from the left, the size of each part follows from the type, n and the parts before it, and all parts
together give the values back. With the common layout (no nulls, microseconds) every large part is hashed where Arrow
keeps it, without a copy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from snapline.lineage.errors import DefinitionError
from snapline.lineage.snapshot import Column

Bytes = NDArray[np.uint8]
TICKS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_LONGEST = 2**31 - 1
_EXTENSION_NAME = b"ARROW:extension:name"
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


@dataclass(frozen=True, slots=True)
class Sparse:
    """A part that is zero in most columns: `items` of shape (rows, width), or None where every row's is zero."""

    items: Bytes | None

    def parts(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """Yield a flag for rows `start` to `stop` and, where one is not zero, all of them."""
        cut = None if self.items is None else self.items[start:stop]
        if cut is None or not cut.any():
            yield b"\0"
        else:
            yield b"\1"
            yield cut.data

    def cut(self, start: int, stop: int) -> Sparse:
        """Return this part of rows `start` to `stop`."""
        return self if self.items is None else Sparse(self.items[start:stop])


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded column from which any run of rows can be cut.

    Attributes:
        nulls: One byte a row, 1 for a null.
        values: Shape (rows, width), zero under a null: the values of fixed-width types; for variable-length types the
            lengths, as int32; None for structs and the null type.
        rests: For timestamps and durations, the nanoseconds past `values`, as int16.
        offsets: For variable-length types, shape (rows + 1,): where each row starts in `content` or in `below`.
        content: The bytes of strings and binaries, shape (bytes,).
        below: Children, with the same rows as this column, or those that `offsets` points into.
    """

    nulls: Sparse
    values: Bytes | None = None
    rests: Sparse | None = None
    offsets: NDArray[np.integer] | None = None
    content: Bytes | None = None
    below: tuple[Encoded, ...] = ()

    def parts(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """Yield the encoding of rows `start` to `stop`, in order."""
        yield from self.nulls.parts(start, stop)
        if self.values is not None:
            yield self.values[start:stop].data
        if self.rests is not None:
            yield from self.rests.parts(start, stop)
        if self.offsets is not None:
            start, stop = int(self.offsets[start]), int(self.offsets[stop])
        if self.content is not None:
            yield self.content[start:stop].data
        for child in self.below:
            yield from child.parts(start, stop)

    def cut(self, start: int, stop: int) -> Encoded:
        """Return the column of rows `start` to `stop`, without copying values."""
        offsets, first, last = None, start, stop
        if self.offsets is not None:
            first, last = int(self.offsets[start]), int(self.offsets[stop])
            offsets = self.offsets[start : stop + 1] - first
        return Encoded(
            nulls=self.nulls.cut(start, stop),
            values=None if self.values is None else self.values[start:stop],
            rests=None if self.rests is None else self.rests.cut(start, stop),
            offsets=offsets,
            content=None if self.content is None else self.content[first:last],
            below=tuple(child.cut(first, last) for child in self.below),
        )


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the logical columns of a table, sorted by name.

    Raises:
        DefinitionError: Two columns share a name, or a type has no canonical encoding.
    """
    repeated = sorted(name for name, count in Counter(schema.names).items() if count > 1)
    if repeated:
        raise DefinitionError(
            f"expected one column of each name, found several named {', '.join(map(repr, repeated))}",
            hint="Rename or drop the repeated columns.",
        )
    columns = (Column(name=field.name, type=_logical(field, field.name)) for field in schema)
    return tuple(sorted(columns, key=lambda column: column.name))


def _logical(field: pa.Field, column: str) -> str:  # noqa: PLR0911 - one return per family of types
    """Return the logical type of a field; an extension is recognised whether or not its type is registered here."""
    arrow = field.type
    if isinstance(arrow, pa.BaseExtensionType):
        return _extension(arrow.extension_name, _logical(pa.field("", arrow.storage_type), column))
    if field.metadata and _EXTENSION_NAME in field.metadata:
        return _extension(field.metadata[_EXTENSION_NAME].decode(), _logical(pa.field("", arrow), column))
    if types.is_dictionary(arrow) or types.is_run_end_encoded(arrow):
        return _logical(pa.field("", arrow.value_type), column)
    if types.is_map(arrow):
        return f"map<{_logical(arrow.key_field, column)},{_logical(arrow.item_field, column)}>"
    if _is_list(arrow):
        return f"list<{_logical(arrow.value_field, column)}>"
    if types.is_struct(arrow):
        return f"struct<{','.join(f'{json.dumps(child.name)}:{_logical(child, column)}' for child in arrow)}>"
    return _scalar(arrow, column)


def _extension(name: str, storage: str) -> str:
    return f"extension<{json.dumps(name)},{storage}>"


def _scalar(arrow: pa.DataType, column: str) -> str:  # noqa: PLR0911 - one return per family of types
    if types.is_null(arrow) or types.is_boolean(arrow) or types.is_integer(arrow):
        return str(arrow)
    if types.is_floating(arrow):
        return _FLOATS[str(arrow)]
    if _is_text(arrow):
        return "string"
    if _is_binary(arrow):
        return "binary"
    if types.is_timestamp(arrow):
        return "timestamp" if arrow.tz is None else "timestamp[utc]"
    if types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    for logical in ("date", "time", "duration"):
        if getattr(types, f"is_{logical}")(arrow):
            return logical
    raise DefinitionError(
        f"column {column!r} has type {arrow}, which has no canonical encoding",
        hint="Write the column as another type, or leave it out of the source.",
    )


def _is_list(arrow: pa.DataType) -> bool:
    checks = (
        types.is_list,
        types.is_large_list,
        types.is_fixed_size_list,
        types.is_list_view,
        types.is_large_list_view,
    )
    return any(check(arrow) for check in checks)


def _is_text(arrow: pa.DataType) -> bool:
    return bool(types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow))


def _is_binary(arrow: pa.DataType) -> bool:
    checks = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return any(check(arrow) for check in checks)


def plain(table: pa.Table) -> pa.Table:
    """Return the table with one physical type for each logical type, but for units, decimal widths and extensions.

    Raises:
        DefinitionError: Two columns share a name, or a column's type has no canonical encoding.
    """
    return _cast(table, _plain_type)


def decoded(table: pa.Table) -> pa.Table:
    """Return the table as `plain` does, but leave strings and binaries with the offsets they have.

    `encode` takes any slice of a decoded column without work on the rest of it.

    Raises:
        DefinitionError: Two columns share a name, or a column's type has no canonical encoding.
    """
    return _cast(table, _decoded_type)


def _cast(table: pa.Table, type_of: Callable[[pa.DataType], pa.DataType]) -> pa.Table:
    columns_of(table.schema)
    columns, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        runs = types.is_run_end_encoded(field.type)
        target = type_of(field.type)
        try:
            values = _decode_runs(column) if runs else column
            columns.append(values if values.type == target else values.cast(target))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DefinitionError(
                f"column {field.name!r} of type {field.type} cannot be read as {target}: {error}",
                hint="Write the column as that type.",
            ) from error
        fields.append(field.with_type(target))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _decode_runs(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow.compute

    return pyarrow.compute.run_end_decode(column)


def _plain_type(arrow: pa.DataType) -> pa.DataType:  # noqa: PLR0911 - one return per family of types
    if types.is_dictionary(arrow) or types.is_run_end_encoded(arrow):
        return _plain_type(arrow.value_type)
    if types.is_map(arrow):
        return pa.map_(_plain_field(arrow.key_field), _plain_field(arrow.item_field))
    if types.is_list_view(arrow) or types.is_large_list_view(arrow):
        return arrow  # Arrow's casts of list views with nulls give broken arrays; `encode` needs none
    if _is_list(arrow):
        return pa.large_list(_plain_field(arrow.value_field).with_name("item"))
    if types.is_struct(arrow):
        return pa.struct([_plain_field(child) for child in arrow])
    if _is_text(arrow):
        return pa.large_string()
    if _is_binary(arrow):
        return pa.large_binary()
    if types.is_timestamp(arrow) and arrow.tz is not None:
        return pa.timestamp(arrow.unit, "UTC")
    if types.is_decimal32(arrow) or types.is_decimal64(arrow):
        return pa.decimal128(arrow.precision, arrow.scale)
    if types.is_date(arrow):
        return pa.date32()
    return pa.time64("ns") if types.is_time(arrow) else arrow


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))


def _decoded_type(arrow: pa.DataType) -> pa.DataType:
    if types.is_dictionary(arrow) or types.is_run_end_encoded(arrow):
        return _decoded_type(arrow.value_type)
    return arrow if types.is_string(arrow) or types.is_binary(arrow) else _plain_type(arrow)


def storage(array: pa.Array) -> pa.Array:
    """Return an array as a decoded type that is no extension."""
    while isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    target = _decoded_type(array.type)
    return array if array.type == target else array.cast(target)


def encode(array: pa.Array) -> Encoded:
    """Return the canonical encoding of an array.

    Raises:
        OverflowError: An instant or a duration does not fit in 64 bits of microseconds, or a value is longer than
            2 GiB.
    """
    array = storage(array)
    arrow = array.type
    null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    nulls = Sparse(None if null is None else _as_bytes(null))
    if types.is_null(arrow):
        return Encoded(nulls)
    if types.is_struct(arrow):
        return Encoded(nulls, below=tuple(encode(child) for child in array.flatten()))
    if types.is_map(arrow):
        entries = pa.struct([pa.field("key", arrow.key_type), pa.field("value", arrow.item_type)])
        array = array.cast(pa.large_list(entries))
        arrow = array.type
    if _is_list(arrow):
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        return Encoded(nulls, _lengths(lengths), offsets=_offsets(lengths), below=(encode(array.flatten()),))
    if _is_text(arrow) or _is_binary(arrow):
        return _encode_text(array, nulls)
    if types.is_timestamp(arrow) or types.is_duration(arrow):
        values, rests = _microseconds(_fixed(array, null).view("<i8")[:, 0], arrow.unit)
        return Encoded(nulls, values, rests)
    return Encoded(nulls, _fixed(array, null))


def _encode_text(array: pa.Array, nulls: Sparse) -> Encoded:
    position = "<i4" if types.is_string(array.type) or types.is_binary(array.type) else "<i8"
    bounds, data = _text_buffers(array, position)
    if nulls.items is not None and np.diff(bounds)[nulls.items[:, 0] == 1].any():
        array = array.fill_null("" if _is_text(array.type) else b"")
        bounds, data = _text_buffers(array, position)
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Encoded(nulls, _lengths(np.diff(bounds)), offsets=bounds, content=content)


def _text_buffers(array: pa.Array, position: str) -> tuple[NDArray[np.integer], pa.Buffer | None]:
    _, positions, data = array.buffers()
    if positions is None or not len(array):
        return np.zeros(1, position), data
    return np.frombuffer(positions, position)[array.offset : array.offset + len(array) + 1], data


def _fixed(array: pa.Array, null: NDArray[np.bool_] | None) -> Bytes:
    """Return the values of a fixed-width array, zero under nulls, shape (rows, width)."""
    arrow, rows, buffer = array.type, len(array), array.buffers()[1]
    if types.is_boolean(arrow):
        return _booleans(array, null)
    width = arrow.bit_width // 8
    if buffer is None or not rows:
        raw = np.zeros((rows, width), np.uint8)
    else:
        raw = np.frombuffer(buffer, np.uint8, rows * width, array.offset * width).reshape(rows, width)
        if null is not None:
            raw = np.where(null[:, None], np.uint8(0), raw)
    if types.is_floating(arrow):
        values = raw.view(f"<f{width}")[:, 0]
        unordered = np.isnan(values)
        return _as_bytes(np.where(unordered, values.dtype.type(np.nan), values)) if unordered.any() else raw
    if types.is_decimal(arrow):
        sign = np.where(raw[:, -1:] >= 0x80, np.uint8(0xFF), np.uint8(0))
        return np.ascontiguousarray(np.hstack([raw, np.repeat(sign, 32 - width, axis=1)]))
    return raw


def _booleans(array: pa.Array, null: NDArray[np.bool_] | None) -> Bytes:
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros((len(array), 1), np.uint8)
    first, skipped = divmod(array.offset, 8)
    packed = np.frombuffer(buffer, np.uint8, (skipped + len(array) + 7) // 8, first)
    values = np.unpackbits(packed, bitorder="little")[skipped : skipped + len(array)]
    return _as_bytes(values if null is None else np.where(null, np.uint8(0), values))


def _microseconds(ticks: NDArray[np.int64], unit: str) -> tuple[Bytes, Sparse]:
    """Return ticks as microseconds, rounded down, and the nanoseconds left of each."""
    per_second = TICKS_PER_SECOND[unit]
    if unit == "ns":
        whole, rest = np.divmod(ticks, 1000)
        return _as_bytes(whole), Sparse(_as_bytes(rest.astype("<i2")) if rest.any() else None)
    most = (2**63 - 1) // (10**6 // per_second)
    beyond = ticks[(ticks > most) | (ticks < -most)] if unit != "us" else ticks[:0]
    if len(beyond):
        raise OverflowError(f"{beyond[0]} {unit} since the epoch, which 64 bits of microseconds cannot hold")
    return _as_bytes(ticks if unit == "us" else ticks * (10**6 // per_second)), Sparse(None)


def _lengths(lengths: NDArray[np.integer]) -> Bytes:
    if lengths.itemsize > 4 and len(lengths) and lengths.max() > _LONGEST:
        raise OverflowError(f"a value of length {lengths.max()}, where {_LONGEST} is the longest")
    return _as_bytes(lengths.astype("<i4", copy=False))


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _as_bytes(values: NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.dtype.itemsize)
