"""The content digest of a snapshot: every row, by time bucket, whatever order or layout the rows came in.

    bucket digest   = H(header, encoded columns), with header = canonical JSON of (recipe, columns, label, row count),
                      written after its own length, and H the bulk hash
    snapshot digest = Merkle root over (the columns, then each bucket's label, row count and digest, in time order)

Columns go in name order. Rows go in the order of `ordering`: by key inside their bucket, those that share a key by
their own encoding. So the digest depends on the multiset of rows alone: not on their order, but on how often each
occurs. The encoding of a column is described in `encoding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from snapline.lineage.cut import Bucket, bucket_label
from snapline.lineage.digest import BulkAlgorithm, canonical_json, hasher, merkle_root, named
from snapline.lineage.errors import DefinitionError
from snapline.lineage.rows.encoding import TICKS_PER_SECOND, columns_of, decoded
from snapline.lineage.rows.ordering import Arranged, Piece, arrange, in_turn, joined, pieces, refuse_unsortable
from snapline.lineage.snapshot import BucketDigest, Column

RECIPE = "rows-v2"
_JOINED_BYTES = 4 << 20  # up to here, parts hash faster joined, for hashing many small ones costs more than a copy
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY_SECONDS = 86_400
_FIRST_MONDAY = 4  # 1970-01-05, in days since the epoch
_UNITS = {Bucket.MONTH: "datetime64[M]", Bucket.YEAR: "datetime64[Y]"}


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """What was found in a table.

    Attributes:
        columns: Its logical columns, in name order.
        buckets: The digest of each bucket, in time order.
        digest: The digest of all of it.
        rows: The rows as they came.
        order: Where each row of the hashed order is among `rows`; None when they came in that order.
    """

    columns: tuple[Column, ...]
    buckets: tuple[BucketDigest, ...]
    digest: str
    rows: pa.Table
    order: NDArray[np.int64] | None

    @cached_property
    def table(self) -> pa.Table:
        """The rows in the order they were hashed; gathered when first asked for."""
        return self.rows if self.order is None else joined(self.rows).take(pa.array(self.order))


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
        return first_seconds(self.bucket_numbers(bucket), bucket)

    def bucket_numbers(self, bucket: Bucket) -> NDArray[np.int64]:
        """Return each row's bucket, counted in time order: `first_seconds` says when it starts."""
        if bucket is Bucket.HOUR:
            return np.floor_divide(self.ticks, 3600 * self.per_second)
        days = np.floor_divide(self.ticks, _DAY_SECONDS * self.per_second)
        match bucket:
            case Bucket.DAY:
                return days
            case Bucket.WEEK:
                return (days - _FIRST_MONDAY) // 7
        unit = _UNITS[bucket]
        first, last = (int(days.min()), int(days.max())) if len(days) else (0, 0)
        few = last - first < len(days)  # then the calendar of each day is worked out once, not that of each row
        calendar = (np.arange(first, last + 1) if few else days).astype("datetime64[D]").astype(unit)
        numbers: NDArray[np.int64] = calendar.astype(np.int64)
        return numbers[days - first] if few else numbers


def first_seconds(numbers: NDArray[np.int64], bucket: Bucket) -> NDArray[np.int64]:
    """Return the first second of buckets by their numbers, in seconds since the epoch."""
    match bucket:
        case Bucket.HOUR:
            return numbers * 3600
        case Bucket.DAY:
            return numbers * _DAY_SECONDS
        case Bucket.WEEK:
            return (numbers * 7 + _FIRST_MONDAY) * _DAY_SECONDS
    return numbers.astype(_UNITS[bucket]).astype("datetime64[s]").astype(np.int64)


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
    """Return the label of the bucket that starts at a second since the epoch.

    Raises:
        DefinitionError: It lies outside the years 1 to 9999.
    """
    try:
        return bucket_label(_EPOCH + timedelta(seconds=start), bucket)
    except OverflowError as error:
        raise DefinitionError(
            f"expected instants in the years 1 to 9999, found a bucket that starts {start} seconds from 1970",
            hint="Drop such rows where the source is written.",
        ) from error


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


@dataclass(frozen=True, slots=True)
class HashedPiece:
    """Some consecutive buckets: their rows in hashed order, and the digest of each."""

    arranged: Arranged
    buckets: tuple[BucketDigest, ...]


@dataclass(frozen=True, slots=True)
class BucketHashing:
    """How the rows of one table are cut into buckets and hashed; `columns` are the table's."""

    columns: tuple[Column, ...]
    time: str
    key: str
    bucket: Bucket
    algorithm: BulkAlgorithm

    def pieces(self, table: pa.Table) -> Iterator[HashedPiece]:
        """Yield the buckets of a decoded table in time order; its time and key hold no nulls.

        Raises:
            DefinitionError: Time holds no instants, the key cannot be sorted, or the encoding cannot hold a value.
        """
        refuse_unsortable(self.key, table.schema.field(self.key).type)
        numbers = instants(table, self.time).bucket_numbers(self.bucket)
        if not len(numbers):
            return
        found = pieces(numbers, table.nbytes / len(numbers))
        first = next(found)
        if not isinstance(first.rows, slice):  # gathering from many chunks would join them again for every piece
            table = joined(table)
        yield from in_turn(lambda piece: self._hash(table, piece), chain([first], found))

    def _hash(self, table: pa.Table, piece: Piece) -> HashedPiece:
        rows = arrange(table, self.key, piece)
        head = canonical_json([RECIPE, [column.model_dump() for column in self.columns]])[:-1]
        starts = first_seconds(np.array(piece.numbers), self.bucket).tolist()
        few = _JOINED_BYTES * len(rows.table) // max(rows.table.nbytes, 1)
        digests = []
        for first, (start, stop) in zip(starts, pairwise(piece.edges), strict=True):
            label = start_label(first, self.bucket)
            header = head + f',"{label}",{stop - start}]'.encode()  # canonical, for labels need no escapes
            parts = chain.from_iterable(column.parts(start, stop) for column in rows.encoded.values())
            state = hasher(self.algorithm)
            state.update(len(header).to_bytes(8, "little") + header)
            for part in [b"".join(parts)] if stop - start < few else parts:
                state.update(part)
            digests.append(BucketDigest(label=label, rows=stop - start, hexdigest=state.hexdigest()))
        return HashedPiece(rows, tuple(digests))


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
    table = decoded(table)
    columns = columns_of(table.schema)
    refuse_nulls({name: table.column(name).null_count for name in (time, key)})
    buckets: list[BucketDigest] = []
    orders: list[slice | NDArray[np.int64]] = []
    for piece in BucketHashing(columns, time, key, bucket, algorithm).pieces(table):
        buckets += piece.buckets
        orders.append(piece.arranged.piece.rows)
    digest = snapshot_digest(columns, buckets, algorithm)
    return Fingerprint(columns, tuple(buckets), digest, table, _one_order(orders))


def _one_order(orders: Sequence[slice | NDArray[np.int64]]) -> NDArray[np.int64] | None:
    """Return the orders of all pieces as one; None when every row is where it was."""
    if all(isinstance(order, slice) for order in orders):
        return None
    whole: NDArray[np.int64] = np.concatenate([np.r_[order] for order in orders])
    return whole
