"""Keyed hashes of rows: 64 bits of each row's key, and 32 bits of its whole content.

    key hash     = h1(words of the key) ‖ h2(words of the key)
    content hash = h3(words of every column)
    h(x)         = ((a_0 x_0 + a_1 x_1 + ... + b) mod 2^64) >> 32

over 32-bit words x with random 64-bit multipliers a and b: the vector multiply-shift scheme of M. Thorup, "High speed
hashing for integers and strings" (arXiv 1504.06804), section 3.5, which is strongly universal. So two different keys
share a key hash with probability 2^-64, and two different rows share a content hash with probability 2^-32, and twice
that again for each level of lists. Equal values always share theirs. The multipliers come from the home's salt, so the
hashes of two homes cannot be joined, and from the column's name, so the order of columns does not matter.

A value is hashed as the words of its logical value, whatever its physical type: integers, dates and times as 64 bits;
floats as their 64-bit value, with one NaN; instants and durations as microseconds (modulo 2^64) and the nanoseconds
left over; decimals as 256 bits; text and bytes as their length and up to 32 bytes, longer ones as their length and
their keyed BLAKE3. Every value is preceded by one word that tells it from a null. In keys alone, -0.0 is 0.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
from blake3 import blake3
from numpy.typing import NDArray
from pyarrow import types

from snapline.lineage.rows.encoding import TICKS_PER_SECOND, storage

RECIPE = "membership-v1"
Words = NDArray[np.uint64]
_SHORT = 32  # bytes of a text that are hashed as they are
_BLOCK = 1 << 15  # rows at a time, so that the words of a column stay in the processor's cache
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_WORDS_EACH = 1 + 1 + _SHORT // 4  # of a value: validity, length, content
_LISTS = (types.is_map, types.is_large_list, types.is_list_view, types.is_large_list_view)
_TEXTS = (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
_TAIL = np.array([(1 << 8 * count) - 1 for count in range(8)] + [2**64 - 1], np.uint64)


@dataclass(frozen=True, slots=True)
class Hashes:
    """Key hashes and content hashes of some rows, both of shape (rows,), aligned."""

    keys: Words
    contents: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: NDArray[np.int64] | slice) -> Hashes:
        """Return the hashes of some of the rows."""
        return Hashes(self.keys[rows], self.contents[rows])


@dataclass(frozen=True, slots=True)
class _Family:
    """Hash functions that share their random bits' origin: `count` of them, for one purpose in one home."""

    salt: str
    purpose: str
    count: int

    def multipliers(self, path: tuple[str, ...], words: int = _WORDS_EACH) -> Words:
        """Return random multipliers of shape (count, words) for the values at a path in a row."""
        return _multipliers(self, path, words)

    def seed(self) -> bytes:
        """Return the 32 bytes that everything random of this family comes from."""
        return blake3(bytes.fromhex(self.salt), derive_key_context=f"snapline {RECIPE} {self.purpose}").digest()


def row_hashes(table: pa.Table, key: str, salt: str) -> Hashes:
    """Return the hashes of a table's rows, in their order.

    Args:
        table: Rows of any physical types that have a canonical encoding.
        key: Name of the key column.
        salt: The home's salt, as hex digits.
    """
    family = _Family(salt, "contents", 1)
    contents = np.empty(table.num_rows, np.uint32)
    place = 0
    for batch in table.to_batches(max_chunksize=_BLOCK):
        sums = np.zeros((1, batch.num_rows), np.uint64)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            _add_words(sums, column, (name,), family)
        contents[place : place + batch.num_rows] = _finish(sums, (), family)[0]
        place += batch.num_rows
    return Hashes(key_hashes(table.column(key), salt), contents)


def key_hashes(keys: pa.Array | pa.ChunkedArray, salt: str) -> Words:
    """Return the 64-bit hashes of keys, in their order; nulls have one too, which no value shares."""
    family = _Family(salt, "keys", 2)
    hashes = np.empty(len(keys), np.uint64)
    place = 0
    for block in _blocks(keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]):
        sums = np.zeros((2, len(block)), np.uint64)
        _add_words(sums, block, (), family)
        high, low = _finish(sums, (), family)
        hashes[place : place + len(block)] = (high << _HALF) | low
        place += len(block)
    return hashes


def salt_fingerprint(salt: str) -> str:
    """Return 32 hex digits that tell salts apart and say nothing else of them."""
    return _Family(salt, "fingerprint of the salt", 0).seed().hex()[:32]


def _blocks(chunks: Iterable[pa.Array]) -> Iterator[pa.Array]:
    for chunk in chunks:
        for start in range(0, len(chunk), _BLOCK):
            yield chunk.slice(start, _BLOCK)


@lru_cache(maxsize=4096)
def _multipliers(family: _Family, path: tuple[str, ...], words: int) -> Words:
    """Return multipliers of shape (functions, words); those of more words begin with those of fewer."""
    rows = []
    for function in range(family.count):
        stream = blake3(json.dumps([function, *path]).encode(), key=family.seed())
        rows.append(np.frombuffer(stream.digest(length=8 * words), "<u8").astype(np.uint64))
    return np.stack(rows)


def _finish(sums: Words, path: tuple[str, ...], family: _Family) -> Words:
    """Return the 32-bit hashes, shape (functions, rows), that sums of products over the values at a path stand for."""
    return (sums + family.multipliers(path, _WORDS_EACH + 1)[:, -1:]) >> _HALF


def _add_words(sums: Words, array: pa.Array, path: tuple[str, ...], family: _Family) -> None:
    """Add the products of an array's words and their multipliers to `sums`, of shape (functions, rows)."""
    array = storage(array)
    factors = family.multipliers(path)
    valid: NDArray[np.bool_] | None = None
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        sums += factors[:, :1] * valid.astype(np.uint64)
    else:
        sums += factors[:, :1]
    if types.is_null(array.type):
        return
    if types.is_struct(array.type):
        for field, child in zip(array.type, array.flatten(), strict=True):
            _add_words(sums, child, (*path, field.name), family)
        return
    if any(check(array.type) for check in _LISTS):
        words = _list_words(array, path, family)
    elif any(check(array.type) for check in _TEXTS):
        words = _text_words(array, family)
    else:
        words = _fixed_words(array, valid, is_key=family.purpose == "keys")
    for place, word in words:
        for function, factor in enumerate(factors[:, place]):
            sums[function] += word * factor


def _list_words(array: pa.Array, path: tuple[str, ...], family: _Family) -> Iterator[tuple[int, Words]]:
    """Yield the lengths of lists, and a hash of the elements of each in their order."""
    if types.is_map(array.type):
        entries = pa.struct([pa.field("key", array.type.key_type), pa.field("value", array.type.item_type)])
        array = array.cast(pa.large_list(entries))
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    yield 1, lengths.astype(np.uint64)
    below = (*path, "[]")
    elements = array.flatten()
    sums = np.zeros((family.count, len(elements)), np.uint64)
    _add_words(sums, elements, below, family)
    hashes = _finish(sums, below, family)
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    places = np.arange(len(elements)) - np.repeat(bounds[:-1], lengths)
    longest = 1 << int(lengths.max(initial=0)).bit_length()
    factors = family.multipliers((*below, "place"), longest + 1)
    for function in range(family.count):
        products = hashes[function] * factors[function, 1 + places]
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(products)])
        total = running[bounds[1:]] - running[bounds[:-1]] + factors[function, 0]
        yield 2 + function, total >> _HALF


def _text_words(array: pa.Array, family: _Family) -> Iterator[tuple[int, Words]]:
    """Yield the lengths of texts, and their bytes or, of long ones, the bytes of their keyed BLAKE3."""
    if array.null_count:
        array = array.fill_null(b"" if types.is_binary(array.type) or types.is_large_binary(array.type) else "")
    _, positions, data = array.buffers()
    bounds = np.zeros(1, np.int64)
    if positions is not None and len(array):
        width = "<i4" if types.is_string(array.type) or types.is_binary(array.type) else "<i8"
        bounds = np.frombuffer(positions, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    content = np.zeros(last - first + 8, np.uint8)
    if last > first:
        content[: last - first] = np.frombuffer(data, np.uint8)[first:last]
    starts, lengths = bounds[:-1] - first, np.diff(bounds)
    yield 1, lengths.astype(np.uint64)
    eights = np.ndarray((last - first + 1,), "<u8", content, strides=(1,))  # the eight bytes from every place on
    long = np.flatnonzero(lengths > _SHORT)
    digests = _digests(content, starts[long], lengths[long], family.seed()) if len(long) else None
    for step in range(-(-min(int(lengths.max(initial=0)), _SHORT) // 8)):
        left = np.clip(lengths - 8 * step, 0, 8)
        word = eights[np.where(left > 0, starts + 8 * step, 0)] & _TAIL[left]
        if digests is not None:
            word[long] = digests[:, step]
        yield 2 + 2 * step, word & _LOW
        yield 3 + 2 * step, word >> _HALF


def _digests(content: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], key: bytes) -> Words:
    """Return the keyed BLAKE3 of each text, shape (texts, 4)."""
    data = content.tobytes()
    found = b"".join(
        blake3(data[start : start + length], key=key).digest()
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    )
    return np.frombuffer(found, "<u8").reshape(-1, 4)


def _fixed_words(array: pa.Array, valid: NDArray[np.bool_] | None, is_key: bool) -> Iterator[tuple[int, Words]]:
    """Yield the words of values that are all equally wide; nulls are zero."""
    arrow = array.type
    if types.is_boolean(arrow):
        yield 2, array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)
        return
    width = arrow.bit_width // 8
    raw = np.zeros((len(array), width), np.uint8)
    if array.null_count < len(array):
        stored = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * width : (array.offset + len(array)) * width]
        raw = stored.reshape(len(array), width)
        if valid is not None:
            raw = np.where(valid[:, None], raw, np.uint8(0))
    if types.is_decimal(arrow):
        yield from _decimal_words(raw)
        return
    rest = None
    if types.is_floating(arrow):
        values = _float_bits(raw.view(f"<f{width}")[:, 0], is_key)
    elif types.is_timestamp(arrow) or types.is_duration(arrow):
        values, rest = _microseconds(raw.view("<i8")[:, 0], TICKS_PER_SECOND[arrow.unit])
    else:
        kind = "u" if types.is_unsigned_integer(arrow) else "i"
        values = raw.view(f"<{kind}{width}")[:, 0].astype(np.int64, copy=False).view(np.uint64)
    yield 2, values & _LOW
    yield 3, values >> _HALF
    if rest is not None:
        yield 4, rest


def _float_bits(values: NDArray[np.floating], is_key: bool) -> Words:
    wide = values.astype(np.float64)
    wide[np.isnan(wide)] = np.nan
    if is_key:
        wide += 0.0
    return wide.view(np.uint64)


def _microseconds(ticks: NDArray[np.int64], per_second: int) -> tuple[Words, Words | None]:
    """Return whole microseconds modulo 2^64, and the nanoseconds above them; None when there can be none."""
    if per_second <= 10**6:
        return ticks.view(np.uint64) * np.uint64(10**6 // per_second), None
    whole, rest = np.divmod(ticks, per_second // 10**6)
    return whole.view(np.uint64), rest.view(np.uint64)


def _decimal_words(raw: NDArray[np.uint8]) -> Iterator[tuple[int, Words]]:
    words = np.ascontiguousarray(raw).view("<u4").astype(np.uint64)
    sign = np.where(raw[:, -1] >= 0x80, _LOW, np.uint64(0))
    for place in range(8):
        yield 2 + place, words[:, place] if place < words.shape[1] else sign
