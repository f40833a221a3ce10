"""Rows in the order they are hashed: by time bucket, then key, then content.

Keys ascend: numbers by value (-0.0 before 0.0, NaN last), text and binaries by their bytes. Rows that share bucket and
key go in the order of their own encodings, each row encoded alone and compared byte by byte, column after column in
name order. That is a function of the rows, so the order they came in does not matter.

A table is arranged in *pieces* of a few consecutive buckets, each small enough for a processor's cache, so that pieces
can be arranged side by side on threads: numpy and Arrow let go of the interpreter where the work is.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from snapline.lineage.errors import DefinitionError
from snapline.lineage.rows.encoding import Encoded, encode, storage

Order = NDArray[np.int64]
Keys: TypeAlias = "NDArray[np.integer] | pa.Array"
Item = TypeVar("Item")
Result = TypeVar("Result")
PIECE_BYTES = 16 << 20
_BLOCK_ROWS = 1 << 16
_POSITION_BITS = np.int64(32)
_POSITION = np.int64(2**32 - 1)


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of some consecutive buckets.

    Attributes:
        rows: Where they are in the table: a slice, or positions.
        numbers: The buckets' numbers, ascending.
        edges: Where each bucket starts among these rows, and, last, how many rows there are.
    """

    rows: slice | Order
    numbers: list[int]
    edges: list[int]


@dataclass(frozen=True, slots=True)
class Arranged:
    """The rows of a piece in hashed order.

    Attributes:
        piece: What was arranged; `rows` says where the ordered rows are.
        table: The rows.
        encoded: Their encoding by column name, in name order.
    """

    piece: Piece
    table: pa.Table
    encoded: dict[str, Encoded]


def pieces(numbers: NDArray[np.int64], row_bytes: float) -> Iterator[Piece]:
    """Yield the rows bucket by bucket, in pieces of whole buckets and about `PIECE_BYTES`.

    Args:
        numbers: Each row's bucket, numbered in time order.
        row_bytes: How large a row is, about.
    """
    order = None
    if not in_order(numbers):
        order, numbers = by_number(numbers)
    edges = bucket_edges(numbers)
    most = max(1, int(PIECE_BYTES / max(row_bytes, 1)))
    first = 0
    while edges[first] < len(numbers):
        start = int(edges[first])
        last = max(first + 1, int(np.searchsorted(edges, start + most, "right")) - 1)
        stop = int(edges[last])
        rows = slice(start, stop) if order is None else order[start:stop]
        yield Piece(rows, numbers[edges[first:last]].tolist(), (edges[first : last + 1] - start).tolist())
        first = last


def in_order(numbers: NDArray[np.int64]) -> bool:
    """Return whether no row lies in an earlier bucket than the row before it."""
    starts = range(0, len(numbers), _BLOCK_ROWS)
    blocks = (numbers[start : start + _BLOCK_ROWS + 1] for start in starts)
    return not any((block[1:] < block[:-1]).any() for block in blocks)


def bucket_edges(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each bucket starts among rows in order, and, last, how many rows there are."""
    inner = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    return np.concatenate([np.zeros(1, np.int64), inner, np.full(1, len(numbers), np.int64)])


def by_number(numbers: NDArray[np.int64]) -> tuple[Order, NDArray[np.int64]]:
    """Return the order that sorts rows by bucket, keeping those of each as they came, and their buckets in it."""
    low, high = int(numbers.min()), int(numbers.max())
    if high - low >= 2**31 or len(numbers) >= 2**32:
        order = np.argsort(numbers, kind="stable")
        return order, numbers[order]
    packed = numbers - low  # with its position behind it, a bucket sorts several times faster than indirectly
    packed <<= _POSITION_BITS
    packed |= np.arange(len(numbers))
    packed.sort()
    ascending = packed >> _POSITION_BITS
    ascending += low
    packed &= _POSITION
    return packed, ascending


def arrange(table: pa.Table, key: str, piece: Piece) -> Arranged:
    """Return the rows of a piece of a decoded table in hashed order.

    Raises:
        DefinitionError: The encoding cannot hold a value.
    """
    first, at = 0, None
    if isinstance(piece.rows, slice):
        first = piece.rows.start
        table = joined(table.slice(first, piece.rows.stop - first))
    else:
        at = piece.rows
    keys = _sortable(whole(_taken(table.select([key]), at).column(0)))
    order = _by_key(keys, piece.edges)
    if order is not None:
        keys = keys[order] if isinstance(keys, np.ndarray) else keys.take(pa.array(order))
        at = order if at is None else at[order]
    part = _taken(table, at)
    encoded = _encode_columns(part)
    ties = _by_content(encoded, _tied(keys, piece.edges))
    if ties is not None:
        part = _taken(part, ties)
        encoded = _encode_columns(part)
        at = ties if at is None else at[ties]
    return Arranged(piece if at is None else replace(piece, rows=at + first), part, encoded)


def _taken(table: pa.Table, rows: Order | None) -> pa.Table:
    return table if rows is None else pc.take(table, pa.array(rows), boundscheck=False)


def _encode_columns(table: pa.Table) -> dict[str, Encoded]:
    columns = {}
    for name in sorted(table.column_names):
        try:
            columns[name] = encode(whole(table.column(name)))
        except OverflowError as error:
            raise DefinitionError(
                f"column {name!r} holds {error}", hint="Drop such rows, or leave the column out, at the source."
            ) from error
    return columns


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a decoded column in one piece."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.nbytes >= 2**31 and (types.is_string(column.type) or types.is_binary(column.type)):
        column = column.cast(pa.large_string() if types.is_string(column.type) else pa.large_binary())
    return column.combine_chunks()


def joined(table: pa.Table) -> pa.Table:
    """Return a decoded table with each column in one piece, to gather rows from."""
    columns = [whole(column) for column in table.columns]
    fields = [field.with_type(column.type) for field, column in zip(table.schema, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def refuse_unsortable(name: str, arrow: pa.DataType) -> None:
    """Pass when keys of a decoded type have an order.

    Raises:
        DefinitionError: They have none.
    """
    stored = arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow
    if types.is_nested(stored) or types.is_null(stored):
        raise DefinitionError(
            f"key column {name!r} of type {arrow} cannot be sorted", hint="Choose a key of numbers or text."
        )


def _sortable(keys: pa.Array) -> Keys:
    """Return keys without nulls as integers in the same order, or as they are where Arrow sorts them."""
    keys = storage(keys)
    arrow = keys.type
    if types.is_boolean(arrow):
        return keys.cast(pa.uint8()).to_numpy()
    if not types.is_primitive(arrow) or types.is_decimal(arrow):
        return keys
    kind = "u" if types.is_unsigned_integer(arrow) else "i"
    width = arrow.bit_width // 8
    numbers = np.frombuffer(keys.buffers()[1], f"<{kind}{width}", len(keys), keys.offset * width)
    if not types.is_floating(arrow):
        return numbers
    largest = numbers.dtype.type(np.iinfo(numbers.dtype).max)
    # The bits of floats ascend with their values, but for the negative ones, whose bits descend.
    ascending = numbers ^ ((numbers >> (8 * width - 1)) & largest)
    return np.where(np.isnan(numbers.view(f"<f{width}")), largest, ascending)


def _by_key(keys: Keys, edges: list[int]) -> Order | None:
    """Return the order that sorts keys inside each bucket; None when they are sorted."""
    if isinstance(keys, np.ndarray):
        falling = keys[1:] < keys[:-1]
    else:
        falling = pc.less(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False).copy()
    falling[np.asarray(edges[1:-1], np.int64) - 1] = False
    if not falling.any():
        return None
    order = np.empty(len(keys), np.int64)
    for start, stop in pairwise(edges):
        if isinstance(keys, np.ndarray):
            order[start:stop] = np.argsort(keys[start:stop])
        else:
            order[start:stop] = pc.sort_indices(keys.slice(start, stop - start)).to_numpy()
        order[start:stop] += start
    return order


def _tied(keys: Keys, edges: list[int]) -> NDArray[np.bool_]:
    """Return, for each row but the last, whether the next is of the same bucket and key."""
    same: NDArray[np.bool_]
    if isinstance(keys, np.ndarray):
        same = keys[1:] == keys[:-1]
    else:
        same = pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False).copy()
    same[np.asarray(edges[1:-1], np.int64) - 1] = False
    return same


def _by_content(encoded: dict[str, Encoded], same: NDArray[np.bool_]) -> Order | None:
    """Return the order that sorts tied rows by their own encodings; None when they are sorted.

    Column by column, the rows of each run of ties are sorted, and those that still tie go on to the next column.
    """
    if not same.any():
        return None
    order = np.arange(len(same) + 1)
    run = np.concatenate([np.zeros(1, np.int64), np.cumsum(~same)])
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    run = run[tied]
    for column in encoded.values():
        words = _words(column, order[tied])
        sorting = np.lexsort([*reversed(words), run])
        order[tied] = order[tied][sorting]
        again = run[1:] == run[:-1]
        for word in words:
            again &= word[sorting][1:] == word[sorting][:-1]
        left = np.append(again, False) | np.append(False, again)
        run, tied = np.concatenate([np.zeros(1, np.int64), np.cumsum(~again)])[left], tied[left]
        if not len(tied):
            break
    return None if (order[1:] > order[:-1]).all() else order


def _words(column: Encoded, rows: Order) -> list[NDArray[np.unsignedinteger]]:
    """Return numbers, the first most significant, that order rows as their encodings do."""
    if column.below:
        return [_ranks(pa.array([b"".join(column.parts(row, row + 1)) for row in rows.tolist()], pa.large_binary()))]
    words = [] if column.nulls.items is None else [column.nulls.items[rows, 0]]
    if column.values is not None:
        words += _big_endian(column.values[rows])
    if column.rests is not None and column.rests.items is not None:
        words += _big_endian(column.rests.items[rows])
    if column.content is not None and column.offsets is not None:
        words.append(_ranks(_texts(column.content, column.offsets, rows)))
    return words


def _big_endian(values: NDArray[np.uint8]) -> list[NDArray[np.unsignedinteger]]:
    width = min(values.shape[1], 8)
    read = np.ascontiguousarray(values).view(f">u{width}")
    return [read[:, word].astype(f"=u{width}") for word in range(read.shape[1])]


def _texts(content: NDArray[np.uint8], offsets: NDArray[np.integer], rows: Order) -> pa.Array:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, "<i8")), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers).take(pa.array(rows))


def _ranks(texts: pa.Array) -> NDArray[np.unsignedinteger]:
    ranks: NDArray[np.unsignedinteger] = pc.rank(texts, tiebreaker="dense").to_numpy()
    return ranks


def in_turn(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield the result of each item in order, working on as many at once as there are processors."""
    workers = os.cpu_count() or 1
    items = iter(items)
    first = list(islice(items, 2))
    if len(first) < 2:
        yield from map(work, first)
        return
    with ThreadPoolExecutor(workers) as pool:
        ahead: deque[Future[Result]] = deque(pool.submit(work, item) for item in first)
        try:
            for item in items:
                ahead.append(pool.submit(work, item))
                if len(ahead) > workers + 1:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for waiting in ahead:
                waiting.cancel()
