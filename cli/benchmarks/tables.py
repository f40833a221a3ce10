"""The synthetic tables that benchmarks digest: 8 columns, a thousand day buckets, the same rows every time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

DAYS = 1000
DAY_US = 86_400_000_000
BATCH = 1_000_000
STRIDE = 15_485_863  # a prime, so that it visits every key of a table whose size it does not divide
SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("time", pa.timestamp("us")),
        ("f0", pa.float64()),
        ("f1", pa.float64()),
        ("f2", pa.float64()),
        ("count", pa.int32()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
    ]
)
_WORDS = pa.array([f"row {n}" for n in range(977)])


def batch(keys: NDArray[np.int64], total: int) -> pa.Table:
    """Return the rows of some keys, of a table of `total` rows whose time rises with the key."""
    random = np.random.default_rng(int(keys[0]))
    rows = len(keys)
    return pa.table(
        {
            "key": keys,
            "time": pa.array(keys * (DAYS * DAY_US // total), pa.timestamp("us")),
            "f0": random.normal(size=rows),
            "f1": random.normal(size=rows),
            "f2": random.normal(size=rows),
            "count": random.integers(0, 1000, rows).astype(np.int32),
            "flag": random.integers(0, 2, rows).astype(bool),
            "text": _WORDS.take(pa.array(random.integers(0, len(_WORDS), rows))),
        },
        schema=SCHEMA,
    )


def ordered(total: int) -> Iterator[pa.Table]:
    """Yield a table in batches, in the order of time and key."""
    for first in range(0, total, BATCH):
        yield batch(np.arange(first, min(first + BATCH, total)), total)


def scattered(total: int) -> Iterator[pa.Table]:
    """Yield a table in batches that each reach over every bucket, in no order."""
    for first in range(0, total, BATCH):
        yield batch(np.arange(first, min(first + BATCH, total)) * STRIDE % total, total)


def shuffled(table: pa.Table) -> pa.Table:
    """Return the rows of a table in no order."""
    return table.take(pa.array(np.random.default_rng(0).permutation(table.num_rows)))
