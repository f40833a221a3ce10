"""The content digest of a snapshot: every row, by time bucket, whatever order or layout the rows came in.

    bucket digest   = H(header, encoded columns), with header = canonical JSON of (recipe, columns, label, row count),
                      written after its own length, and H the bulk hash
    snapshot digest = Merkle root over (the columns, then each bucket's label, row count and digest, in time order)

Columns go in name order. Rows go in key order inside their bucket; rows that share a key go in the order of their own
encoding. So the digest depends on the multiset of rows alone: not on their order, but on how often each occurs. The
encoding of a column is described in `snapline.lineage.encoding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from snapline.lineage.cut import Bucket, bucket_label
from snapline.lineage.digest import BulkAlgorithm, canonical_json, hasher, merkle_root, named
from snapline.lineage.encoding import TICKS_PER_SECOND, Encoded, columns_of, encode, plain, storage
from snapline.lineage.errors import DefinitionError
from snapline.lineage.snapshot import BucketDigest, Column

RECIPE = "rows-v1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY_SECONDS = 86_400
_FIRST_MONDAY = 4  # 1970-01-05, in days since the epoch


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What was found in a table; `table` has its rows in the order they were hashed."""

    columns: tuple[Column, ...]
    buckets: tuple[BucketDigest, ...]
    digest: str
    table: pa.Table


@dataclass(frozen=True, slots=True)
class Instants:
    """A column of instants: `ticks` since the epoch, shape (rows,), `per_second` of them to a second."""

    ticks: NDArray[np.int64]
    per_second: int

    def before(self, instant: datetime) -> NDArray[np.bool_]:
        """Return which rows lie strictly before an instant."""
        return np.less(self.ticks, -(-self._scaled(instant) // 10**6))

    def not_after(self, instant: datetime) -> NDArray[np.bool_]:
        """Return which rows lie at or before an instant."""
        return np.less_equal(self.ticks, self._scaled(instant) // 10**6)

    def _scaled(self, instant: datetime) -> int:
        """Return the instant in millionths of a tick, exactly."""
        return (instant - _EPOCH) // _MICROSECOND * self.per_second

    def bucket_starts(self, bucket: Bucket) -> NDArray[np.int64]:
        """Return the first second of each row's bucket, in seconds since the epoch."""
        seconds = np.floor_divide(self.ticks, self.per_second)
        match bucket:
            case Bucket.HOUR:
                return seconds // 3600 * 3600
            case Bucket.DAY:
                return seconds // _DAY_SECONDS * _DAY_SECONDS
            case Bucket.WEEK:
                days = seconds // _DAY_SECONDS
                return ((days - _FIRST_MONDAY) // 7 * 7 + _FIRST_MONDAY) * _DAY_SECONDS
        unit = "M" if bucket is Bucket.MONTH else "Y"
        return seconds.astype("datetime64[s]").astype(f"datetime64[{unit}]").astype("datetime64[s]").astype(np.int64)


def instants(table: pa.Table, name: str) -> Instants:
    """Return a column without nulls as instants; naive times and dates are UTC.

    Raises:
        DefinitionError: The column is neither timestamps nor dates.
    """
    column = table.column(name)
    if types.is_timestamp(column.type):
        return Instants(column.cast(pa.int64()).to_numpy(), TICKS_PER_SECOND[column.type.unit])
    if types.is_date(column.type):
        days = column.cast(pa.date32()).cast(pa.int32()).to_numpy()
        return Instants(days.astype(np.int64) * _DAY_SECONDS, 1)
    raise DefinitionError(
        f"column {name!r} must hold timestamps or dates to order rows in time, found {column.type}",
        hint=f"Cast {name} to a timestamp where the source is written.",
    )


def start_label(start: int, bucket: Bucket) -> str:
    """Return the label of the bucket that starts at a second since the epoch."""
    return bucket_label(_EPOCH + timedelta(seconds=start), bucket)


def refuse_nulls(counts: Mapping[str, int]) -> None:
    """Pass when no column has nulls.

    Raises:
        DefinitionError: Some have; the message carries the count of each.
    """
    found = ", ".join(f"{count} in {name!r}" for name, count in counts.items() if count)
    if found:
        raise DefinitionError(
            f"expected a value in every row of the time, known and key columns, found nulls: {found}",
            hint="Fill or drop those rows where the source is written.",
        )


def snapshot_digest(columns: Sequence[Column], buckets: Iterable[BucketDigest], algorithm: BulkAlgorithm) -> str:
    """Return the digest of a whole snapshot from its columns and bucket digests."""
    leaves = [canonical_json([column.model_dump() for column in columns])]
    leaves += [canonical_json(bucket.model_dump()) for bucket in buckets]
    return named(algorithm, RECIPE, merkle_root(leaves, algorithm))


def fingerprint(table: pa.Table, *, time: str, key: str, bucket: Bucket, algorithm: BulkAlgorithm) -> Fingerprint:
    """Return the digests of a table's rows; no rows have a digest too, that of the columns alone.

    Raises:
        DefinitionError: A column cannot be encoded, the key cannot be sorted, or time or key holds nulls.
    """
    table = plain(table)
    columns = columns_of(table.schema)
    refuse_nulls({name: table.column(name).null_count for name in (time, key)})
    starts = instants(table, time).bucket_starts(bucket)
    table, starts, encoded = _in_order(table, starts, key)
    edges = np.flatnonzero(np.diff(starts, prepend=starts[:1] - 1, append=starts[-1:] + 1)).tolist()
    digests = []
    for start, stop in pairwise(edges):
        label = start_label(int(starts[start]), bucket)
        header = canonical_json([RECIPE, [column.model_dump() for column in columns], label, stop - start])
        state = hasher(algorithm)
        state.update(len(header).to_bytes(8, "little") + header)
        for part in _row_parts(encoded, start, stop):
            state.update(part)
        digests.append(BucketDigest(label=label, rows=stop - start, hexdigest=state.hexdigest()))
    buckets = tuple(digests)
    return Fingerprint(columns, buckets, snapshot_digest(columns, buckets, algorithm), table)


def _row_parts(encoded: Sequence[Encoded], start: int, stop: int) -> Iterable[memoryview]:
    return (part for column in encoded for part in column.parts(start, stop))


def _in_order(
    table: pa.Table, starts: NDArray[np.int64], key: str
) -> tuple[pa.Table, NDArray[np.int64], list[Encoded]]:
    """Return the table, its bucket starts and its encoding, with rows in bucket, key and content order."""
    keys = _sortable(table.column(key), key)
    if not _ascending(starts, keys):
        by = [("start", "ascending"), ("key", "ascending")]
        order = pc.sort_indices(pa.table({"start": starts, "key": keys}), sort_keys=by)
        table, keys, starts = table.take(order), keys.take(order), starts[order.to_numpy()]
    encoded = _encode_columns(table)
    order = _ties_by_content(encoded, _same_as_next(starts, keys))
    if order is not None:
        table = table.take(order)
        encoded = _encode_columns(table)
    return table, starts, encoded


def _encode_columns(table: pa.Table) -> list[Encoded]:
    return [encode(_whole(table.column(name))) for name in sorted(table.column_names)]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _sortable(column: pa.ChunkedArray, name: str) -> pa.Array:
    """Return keys in a type that Arrow orders, with the order of the logical type."""
    keys = storage(_whole(column))
    if types.is_float16(keys.type):
        keys = keys.cast(pa.float32())
    if types.is_nested(keys.type) or types.is_null(keys.type):
        raise DefinitionError(
            f"key column {name!r} of type {column.type} cannot be sorted", hint="Choose a key of numbers or text."
        )
    return keys


def _ascending(starts: NDArray[np.int64], keys: pa.Array) -> bool:
    rising = pc.less_equal(keys[:-1], keys[1:]).to_numpy(zero_copy_only=False)
    earlier, later = starts[:-1], starts[1:]
    return bool(np.all((earlier < later) | ((earlier == later) & rising)))


def _same_as_next(starts: NDArray[np.int64], keys: pa.Array) -> NDArray[np.bool_]:
    """Return, for each row but the last, whether the next has an equal key; -0.0 equals 0.0, and NaN equals NaN."""
    same = pc.equal(keys[:-1], keys[1:])
    if types.is_floating(keys.type):
        same = pc.or_(same, pc.and_(pc.is_nan(keys[:-1]), pc.is_nan(keys[1:])))
    tied: NDArray[np.bool_] = same.to_numpy(zero_copy_only=False) & (starts[:-1] == starts[1:])
    return tied


def _ties_by_content(encoded: Sequence[Encoded], same: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """Return the order in which rows of equal keys are sorted by their encoding; None when they are already."""
    if not same.any():
        return None
    run = np.concatenate([np.zeros(1, np.int64), np.cumsum(~same)])
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    ranks = [_ranks(column, tied) for column in encoded]
    order = np.arange(len(run))
    order[tied] = tied[np.lexsort([*reversed(ranks), run[tied]])]
    return None if np.array_equal(order, np.arange(len(order))) else order


def _ranks(column: Encoded, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each row's encoding of one column stands among those of the given rows, equal ones alike."""
    if column.below:
        contents = np.empty(len(rows), object)
        contents[:] = [b"".join(column.parts(row, row + 1)) for row in rows.tolist()]
    else:
        fixed = np.hstack([part[rows] for part in column.rows])
        contents = fixed.view(f"V{fixed.shape[1]}")[:, 0]
    ranks: NDArray[np.int64] = np.unique(contents, return_inverse=True)[1]
    return ranks
