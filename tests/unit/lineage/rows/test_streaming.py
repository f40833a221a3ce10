from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from snapline.lineage.cut import Bucket
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError
from snapline.lineage.rows.encoding import encode
from snapline.lineage.rows.fingerprint import fingerprint
from snapline.lineage.rows.streaming import Layout, OrderedBucket, StreamFingerprint, fingerprint_stream

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
ROWS = 2000


def layout_of(table: pa.Table) -> Layout:
    return Layout(table.schema, "time", "key", Bucket.DAY)


def stream(tables: list[pa.Table], layout: Layout, scratch: Path, *, budget: int = 10**9) -> StreamFingerprint:
    return fingerprint_stream(tables, layout, BulkAlgorithm.BLAKE3, scratch, budget=budget)


def table_of_days() -> pa.Table:
    """Two thousand rows over 84 days in hashed order, with keys that repeat and the columns that are hard to cut."""
    numbers = range(ROWS)
    return pa.table(
        {
            "time": pa.array([NOON + timedelta(hours=number) for number in numbers], pa.timestamp("ms", "UTC")),
            "key": pa.array([number // 2 for number in numbers], pa.int64()),
            "name": pa.array([None if number % 7 == 0 else f"row {number}" for number in numbers]),
            "kind": pa.array([f"kind {number % 5}" for number in numbers]).dictionary_encode(),
            "tags": pa.array([None if number % 11 == 0 else ["a", None] * (number % 3) for number in numbers]),
            "point": pa.array([None if number % 13 == 0 else {"x": number} for number in numbers]),
            "flag": pa.array([number % 3 == 0 for number in numbers]),
        }
    )


def shuffled(table: pa.Table, seed: int = 1) -> pa.Table:
    return table.take(pa.array(np.random.default_rng(seed).permutation(len(table))))


@pytest.mark.parametrize("budget", [1, 50_000, 10**9], ids=["every piece spilled", "some spilled", "none spilled"])
@pytest.mark.parametrize("arranged", [lambda table: table, shuffled], ids=["in order", "shuffled"])
def test_a_stream_has_the_digest_of_its_rows_at_once(tmp_path, budget, arranged):
    table = table_of_days()
    rows = arranged(table)
    found = stream([rows.slice(start, 300) for start in range(0, ROWS, 300)], layout_of(table), tmp_path, budget=budget)
    expected = fingerprint(table, time="time", key="key", bucket=Bucket.DAY, algorithm=BulkAlgorithm.BLAKE3)
    assert (found.columns, found.buckets, found.digest) == (expected.columns, expected.buckets, expected.digest)
    assert found.rows == ROWS
    assert len(list(tmp_path.iterdir())) == {1: 7, 50_000: 3, 10**9: 0}[budget]


@pytest.mark.parametrize("budget", [50_000, 10**9], ids=["spilled", "in memory"])
def test_buckets_are_visited_in_time_order_with_their_rows_in_hashed_order(tmp_path, budget):
    table = table_of_days()
    visited: list[OrderedBucket] = []
    rows = shuffled(table)
    parts = [rows.slice(0, 1500), rows.slice(1500)]
    found = fingerprint_stream(parts, layout_of(table), BulkAlgorithm.SHA256, tmp_path, visited.append, budget=budget)
    expected = fingerprint(table, time="time", key="key", bucket=Bucket.DAY, algorithm=BulkAlgorithm.SHA256)
    assert [(bucket.label, bucket.rows) for bucket in visited] == [(b.label, b.rows) for b in found.buckets]
    assert pa.concat_tables([bucket.table for bucket in visited]).to_pylist() == expected.table.to_pylist()
    for bucket in visited:
        assert list(bucket.encoded) == sorted(table.column_names)
        for name, encoded in bucket.encoded.items():
            alone = encode(bucket.table[name].combine_chunks())
            assert b"".join(encoded.parts(0, bucket.rows)) == b"".join(alone.parts(0, bucket.rows))


def test_the_content_of_equal_keys_orders_them_across_spilled_pieces(tmp_path):
    table = pa.table({"time": [NOON] * 4, "key": [1] * 4, "text": ["b", "a", None, "b"]})
    rows = [table.slice(number, 1) for number in range(4)]
    (tmp_path / "other").mkdir()
    forth = stream(rows, layout_of(table), tmp_path, budget=1)
    back = stream(rows[::-1], layout_of(table), tmp_path / "other", budget=1)
    assert forth == back
    assert forth != stream(rows[1:], layout_of(table), tmp_path)


def test_no_rows_have_the_digest_of_their_columns(tmp_path):
    table = table_of_days().slice(0, 0)
    expected = fingerprint(table, time="time", key="key", bucket=Bucket.DAY, algorithm=BulkAlgorithm.BLAKE3).digest
    for tables in ([], [table], [table, table]):
        found = stream(tables, layout_of(table), tmp_path, budget=0)
        assert (found.digest, found.buckets, found.rows) == (expected, (), 0)


def test_parts_may_differ_in_how_they_store_the_same_columns(tmp_path):
    table = table_of_days()
    stored = {
        "time": table["time"].cast(pa.timestamp("us", "Asia/Tokyo")),
        "kind": table["kind"].cast(pa.large_string()),
        "name": table["name"].cast(pa.string_view()),
    }
    other = pa.table({name: stored.get(name, table[name]) for name in reversed(table.column_names)})
    found = stream([table.slice(0, 900), other.slice(900)], layout_of(table), tmp_path)
    assert found == stream([table], layout_of(table), tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"key": pa.array([1, None])}, "1 in 'key'"),
        ({"key": pa.array(["1", "2"])}, "parts that differ in 'key'"),
        ({"more": pa.array([1, 2])}, "parts that differ in 'more'"),
        ({"time": pa.array([1, 1001], pa.timestamp("ns", "UTC"))}, "types of the whole: .* would lose data"),
    ],
    ids=["nulls", "type", "column", "finer unit"],
)
def test_parts_that_do_not_fit_the_layout_are_refused(tmp_path, changed, message):
    table = pa.table({"time": pa.array([NOON] * 2, pa.timestamp("us", "UTC")), "key": [1, 2]})
    columns = {name: table[name] for name in table.column_names}
    with pytest.raises(DefinitionError, match=message) as caught:
        stream([table, pa.table({**columns, **changed})], layout_of(table), tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"time": [NOON]}, "expected a column 'key', found time"),
        ({"time": ["2013-01-01"], "key": [1]}, "'time' must hold timestamps or dates"),
        ({"time": [NOON], "key": [[1]]}, "cannot be sorted"),
    ],
    ids=["missing", "text", "list"],
)
def test_layouts_that_cannot_be_ordered_are_refused_before_a_row_is_read(tmp_path, columns, message):
    def rows():
        pytest.fail("a row was read")
        yield pa.table({})

    with pytest.raises(DefinitionError, match=message):
        fingerprint_stream(rows(), layout_of(pa.table(columns)), BulkAlgorithm.BLAKE3, tmp_path)
