"""The laws of the content digest: what it must not depend on, and what it must."""

from __future__ import annotations

import tempfile
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from snapline.lineage.cut import Bucket, Cut, bucket_start
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.objects import ObjectStore
from snapline.lineage.rows.encoding import encode, plain
from snapline.lineage.rows.fingerprint import Fingerprint, fingerprint, instants
from snapline.lineage.rows.streaming import Layout, fingerprint_stream
from snapline.lineage.snapshot import Series
from snapline.lineage.take import Archive, take

SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
EPOCH = datetime(2013, 1, 1, tzinfo=UTC)

SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", "UTC")),
        ("key", pa.int64()),
        ("count", pa.int32()),
        ("delay", pa.float64()),
        ("half", pa.float32()),
        ("flag", pa.bool_()),
        ("name", pa.string()),
        ("blob", pa.binary()),
        ("day", pa.date32()),
        ("clock", pa.time64("us")),
        ("wait", pa.duration("ms")),
        ("price", pa.decimal128(9, 2)),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.int16()), ("y", pa.string())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
FLOATS = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), -2.25])
OPTIONAL = {
    "count": st.integers(-(2**31), 2**31 - 1),
    "delay": FLOATS,
    "half": FLOATS,
    "flag": st.booleans(),
    "name": TEXT,
    "blob": st.binary(max_size=3),
    "day": st.dates(date(1960, 1, 1), date(2050, 1, 1)),
    "clock": st.times(),
    "wait": st.timedeltas(timedelta(-5), timedelta(5)).map(lambda value: timedelta(milliseconds=value.microseconds)),
    "price": st.decimals(-1000, 1000, places=2, allow_nan=False, allow_infinity=False),
    "tags": st.lists(st.none() | TEXT, max_size=3),
    "point": st.fixed_dictionaries({"x": st.none() | st.integers(-9, 9), "y": st.none() | TEXT}),
    "counts": st.dictionaries(TEXT, st.none() | st.integers(0, 9), max_size=2).map(lambda value: list(value.items())),
}
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "time": st.integers(0, 72).map(lambda hours: EPOCH + timedelta(hours=hours)),
            "key": st.integers(0, 4),
            **{name: st.none() | values for name, values in OPTIONAL.items()},
        }
    ),
    min_size=1,
    max_size=8,
)


def table_of(rows: list[dict[str, object]], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


def print_of(table: pa.Table, bucket: Bucket = Bucket.DAY, key: str = "key") -> Fingerprint:
    return fingerprint(table, time="time", key=key, bucket=bucket, algorithm=BulkAlgorithm.BLAKE3)


def digest_of(table: pa.Table, bucket: Bucket = Bucket.DAY, key: str = "key") -> str:
    return print_of(table, bucket, key).digest


def stored_as(column: pa.ChunkedArray, arrow: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if pa.types.is_dictionary(arrow):
        return column.dictionary_encode()
    views = pa.types.is_list_view(arrow) or pa.types.is_large_list_view(arrow)
    return pa.array(column.to_pylist(), arrow) if views else column.cast(arrow)


# -- what the digest must not depend on --------------------------------------------------------------------------------


@SETTINGS
@given(ROWS, st.randoms(use_true_random=False), st.sampled_from(Bucket))
def test_row_order_does_not_matter(rows, random, bucket):
    shuffled = random.sample(rows, len(rows))
    assert print_of(table_of(shuffled), bucket).buckets == print_of(table_of(rows), bucket).buckets


@SETTINGS
@given(ROWS, st.integers(0, 8), st.integers(0, 3))
def test_chunks_and_offsets_do_not_matter(rows, split, padding):
    table = table_of(rows)
    chunks = pa.concat_tables([table.slice(0, split), table.slice(split)])
    padded = pa.concat_tables([table.slice(0, padding), table]).combine_chunks().slice(min(padding, len(rows)))
    assert digest_of(chunks) == digest_of(padded) == digest_of(table)


@SETTINGS
@given(
    ROWS,
    st.randoms(use_true_random=False),
    st.lists(st.integers(0, 8), max_size=4),
    st.sampled_from([0, 600, 10**9]),
    st.sampled_from(Bucket),
)
def test_pieces_of_a_stream_do_not_matter(rows, random, splits, budget, bucket):
    """Split anywhere, empty pieces among them, and spilled always, now and then, or never."""
    table, shuffled = table_of(rows), table_of(random.sample(rows, len(rows)))
    edges = [0, *sorted(splits), len(rows)]
    parts = [shuffled.slice(start, max(stop - start, 0)) for start, stop in pairwise(edges)]
    layout = Layout(SCHEMA, "time", "key", bucket)
    with tempfile.TemporaryDirectory() as scratch:
        found = fingerprint_stream(parts, layout, BulkAlgorithm.BLAKE3, Path(scratch), budget=budget)
    expected = print_of(table, bucket)
    assert (found.columns, found.buckets, found.digest) == (expected.columns, expected.buckets, expected.digest)
    assert found.rows == len(rows)


@SETTINGS
@given(ROWS, st.integers(0, 8), st.integers(0, 8))
def test_a_cut_of_an_encoding_is_the_encoding_of_the_cut(rows, start, stop):
    start, stop = sorted((min(start, len(rows)), min(stop, len(rows))))
    for column in table_of(rows).columns:
        array = column.combine_chunks()
        expected = b"".join(encode(array.slice(start, stop - start)).parts(0, stop - start))
        assert b"".join(encode(array).parts(start, stop)) == expected
        assert b"".join(encode(array).cut(start, stop).parts(0, stop - start)) == expected


@SETTINGS
@given(ROWS, st.permutations(SCHEMA.names))
def test_column_order_flags_and_metadata_do_not_matter(rows, names):
    table = table_of(rows)
    fields = [field.with_metadata({"note": "edited"}) for field in SCHEMA]
    fields[1] = fields[1].with_nullable(False)
    noted = table.cast(pa.schema(fields, metadata={"pandas": "{}"})).select(names)
    assert digest_of(noted) == digest_of(table)


@SETTINGS
@given(
    ROWS,
    st.sampled_from([pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]),
    st.sampled_from([pa.large_binary(), pa.binary_view()]),
    st.sampled_from([pa.large_list(pa.large_string()), pa.list_view(pa.string()), pa.large_list_view(pa.string())]),
    st.sampled_from([pa.timestamp("ms", "UTC"), pa.timestamp("ns", "America/New_York"), pa.timestamp("s", "+02:00")]),
)
def test_physical_types_do_not_matter(rows, text, binary, tags, instant):
    replaced = {
        "name": text,
        "blob": binary,
        "tags": tags,
        "time": instant,
        "day": pa.date64(),
        "clock": pa.time64("ns"),
        "wait": pa.duration("ns"),
        "price": pa.decimal256(9, 2),
        "point": pa.struct([("x", pa.int16()), ("y", pa.large_string())]),
    }
    table = table_of(rows)
    other = pa.table({name: stored_as(table[name], replaced.get(name, table[name].type)) for name in SCHEMA.names})
    assert print_of(other).columns == print_of(table).columns
    assert digest_of(other) == digest_of(table)


@SETTINGS
@given(ROWS, st.randoms(use_true_random=False))
def test_what_lies_under_nulls_does_not_matter(rows, random):
    clean = pa.array([random.choice([None, 7]) for _ in rows], pa.int64())
    valid = clean.is_valid().to_numpy(zero_copy_only=False)
    dirty_values = np.where(valid, 7, random.getrandbits(32))
    bitmap = pa.array(valid).buffers()[1]
    dirty = pa.Array.from_buffers(pa.int64(), len(rows), [bitmap, pa.py_buffer(dirty_values.astype("<i8"))])
    table = table_of(rows)
    assert digest_of(table.append_column("extra", dirty)) == digest_of(table.append_column("extra", clean))


@given(st.integers(0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF) | st.integers(0xFFF0000000000001, 0xFFFFFFFFFFFFFFFF))
def test_every_nan_is_one_nan(bits):
    odd = pa.array(np.array([bits], "<u8").view("<f8"))
    expected = encode(pa.array([float("nan")]))
    assert list(encode(odd).parts(0, 1)) == list(expected.parts(0, 1))


@settings(max_examples=25, deadline=None)
@given(
    ROWS,
    st.randoms(use_true_random=False),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from(["none", "snappy", "zstd", "gzip"]),
    st.booleans(),
)
def test_file_layout_does_not_matter(rows, random, files, group, compression, dictionary):
    """One sorted file and several shuffled ones, however written, are the same table."""

    def digest(folder: Path) -> str:
        series = Series(name="s", source=str(folder), time="time", known=None, key="key", bucket=Bucket.DAY)
        cut = Cut(since=EPOCH, until=EPOCH + timedelta(days=9))
        archive = Archive(ObjectStore(folder / "_objects", BulkAlgorithm.BLAKE3), "5a" * 32)
        return take(series, cut, archive, EPOCH).digest

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
        pq.write_table(table_of(rows), Path(one, "rows.parquet"))
        shuffled = random.sample(rows, len(rows))
        for number in range(files):
            pq.write_table(
                table_of(shuffled[number::files]),
                Path(many, f"part-{number}.parquet"),
                row_group_size=group,
                compression=compression,
                use_dictionary=dictionary,
                coerce_timestamps="ms" if number == 0 else None,
            )
        assert digest(Path(many)) == digest(Path(one)) == digest_of(table_of(rows))


# -- what the digest must depend on ------------------------------------------------------------------------------------


@SETTINGS
@given(ROWS, st.data())
def test_any_changed_cell_changes_its_bucket_and_the_whole(rows, data):
    row = data.draw(st.integers(0, len(rows) - 1))
    name = data.draw(st.sampled_from(sorted(OPTIONAL)))
    value = data.draw(st.none() | OPTIONAL[name])
    edited = [dict(found, **{name: value}) if index == row else found for index, found in enumerate(rows)]
    before, after = table_of(rows), table_of(edited)
    assume(canonical(before) != canonical(after))
    assert digest_of(after) != digest_of(before)
    differing = {found.label for found in set(print_of(before).buckets) ^ set(print_of(after).buckets)}
    assert differing == {rows[row]["time"].date().isoformat()}


TINY = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["", "a", "ab", None]), st.sampled_from(["", "b", None])),
    max_size=3,
)


@settings(max_examples=400, deadline=None)
@given(TINY, TINY)
def test_digests_are_equal_exactly_when_the_multisets_of_rows_are(left, right):
    schema = pa.schema([("time", pa.date32()), ("key", pa.string()), ("text", pa.string())])

    def digest(rows: list[tuple[int, str | None, str | None]]) -> str:
        listed = [{"time": date(2013, 1, 1 + day), "key": key or "", "text": text} for day, key, text in rows]
        return digest_of(pa.Table.from_pylist(listed, schema=schema))

    multisets = [Counter((day, key or "", text) for day, key, text in rows) for rows in (left, right)]
    assert (digest(left) == digest(right)) == (multisets[0] == multisets[1])


@SETTINGS
@given(ROWS, st.sampled_from(sorted(OPTIONAL)))
def test_a_renamed_column_changes_the_digest(rows, name):
    table = table_of(rows)
    renamed = table.rename_columns([f"{found}_" if found == name else found for found in table.column_names])
    assert digest_of(renamed) != digest_of(table)


@SETTINGS
@given(ROWS)
def test_a_row_more_or_less_changes_the_digest(rows):
    digests = [digest_of(table_of(found)) for found in (rows, [*rows, rows[0]], [*rows, rows[0], rows[0]], rows[1:])]
    assert len(set(digests)) == len(digests)


LOGICAL = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int32": pa.int32(),
    "uint32": pa.uint32(),
    "int64": pa.int64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us"),
    "timestamp[utc]": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "duration": pa.duration("us"),
    "decimal(9,2)": pa.decimal128(9, 2),
    "decimal(9,3)": pa.decimal128(9, 3),
    "list<int64>": pa.list_(pa.int64()),
    "map<string,int64>": pa.map_(pa.string(), pa.int64()),
    'struct<"a":int64>': pa.struct([("a", pa.int64())]),
    "null": pa.null(),
    'extension<"arrow.uuid",binary>': pa.uuid(),
}


def test_every_logical_type_has_its_own_digest_even_of_nulls_and_of_no_rows():
    table = pa.table({"time": [EPOCH], "key": [1]})
    for rows in (table, table.slice(1)):
        found = {name: print_of(rows.append_column("x", pa.nulls(len(rows), arrow))) for name, arrow in LOGICAL.items()}
        assert {name: print.columns[-1].type for name, print in found.items()} == {name: name for name in LOGICAL}
        assert len({print.digest for print in found.values()}) == len(LOGICAL)


@pytest.mark.parametrize(
    "values",
    [
        [0.0, -0.0, float("nan"), None],
        ["", None, "\0", "\0\0"],
        [[], None, [None], [None, None], [0]],
        [{"a": None}, None, {"a": 0}],
        [[("a", None)], None, [], [("a", 0)]],
        [False, None, True],
        [time(0), None, time(0, 0, 0, 1)],
        [Decimal("0.00"), None, Decimal("-0.01")],
    ],
    ids=lambda values: type(values[0]).__name__,
)
def test_null_empty_zero_and_nan_are_all_different(values):
    arrow = pa.map_(pa.string(), pa.int64()) if values[0] == [("a", None)] else pa.array(values).type
    tables = [pa.table({"time": [EPOCH], "key": [1], "x": pa.array([value], arrow)}) for value in values]
    assert len({digest_of(table) for table in tables}) == len(values)


# -- time --------------------------------------------------------------------------------------------------------------

INSTANTS = st.datetimes(
    datetime.fromisoformat("1700-01-01"), datetime.fromisoformat("2200-01-01"), timezones=st.just(UTC)
)


@given(st.lists(INSTANTS, min_size=1, max_size=5), st.sampled_from(Bucket))
def test_buckets_of_columns_are_the_buckets_of_instants(values, bucket):
    starts = instants(pa.table({"time": pa.array(values, pa.timestamp("us", "UTC"))}), "time").bucket_starts(bucket)
    assert starts.tolist() == [int(bucket_start(value, bucket).timestamp()) for value in values]


@given(INSTANTS, INSTANTS | st.just(datetime.max.replace(tzinfo=UTC)), st.sampled_from(["s", "ms", "us", "ns"]))
def test_a_row_is_compared_by_instant_whatever_its_unit(value, bound, unit):
    column = pa.array([value], pa.timestamp("us", "UTC")).cast(pa.timestamp(unit, "UTC"), safe=False)
    stored = column.cast(pa.timestamp("us", "UTC"))[0].as_py()
    found = instants(pa.table({"time": column}), "time")
    assert found.before(bound).tolist() == [stored < bound]
    assert found.not_after(bound).tolist() == [stored <= bound]
    assert found.before(stored).tolist() == [False]
    assert found.not_after(stored).tolist() == [True]


def canonical(table: pa.Table) -> list[str]:
    """Return the rows as text that is equal exactly when the values are: NaN is NaN, and -0.0 is not 0.0."""
    return sorted(map(repr, plain(table).to_pylist()))
