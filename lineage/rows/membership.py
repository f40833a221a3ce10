"""Which rows a snapshot has: an index of hashed rows by time bucket, and the pairing of two versions of a bucket.

A snapshot keeps digests, never rows. To say later whether a key is in it, and which rows of a bucket were corrected,
deleted or added, it keeps an index beside its manifest. The index never denies a key it has; it claims one it has not
with a probability of at most `over_report`. It takes about 11 bytes a row.

At rest it is a Parquet file of (label, key, content). A row group holds whole small buckets or a part of a large one,
and its statistics tell which, so that looking at one bucket reads little. Keys are sorted inside each bucket.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from snapline.lineage.errors import IntegrityError
from snapline.lineage.rows.hashes import RECIPE, Hashes

_SCHEMA = pa.schema(
    [("label", pa.string()), ("key", pa.uint64()), ("content", pa.uint32())], metadata={"recipe": RECIPE}
)
_GROUP_ROWS = 1 << 16
_LARGEST_GROUP = 1 << 20
_HINT = "Restore the object from a copy of this home."


def over_report(keys: int, rows: int) -> float:
    """Return an upper bound of the probability that any of `keys` absent keys is claimed to be among `rows` rows."""
    return min(1.0, keys * rows / 2.0**64)


class IndexWriter:
    """Writes an index, bucket by bucket; a context manager.

    Args:
        path: The file to write.
    """

    def __init__(self, path: Path) -> None:
        # Sorted hashes are dense in their low bits only, and their small differences are all that can be left out.
        self._writer = pq.ParquetWriter(
            path,
            _SCHEMA,
            compression={"label": "zstd", "key": "none", "content": "none"},
            use_dictionary=["label"],
            column_encoding={"key": "DELTA_BINARY_PACKED", "content": "PLAIN"},
            write_statistics=["label"],
        )
        self._waiting: list[pa.Table] = []

    def add(self, label: str, hashes: Hashes) -> None:
        """Add rows to a bucket."""
        rows = hashes.take(np.argsort(hashes.keys))
        labels = pa.repeat(pa.scalar(label), len(rows))
        self._waiting.append(pa.table([labels, rows.keys, rows.contents], schema=_SCHEMA))
        if sum(table.num_rows for table in self._waiting) >= _GROUP_ROWS:
            self._write()

    def close(self) -> None:
        """Finish the file."""
        self._write()
        self._writer.close()

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=_LARGEST_GROUP)
            self._waiting = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_index(path: Path, labels: Collection[str] | None = None) -> dict[str, Hashes]:
    """Return the rows of some buckets, or of all, by label; buckets without rows are left out.

    Raises:
        IntegrityError: The file is no index.
    """
    pieces: dict[str, list[Hashes]] = {}
    with _opened(path) as file:
        for group in range(file.num_row_groups):
            if labels is None or _may_have(file, group, labels):
                for label, hashes in _buckets(file.read_row_group(group, use_threads=False)):
                    if labels is None or label in labels:
                        pieces.setdefault(label, []).append(hashes)
    return {label: _joined(found) for label, found in pieces.items()}


def holding(path: Path, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which of some key hashes an index has, reading it a row group at a time.

    Raises:
        IntegrityError: The file is no index.
    """
    wanted, places = np.unique(hashes, return_inverse=True)
    found = np.zeros(len(wanted), np.bool_)
    with _opened(path) as file:
        for group in range(file.num_row_groups if len(wanted) else 0):
            keys = file.read_row_group(group, columns=["key"], use_threads=False).column("key").to_numpy()
            spots = np.minimum(np.searchsorted(wanted, keys), len(wanted) - 1)
            found[spots[wanted[spots] == keys]] = True
    return found[places]


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            if not file.schema_arrow.equals(_SCHEMA, check_metadata=False) or _recipe(file) != RECIPE:
                raise IntegrityError(f"{path} is no membership index of recipe {RECIPE}", hint=_HINT)
            yield file
    except (pa.ArrowException, OSError) as error:
        raise IntegrityError(f"a membership index cannot be read: {error}", hint=_HINT) from error


def _recipe(file: pq.ParquetFile) -> str:
    return bytes((file.schema_arrow.metadata or {}).get(b"recipe", b"")).decode()


def _may_have(file: pq.ParquetFile, group: int, labels: Collection[str]) -> bool:
    statistics = file.metadata.row_group(group).column(0).statistics
    return statistics is None or any(statistics.min <= label <= statistics.max for label in labels)


def _buckets(table: pa.Table) -> Iterator[tuple[str, Hashes]]:
    """Yield each run of rows with one label."""
    labels = table.column("label").combine_chunks().dictionary_encode()
    names, codes = labels.dictionary.to_pylist(), labels.indices.to_numpy()
    rows = Hashes(table.column("key").to_numpy(), table.column("content").to_numpy())
    edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    for start, stop in pairwise(edges):
        if stop > start:
            yield names[codes[start]], rows.take(slice(start, stop))


def _joined(pieces: list[Hashes]) -> Hashes:
    keys = np.concatenate([piece.keys for piece in pieces])
    contents = np.concatenate([piece.contents for piece in pieces])
    return Hashes(keys, contents).take(np.argsort(keys, kind="stable"))


@dataclass(frozen=True, slots=True)
class Pairing:
    """How the rows of a bucket then and now belong together; positions of rows, ascending.

    Attributes:
        same: Rows of now that were there then.
        corrected: Rows of now whose key was there then, with another content.
        new: Rows of now whose key was not there, or not as often.
        deleted: Rows of then that are gone.
    """

    same: NDArray[np.int64]
    corrected: NDArray[np.int64]
    new: NDArray[np.int64]
    deleted: NDArray[np.int64]


def pair(then: Hashes, now: Hashes) -> Pairing:
    """Return how two multisets of rows belong together.

    Of each key, rows of equal content cancel first; as many of the rest as both sides have are corrections; what is
    left of one side alone is deleted or new.
    """
    keys = np.concatenate([then.keys, now.keys])
    contents = np.concatenate([then.contents, now.contents])
    order = _by_key_then_content(keys, contents)
    is_now = order >= len(then)
    key_starts = _changes(keys[order])
    alike = _matched(is_now, key_starts | _changes(contents[order]))
    rest = np.flatnonzero(~alike)
    group = np.cumsum(key_starts)[rest]
    paired = np.zeros(len(order), np.bool_)
    paired[rest] = _matched(is_now[rest], _changes(group))

    def positions(chosen: NDArray[np.bool_], offset: int) -> NDArray[np.int64]:
        return np.sort(order[chosen]) - offset

    return Pairing(
        same=positions(alike & is_now, len(then)),
        corrected=positions(paired & is_now, len(then)),
        new=positions(~alike & ~paired & is_now, len(then)),
        deleted=positions(~alike & ~paired & ~is_now, 0),
    )


def _by_key_then_content(keys: NDArray[np.uint64], contents: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the stable order by key and, where a key has more than two rows, by content."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    same = ranked[1:] == ranked[:-1]
    crowded = np.zeros(len(order), np.bool_)
    crowded[1:-1] = same[1:] & same[:-1]
    crowded[:-1] |= crowded[1:] & same
    crowded[1:] |= crowded[:-1] & same
    some = np.flatnonzero(crowded)
    order[some] = order[some][np.lexsort((contents[order[some]], ranked[some]))]
    return order


def _changes(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Return where a run of equal values begins."""
    return np.concatenate([np.ones(min(len(values), 1), np.bool_), values[1:] != values[:-1]])


def _matched(is_now: NDArray[np.bool_], starts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which rows of each group find a partner on the other side: the first ones of either side."""
    if not len(is_now):
        return np.zeros(0, np.bool_)
    group = np.cumsum(starts) - 1
    now_before: NDArray[np.int64] = np.cumsum(is_now) - is_now
    rank_now: NDArray[np.int64] = now_before - now_before[starts][group]
    rank = np.where(is_now, rank_now, np.arange(len(is_now)) - np.flatnonzero(starts)[group] - rank_now)
    now_count = np.add.reduceat(is_now.astype(np.int64), np.flatnonzero(starts))
    sizes = np.diff(np.append(np.flatnonzero(starts), len(is_now)))
    matched: NDArray[np.bool_] = rank < np.minimum(now_count, sizes - now_count)[group]
    return matched
