"""The membership index never denies a row it has, and pairs rows as a count of them does."""

from __future__ import annotations

import tempfile
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.lineage.rows.hashes import Hashes, key_hashes, row_hashes
from snapline.lineage.rows.membership import IndexWriter, holding, pair, read_index

SALT = "5a" * 32
SMALL = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=24)
TEXTS = st.lists(st.none() | st.text(max_size=60), min_size=1, max_size=12)


def hashes_of(rows: list[tuple[int, int]]) -> Hashes:
    return Hashes(np.array([key for key, _ in rows], np.uint64), np.array([row for _, row in rows], np.uint32))


@given(SMALL, SMALL)
def test_pairing_agrees_with_counting(then, now):
    found = pair(hashes_of(then), hashes_of(now))
    same, corrected, new, deleted = Counter(), Counter(), Counter(), Counter()
    for key in {key for key, _ in then + now}:
        before = Counter(content for found, content in then if found == key)
        after = Counter(content for found, content in now if found == key)
        same[key] = (before & after).total()
        left_before, left_after = (before - after).total(), (after - before).total()
        corrected[key] = min(left_before, left_after)
        new[key], deleted[key] = left_after - corrected[key], left_before - corrected[key]
    assert Counter(now[place][0] for place in found.same) == +same
    assert Counter(now[place][0] for place in found.corrected) == +corrected
    assert Counter(now[place][0] for place in found.new) == +new
    assert Counter(then[place][0] for place in found.deleted) == +deleted
    assert sorted([*found.same, *found.corrected, *found.new]) == list(range(len(now)))
    assert Counter(now[place] for place in found.same) == Counter(then) & Counter(now)


@given(SMALL)
def test_a_bucket_paired_with_itself_in_any_order_is_all_the_same(rows):
    found = pair(hashes_of(rows), hashes_of(sorted(rows)))
    assert len(found.same) == len(rows)
    assert len(found.corrected) == len(found.new) == len(found.deleted) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), SMALL), max_size=8), st.sets(st.integers(0, 6)))
def test_an_index_gives_back_every_row_of_every_bucket_and_denies_no_key(buckets, wanted):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "index.parquet")
        with IndexWriter(path) as writer:
            for label, rows in buckets:
                writer.add(label, hashes_of(rows))
        expected = {label: Counter() for label, rows in buckets if rows}
        for label, rows in buckets:
            expected.get(label, Counter()).update(rows)
        found = read_index(path)
        assert {
            label: Counter(zip(rows.keys.tolist(), rows.contents.tolist(), strict=True))
            for label, rows in found.items()
        } == expected
        assert all(np.all(rows.keys[:-1] <= rows.keys[1:]) for rows in found.values())
        one = read_index(path, {"b"})
        assert set(one) == expected.keys() & {"b"}
        assert all(len(rows) == len(found[label]) for label, rows in one.items())
        keys = {key for _, rows in buckets for key, _ in rows}
        held = holding(path, np.array(sorted(wanted), np.uint64))
        assert held.tolist() == [key in keys for key in sorted(wanted)]


PHYSICAL = [
    (TEXTS, [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]),
    (
        st.lists(st.none() | st.binary(max_size=60), min_size=1, max_size=9),
        [pa.binary(), pa.large_binary(), pa.binary_view()],
    ),
    (st.lists(st.none() | st.integers(-128, 127), min_size=1, max_size=9), [pa.int8(), pa.int16(), pa.int64()]),
    (
        st.lists(st.none() | st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)), min_size=1, max_size=9),  # noqa: DTZ001
        [pa.timestamp("us"), pa.timestamp("ns")],
    ),
    (
        st.lists(
            st.none() | st.integers(-(10**9), 10**9).map(lambda second: datetime.fromtimestamp(second, UTC)),
            min_size=1,
            max_size=9,
        ),
        [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in ("UTC", "+02:00")],
    ),
    (
        st.lists(st.none() | st.decimals(-99, 99, places=2).map(lambda found: round(found, 2)), min_size=1, max_size=9),
        [pa.decimal128(9, 2), pa.decimal256(9, 2)],
    ),
    (
        st.lists(st.none() | st.lists(st.none() | st.text(max_size=3), max_size=4), min_size=1, max_size=9),
        [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_view(pa.string())],
    ),
]


@given(st.data())
def test_equal_values_have_equal_hashes_whatever_holds_them(data):
    values, physical = data.draw(st.sampled_from(PHYSICAL))
    listed, salt = data.draw(values), data.draw(st.sampled_from([SALT, "00" * 32]))
    sound = pa.array(listed, physical[0])
    expected = row_hashes(pa.table({"k": sound}), "k", salt)
    spelled = [repr(value) for value in sound.to_pylist()]
    assert len(set(expected.keys.tolist())) == len(set(expected.contents.tolist())) == len(set(spelled))
    for arrow in physical[1:]:
        stored = pa.array(listed, arrow)
        pieces = pa.chunked_array([stored.slice(0, 1), stored.slice(1)], arrow)
        found = row_hashes(pa.table({"k": pieces}), "k", salt)
        np.testing.assert_array_equal(found.keys, expected.keys)
        np.testing.assert_array_equal(found.contents, expected.contents)


@pytest.mark.parametrize(
    "values",
    [
        [0.0, 1.0, float("nan"), None, float("inf")],
        ["", None, "\0", "\0\0", "a", "a\0", "x" * 31, "x" * 32, "x" * 33, "x" * 34, "x" * 33 + "\0"],
        [[], None, [None], [None, None], [0], [0, 0], [0, 1], [1, 0]],
        [{"a": None}, None, {"a": 0}],
        [[("a", None)], None, [], [("a", 0)], [("b", 0)]],
        [False, None, True],
        [Decimal("0.00"), None, Decimal("-0.01"), Decimal("0.01")],
        [0, 1, -1, 2**32, -(2**32), 2**63 - 1, None],
    ],
    ids=lambda values: type(values[0]).__name__,
)
def test_different_values_have_different_hashes(values):
    arrow = pa.map_(pa.string(), pa.int64()) if values[0] == [("a", None)] else pa.array(values).type
    found = row_hashes(pa.table({"k": pa.array(values, arrow)}), "k", SALT)
    assert len(set(found.contents.tolist())) == len(values)
    assert len(set(found.keys.tolist())) == len(values)


@given(st.integers(0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF) | st.integers(0xFFF0000000000001, 0xFFFFFFFFFFFFFFFF))
def test_every_nan_is_one_nan(bits):
    odd = pa.array(np.array([bits], "<u8").view("<f8"))
    usual = pa.array([float("nan")])
    assert (
        row_hashes(pa.table({"k": odd}), "k", SALT).contents == row_hashes(pa.table({"k": usual}), "k", SALT).contents
    )


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50, unique=True),
    st.binary(min_size=32, max_size=32),
)
def test_homes_with_other_salts_share_no_hash(keys, salt):
    ours, theirs = (key_hashes(pa.array(keys, pa.int64()), found) for found in (SALT, salt.hex()))
    assert (len(set(ours.tolist()) & set(theirs.tolist())) == 0) == (salt.hex() != SALT)


@given(TEXTS, st.lists(st.none() | st.integers(-5, 5), min_size=12, max_size=12), st.data())
def test_contents_depend_on_the_row_alone(texts, numbers, data):
    """Not on other rows, the order of the columns, or what lies under a null; but on each column."""
    table = pa.table({"k": range(len(texts)), "t": texts, "n": pa.array(numbers[: len(texts)], pa.int64())})
    expected = row_hashes(table, "k", SALT)
    order = data.draw(st.permutations(range(len(texts))))
    np.testing.assert_array_equal(
        row_hashes(table.take(order).select(["n", "t", "k"]), "k", SALT).contents, expected.contents[order]
    )
    swapped = table.rename_columns({"k": "n", "n": "k", "t": "t"})
    differs = np.array([left != right for left, right in zip(range(len(texts)), numbers, strict=False)])
    assert ((row_hashes(swapped, "n", SALT).contents != expected.contents) >= differs).all()
