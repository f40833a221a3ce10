"""The content digest of rows that come in a stream of any order and length, in bounded memory.

Rows are held in memory while they fit a budget. Beyond it, each load of that size is written to a scratch file in
bucket order (see `spill`); when the stream has ended, the buckets are read back a few at a time from all the files,
arranged and hashed. The digest is that of `fingerprint` over the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import types

from snapline.lineage.cut import Bucket
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError
from snapline.lineage.rows.encoding import Encoded, columns_of, plain
from snapline.lineage.rows.fingerprint import BucketHashing, HashedPiece, instants, refuse_nulls, snapshot_digest
from snapline.lineage.rows.ordering import refuse_unsortable
from snapline.lineage.rows.spill import Load, partitions, write_load
from snapline.lineage.snapshot import BucketDigest, Column

BUDGET_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of a stream of rows: their schema, the columns with their time and key, and the width of buckets."""

    schema: pa.Schema
    time: str
    key: str
    bucket: Bucket


@dataclass(frozen=True, slots=True)
class OrderedBucket:
    """One bucket's rows in hashed order, as a table and encoded by column name; keeping either keeps others' memory."""

    label: str
    rows: int
    table: pa.Table
    encoded: Mapping[str, Encoded]


@dataclass(frozen=True, slots=True)
class StreamFingerprint:
    """What was found in a stream: a `Fingerprint` without its rows, but with their count."""

    columns: tuple[Column, ...]
    buckets: tuple[BucketDigest, ...]
    digest: str
    rows: int


def fingerprint_stream(
    tables: Iterable[pa.Table],
    layout: Layout,
    algorithm: BulkAlgorithm,
    scratch: Path,
    on_bucket: Callable[[OrderedBucket], None] | None = None,
    *,
    budget: int = BUDGET_BYTES,
) -> StreamFingerprint:
    """Return the digests of all rows of some tables; no rows have a digest too, that of the columns alone.

    Args:
        tables: The rows, in any order and any number of pieces.
        layout: Their shape; every table has its logical columns, and physical types that its own can hold.
        algorithm: The bulk hash.
        scratch: A folder for files as large as the rows, which the caller removes.
        on_bucket: Called with every bucket in time order, on the caller's thread.
        budget: Bytes of rows to hold in memory. About three times as much is used, and more only for a table or a
            bucket that is larger by itself, for a bucket's rows are sorted together.

    Raises:
        DefinitionError: A table differs from the layout, a column cannot be encoded, the key cannot be sorted, or time
            or key holds nulls.
    """
    columns = columns_of(layout.schema)
    hashing = BucketHashing(columns, layout.time, layout.key, layout.bucket, algorithm)
    buckets: list[BucketDigest] = []
    for part in _parts(tables, layout, scratch, budget):
        for piece in hashing.pieces(part):
            buckets += piece.buckets
            if on_bucket is not None:
                for bucket in _ordered(piece):
                    on_bucket(bucket)
    rows = sum(bucket.rows for bucket in buckets)
    return StreamFingerprint(columns, tuple(buckets), snapshot_digest(columns, buckets, algorithm), rows)


def _parts(tables: Iterable[pa.Table], layout: Layout, scratch: Path, budget: int) -> Iterator[pa.Table]:
    """Yield all rows, in tables of whole buckets in time order; only the rows inside each are in no order."""
    schema = _stream_schema(layout)
    held: list[pa.Table] = []
    loads: list[Load] = []
    size = 0
    for table in tables:
        rows = _conformed(table, schema)
        refuse_nulls({name: rows.column(name).null_count for name in (layout.time, layout.key)})
        if not len(rows):
            continue
        held.append(rows)
        size += rows.nbytes
        if size > budget:
            loads.append(_write(held, layout, scratch / f"{len(loads)}.arrow", size))
            held.clear()
            size = 0
    if not loads:
        yield pa.concat_tables([schema.empty_table(), *held])
        return
    if held:
        loads.append(_write(held, layout, scratch / f"{len(loads)}.arrow", size))
        held.clear()
    yield from partitions(loads, schema, budget // 3)


def _write(held: list[pa.Table], layout: Layout, path: Path, size: int) -> Load:
    table = pa.concat_tables(held)
    return write_load(path, table, instants(table, layout.time).bucket_numbers(layout.bucket), size)


def _stream_schema(layout: Layout) -> pa.Schema:
    """Return the layout's schema of plain types, with instants in microseconds at least, so that coarser units fit too.

    Raises:
        DefinitionError: It lacks time or key, time holds no instants, or the key cannot be sorted.
    """
    for name in (layout.time, layout.key):
        if name not in layout.schema.names:
            raise DefinitionError(
                f"expected a column {name!r}, found {', '.join(layout.schema.names)}", hint="Name one of those."
            )
    schema = plain(layout.schema.empty_table()).schema
    instants(schema.empty_table(), layout.time)
    refuse_unsortable(layout.key, schema.field(layout.key).type)
    fields = []
    for field in schema:
        coarse = types.is_timestamp(field.type) and field.type.unit in {"s", "ms"}
        fields.append(field.with_type(pa.timestamp("us", field.type.tz)) if coarse else field)
    return pa.schema(fields)


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table's rows in the physical types of the stream.

    Raises:
        DefinitionError: Its logical columns are others, or a value does not fit.
    """
    expected, found = columns_of(schema), columns_of(table.schema)
    if expected != found:
        differing = sorted({column.name for column in set(expected) ^ set(found)})
        raise DefinitionError(
            f"expected every part of a table to have the same columns, found parts that differ in "
            f"{', '.join(map(repr, differing))}",
            hint="Write the parts of the source with one schema.",
        )
    table = plain(table.select(schema.names))
    try:
        return table if table.schema.equals(schema) else table.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise DefinitionError(
            f"a part of the table cannot be read with the types of the whole: {error}",
            hint="Write the parts of the source with one schema.",
        ) from error


def _ordered(piece: HashedPiece) -> Iterator[OrderedBucket]:
    start = 0
    for digest in piece.buckets:
        stop = start + digest.rows
        encoded = {name: column.cut(start, stop) for name, column in piece.arranged.encoded.items()}
        yield OrderedBucket(digest.label, digest.rows, piece.arranged.table.slice(start, digest.rows), encoded)
        start = stop
