"""Rows for the sources: a table with a column of every type, and plain flights to change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa

START = datetime(2013, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def flights(keys: Sequence[int], carrier: str = "UA") -> pa.Table:
    """Return one flight for each key, that many hours into 2013."""
    return pa.table(
        {
            "key": pa.array(keys, pa.int64()),
            "time": pa.array([START + key * HOUR for key in keys], pa.timestamp("us", "UTC")),
            "carrier": pa.array([carrier for _ in keys], pa.string()),
            "delay": pa.array([key / 2 for key in keys], pa.float64()),
        }
    )


def every_type(rows: int = 9) -> pa.Table:
    """Return rows with a column of every type the digest knows, but for key and time each null in every third row."""
    columns: dict[str, pa.Array] = {
        "key": pa.array(range(rows), pa.int64()),
        "time": pa.array([START + n * HOUR for n in range(rows)], pa.timestamp("us", "UTC")),
    }
    for name, (values, kind) in _columns(rows).items():
        columns[name] = pa.array([None if n % 3 == 2 else value for n, value in enumerate(values)], kind)
    columns["dictionary"] = columns["text"].dictionary_encode()
    return pa.table(columns)


def _columns(rows: int) -> dict[str, tuple[list[object], pa.DataType]]:
    numbers = list(range(rows))
    columns: dict[str, tuple[list[object], pa.DataType]] = {
        str(kind): (list(numbers), kind)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    }
    floats: list[object] = [-0.0, 0.0, float("nan"), float("nan"), float("inf"), 1e-3, 0.5, 0.25, -1.5]
    floats = [floats[n % len(floats)] for n in numbers]
    columns["float16"] = ([np.float16(value) for value in floats], pa.float16())
    columns |= {"float32": (floats, pa.float32()), "float64": (floats, pa.float64())}
    columns["boolean"] = ([n % 2 == 0 for n in numbers], pa.bool_())
    columns["text"] = ([f"flight {n} ✈" * n for n in numbers], pa.string())
    columns["binary"] = ([bytes(range(n)) for n in numbers], pa.binary())
    columns["date"] = ([date(1969, 12, 25) + timedelta(days=n) for n in numbers], pa.date32())
    columns["time_of_day"] = ([time(n, 1, 2, 3) for n in numbers], pa.time64("us"))
    columns["duration"] = ([timedelta(microseconds=n - 2) for n in numbers], pa.duration("us"))
    columns["naive"] = ([n - 5 for n in numbers], pa.timestamp("us"))
    columns["zoned"] = ([START - n * HOUR for n in numbers], pa.timestamp("us", "Asia/Tokyo"))
    columns["nanoseconds"] = ([10**15 + n for n in numbers], pa.timestamp("ns"))
    columns["decimal"] = ([Decimal(n - 4) / 100 for n in numbers], pa.decimal128(12, 2))
    columns["decimal256"] = ([Decimal(n) * 10**45 for n in numbers], pa.decimal256(50, 0))
    columns["list"] = ([list(range(n)) for n in numbers], pa.list_(pa.int64()))
    columns["struct"] = ([{"x": n, "y": f"{n}"} for n in numbers], pa.struct({"x": pa.int32(), "y": pa.string()}))
    columns["map"] = ([[(f"k{i}", i) for i in range(n)] for n in numbers], pa.map_(pa.string(), pa.int64()))
    columns["deep"] = ([[{"a": [n]}, None] for n in numbers], pa.list_(pa.struct({"a": pa.list_(pa.int16())})))
    return columns
