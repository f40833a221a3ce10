"""The canonical encoding of Arrow columns: equal values give equal bytes, however they were stored.

A column is hashed as its *logical* type and its values. Two physical types share a logical type when they can hold the
same values: string, large_string, string_view and a dictionary of strings are all `string`; timestamps are instants
whatever their unit. What two readers of one file may see differently is left out: units, zone names, nullability
flags, metadata, chunks, offsets, and whatever lies under a null.

Encoded, a column of n rows is, in this order:

    validity   n bytes, 1 for a value and 0 for a null
    fixed      n little-endian values of the type's width; nulls are zero, every NaN is one NaN, and -0.0 is not 0.0
               (booleans: a byte; dates: int32 days; times: int64 nanoseconds; decimals: 32 bytes, two's complement;
               timestamps and durations: n int64 seconds, rounded down, then n int32 nanoseconds)
    lengths    n int64, for strings, binaries, lists and maps only; nulls are zero
    below      the bytes of all strings end to end, or the encoded child or children

Reading from the left, the size of each part follows from the type, n and the parts before it, so no two columns of a
type share an encoding.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from snapline.lineage.errors import DefinitionError
from snapline.lineage.snapshot import Column

Bytes = NDArray[np.uint8]
TICKS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EXTENSION_NAME = b"ARROW:extension:name"
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded column from which any run of rows can be cut.

    Attributes:
        rows: Arrays of shape (rows, width): the parts with one fixed-width item per row.
        offsets: For variable-length types, shape (rows + 1,): where each row starts in `below`.
        below: Bytes or children, with the same rows as this column, or those that `offsets` points into.
    """

    rows: tuple[Bytes, ...]
    offsets: NDArray[np.int64] | None = None
    below: tuple[Encoded, ...] = ()

    def parts(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the encoding of rows `start` to `stop`, in order."""
        for array in self.rows:
            yield array[start:stop].reshape(-1).data
        if self.offsets is not None:
            start, stop = int(self.offsets[start]), int(self.offsets[stop])
        for child in self.below:
            yield from child.parts(start, stop)


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
    columns_of(table.schema)
    columns, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        decoded = _decode_runs(column) if types.is_run_end_encoded(field.type) else column
        target = _plain_type(field.type)
        try:
            columns.append(decoded if decoded.type == target else decoded.cast(target))
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


def storage(array: pa.Array) -> pa.Array:
    """Return an array as a plain type that is no extension."""
    while isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    target = _plain_type(array.type)
    return array if array.type == target else array.cast(target)


def encode(array: pa.Array) -> Encoded:
    """Return the canonical encoding of an array."""
    array = storage(array)
    arrow = array.type
    valid: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    validity = _as_bytes(valid)
    if types.is_null(arrow):
        return Encoded((validity,))
    if types.is_struct(arrow):
        return Encoded((validity,), None, tuple(encode(child) for child in array.flatten()))
    if types.is_map(arrow):
        entries = pa.struct([pa.field("key", arrow.key_type), pa.field("value", arrow.item_type)])
        array = array.cast(pa.large_list(entries))
        arrow = array.type
    if _is_list(arrow):
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype("<i8")
        return Encoded((validity, _as_bytes(lengths)), _offsets(lengths), (encode(array.flatten()),))
    if types.is_large_string(arrow) or types.is_large_binary(arrow):
        return _encode_text(array, validity)
    return Encoded((validity, *_fixed(array, valid)))


def _encode_text(array: pa.Array, validity: Bytes) -> Encoded:
    if array.null_count:
        array = array.fill_null("" if types.is_large_string(array.type) else b"")
    _, positions, data = array.buffers()
    bounds = np.zeros(1, "<i8")
    if positions is not None and len(array):
        bounds = np.frombuffer(positions, "<i8")[array.offset : array.offset + len(array) + 1]
    first, last = int(bounds[0]), int(bounds[-1])
    content = np.frombuffer(data, np.uint8)[first:last] if last > first else np.zeros(0, np.uint8)
    return Encoded((validity, _as_bytes(np.diff(bounds))), bounds - first, (Encoded((content,)),))


def _fixed(array: pa.Array, valid: NDArray[np.bool_]) -> tuple[Bytes, ...]:
    """Return the values of a fixed-width array: one part, or seconds and nanoseconds for instants and durations."""
    arrow = array.type
    if types.is_boolean(arrow):
        return (_as_bytes(array.fill_null(False).to_numpy(zero_copy_only=False)),)
    width = arrow.bit_width // 8
    raw = np.zeros((len(array), width), np.uint8)
    if array.null_count < len(array):
        stored = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * width : (array.offset + len(array)) * width]
        raw = stored.reshape(len(array), width)
        if array.null_count:
            raw = np.where(valid[:, None], raw, np.uint8(0))
    if types.is_floating(arrow):
        values = raw.view(f"<f{width}")[:, 0]
        unordered = np.isnan(values)
        return (_as_bytes(np.where(unordered, values.dtype.type(np.nan), values)) if unordered.any() else raw,)
    if types.is_decimal(arrow):
        sign = np.where(raw[:, -1:] >= 0x80, np.uint8(0xFF), np.uint8(0))
        return (np.ascontiguousarray(np.hstack([raw, np.repeat(sign, 32 - width, axis=1)])),)
    if types.is_timestamp(arrow) or types.is_duration(arrow):
        per_second = TICKS_PER_SECOND[arrow.unit]
        seconds, rest = np.divmod(raw.view("<i8")[:, 0], per_second)
        return _as_bytes(seconds), _as_bytes((rest * (10**9 // per_second)).astype("<i4"))
    return (raw,)


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _as_bytes(values: NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.dtype.itemsize)
