"""Rows set aside on disk in bucket order, and read back a few buckets at a time.

A *load* is a file of as many rows as fit in memory, sorted by bucket and by nothing else, in small record batches. So
any run of buckets is one range of rows in each load, found by counting, and how the rows spread over time need not be
known before the last has come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from snapline.lineage.rows.ordering import bucket_edges, by_number, in_order, in_turn, joined

_BATCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """A file of rows in bucket order.

    Attributes:
        path: An Arrow IPC file whose record batches hold `batch_rows` rows each, the last perhaps fewer.
        numbers: The numbers of the buckets it has rows of, ascending.
        edges: Where the rows of each start, and, last, how many rows there are.
        row_bytes: How large a row is in memory, about.
    """

    path: Path
    batch_rows: int
    numbers: NDArray[np.int64]
    edges: NDArray[np.int64]
    row_bytes: float

    def read(self, first: int, beyond: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the buckets numbered from `first` to before `beyond`."""
        start, stop = self.edges[np.searchsorted(self.numbers, [first, beyond])].tolist()
        with pa.OSFile(str(self.path)) as stream, pa.ipc.open_file(stream) as file:
            for number in range(start // self.batch_rows, -(-stop // self.batch_rows)):
                begin = number * self.batch_rows
                batch = file.get_batch(number)
                yield batch.slice(max(start - begin, 0), min(stop - begin, len(batch)) - max(start - begin, 0))


def write_load(path: Path, table: pa.Table, numbers: NDArray[np.int64], size: int) -> Load:
    """Write a table's rows, of which there are some, in bucket order.

    Args:
        path: The file to write.
        table: The rows.
        numbers: The bucket of each, numbered in time order.
        size: How many bytes the rows take in memory.
    """
    rows = len(numbers)
    batch_rows = max(1, _BATCH_BYTES * rows // max(size, 1))
    starts = range(0, rows, batch_rows)
    with pa.OSFile(str(path), "wb") as stream, pa.ipc.new_file(stream, table.schema) as file:
        if in_order(numbers):
            for start in starts:
                file.write_table(joined(table.slice(start, batch_rows)))
        else:
            table = joined(table)
            order, numbers = by_number(numbers)
            for part in in_turn(lambda start: _taken(table, order[start : start + batch_rows]), starts):
                file.write_table(part)
    edges = bucket_edges(numbers)
    return Load(path, batch_rows, numbers[edges[:-1]], edges, size / rows)


def _taken(table: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
    return pc.take(table, pa.array(rows), boundscheck=False)


def partitions(loads: Sequence[Load], schema: pa.Schema, budget: int) -> Iterator[pa.Table]:
    """Yield all rows of some loads, in tables of consecutive whole buckets.

    Args:
        loads: What was written.
        schema: That of the rows.
        budget: How many bytes of rows make up a table; one of a single bucket may be larger.
    """
    numbers, inverse = np.unique(np.concatenate([load.numbers for load in loads]), return_inverse=True)
    sizes = np.concatenate([np.diff(load.edges) * load.row_bytes for load in loads])
    ends = np.cumsum(np.bincount(inverse, sizes))
    first = 0
    while first < len(numbers):
        done = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + budget, "right")))
        lowest, beyond = int(numbers[first]), int(numbers[last - 1]) + 1
        yield pa.Table.from_batches([batch for load in loads for batch in load.read(lowest, beyond)], schema)
        first = last
