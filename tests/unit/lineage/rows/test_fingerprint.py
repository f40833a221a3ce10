from __future__ import annotations

import json
import re
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from snapline.lineage.cut import Bucket
from snapline.lineage.digest import BulkAlgorithm, bytes_hex, canonical_json, merkle_root
from snapline.lineage.errors import DefinitionError
from snapline.lineage.rows.encoding import encode
from snapline.lineage.rows.fingerprint import Fingerprint, fingerprint
from snapline.lineage.snapshot import Column

GOLDEN = Path(__file__).parents[3] / "golden" / "rows_v2.json"
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


def print_of(table: pa.Table, *, bucket: Bucket = Bucket.DAY, key: str = "key", time: str = "time") -> Fingerprint:
    return fingerprint(table, time=time, key=key, bucket=bucket, algorithm=BulkAlgorithm.BLAKE3)


def golden_tables() -> dict[str, pa.Table]:
    hours = [NOON + timedelta(hours=7 * number) for number in range(6)]
    base = {"time": pa.array(hours, pa.timestamp("us", "UTC")), "key": pa.array([5, 3, 3, 1, 0, 0], pa.int64())}
    columns = {
        "numbers": {
            "a": pa.array([1, None, -3, 4, 5, 6], pa.int32()),
            "b": pa.array([0.5, None, -0.0, 0.0, 1e300, -1]),
        },
        "text": {"name": ["a", "", None, "é", "naïve", "\0"], "blob": pa.array([b"", b"\0", None, b"x", b"xy", b"z"])},
        "time": {
            "day": pa.array([date(1969, 12, 31), None, date(2000, 2, 29), *[date(2013, 1, 1)] * 3]),
            "naive": pa.array([datetime.fromisoformat("1969-12-31T23:59:59.999999")] * 6, pa.timestamp("us")),
            "wait": pa.array([timedelta(microseconds=-1)] * 6, pa.duration("us")),
        },
        "exact": {"price": pa.array([Decimal("-0.01"), None, *[Decimal("12.34")] * 4], pa.decimal128(9, 2))},
        "nested": {
            "tags": pa.array([["a", None], None, [], [""], ["b"], ["c", "d"]]),
            "point": pa.array([{"x": 1, "y": None}, None, *[{"x": None, "y": "q"}] * 4]),
            "counts": pa.array([[("a", 1)], None, [], *[[("b", None)]] * 3], pa.map_(pa.string(), pa.int64())),
        },
    }
    tables = {name: pa.table({**base, **extra}) for name, extra in columns.items()}
    return {**tables, "no rows": tables["text"].slice(0, 0)}


def test_golden_vectors(request):
    found = {
        name: {
            algorithm.value: {
                bucket.value: fingerprint(table, time="time", key="key", bucket=bucket, algorithm=algorithm).digest
                for bucket in Bucket
            }
            for algorithm in BulkAlgorithm
        }
        for name, table in golden_tables().items()
    }
    if request.config.getoption("--update-goldens", default=False):
        GOLDEN.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    assert found == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_the_recipe_is_the_one_that_is_documented():
    """A second implementation, by hand, of the whole recipe for a small table."""
    table = pa.table(
        {
            "time": pa.array([NOON, NOON - timedelta(days=1)], pa.timestamp("us", "UTC")),
            "key": pa.array([7, -2], pa.int16()),
            "name": pa.array([None, "né"]),
            "tags": pa.array([[1, None], []], pa.list_(pa.int8())),
            "wait": pa.array([-1, 2000], pa.duration("ns")),
        }
    )
    columns = [
        {"name": "key", "type": "int16"},
        {"name": "name", "type": "string"},
        {"name": "tags", "type": "list<int8>"},
        {"name": "time", "type": "timestamp[utc]"},
        {"name": "wait", "type": "duration"},
    ]
    noon = int(NOON.timestamp()) * 10**6

    def bucket(label: str, encoded: bytes) -> dict[str, object]:
        header = canonical_json(["rows-v2", columns, label, 1])
        framed = struct.pack("<q", len(header)) + header + encoded
        return {"label": label, "rows": 1, "hexdigest": bytes_hex(framed, BulkAlgorithm.BLAKE3)}

    name, empty = struct.pack("<bi", 0, 3) + "né".encode(), struct.pack("<bib", 0, 0, 0)
    null, tags = struct.pack("<bbi", 1, 1, 0), struct.pack("<bibbbbb", 0, 2, 1, 0, 1, 1, 0)
    whole, floored = struct.pack("<bqb", 0, 2, 0), struct.pack("<bqbh", 0, -1, 1, 999)
    eve = struct.pack("<bqb", 0, noon - 86400 * 10**6, 0)
    buckets = [
        bucket("2012-12-31", struct.pack("<bh", 0, -2) + name + empty + eve + whole),
        bucket("2013-01-01", struct.pack("<bh", 0, 7) + null + tags + struct.pack("<bqb", 0, noon, 0) + floored),
    ]
    found = print_of(table)
    assert [column.model_dump() for column in found.columns] == columns
    assert [digest.model_dump() for digest in found.buckets] == buckets
    root = merkle_root([canonical_json(columns), *map(canonical_json, buckets)], BulkAlgorithm.BLAKE3)
    assert found.digest == f"blake3-rows-v2:{root}"


def test_instants_before_the_epoch_floor():
    encoded = {unit: b"".join(encode(pa.array([-1], pa.timestamp(unit))).parts(0, 1)) for unit in ("s", "us", "ns")}
    assert encoded == {
        "s": struct.pack("<bqb", 0, -(10**6), 0),
        "us": struct.pack("<bqb", 0, -1, 0),
        "ns": struct.pack("<bqbh", 0, -1, 1, 999),
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([0, 2**63 // 10**6 + 1], pa.timestamp("s")), "9223372036855 s since the epoch"),
        (pa.array([-(2**62), 0], pa.duration("ms")), "-4611686018427387904 ms"),
        (pa.LargeListArray.from_arrays([0, 2**31, 2**31], pa.nulls(2**31)), "a value of length 2147483648"),
    ],
    ids=["instant", "duration", "long value"],
)
def test_values_beyond_the_encoding_are_refused_by_column(values, message):
    with pytest.raises(DefinitionError, match=rf"column 'far' holds {message}") as caught:
        print_of(pa.table({"time": [NOON] * 2, "key": [1, 2], "far": values}))
    assert "at the source" in caught.value.hint


def test_instants_outside_the_calendar_are_refused():
    far = pa.array([2**43, 0], pa.timestamp("s"))
    for bucket in Bucket:
        with pytest.raises(DefinitionError, match="expected instants in the years 1 to 9999"):
            print_of(pa.table({"time": far, "key": [1, 2]}), bucket=bucket)


def test_decimals_are_sign_extended_to_one_width():
    widths = [pa.decimal32(4, 2), pa.decimal64(4, 2), pa.decimal128(4, 2), pa.decimal256(4, 2)]
    for value, number in ((Decimal("-0.01"), -1), (Decimal("12.34"), 1234)):
        found = {b"".join(encode(pa.array([value], width)).parts(0, 1)) for width in widths}
        assert found == {b"\0" + number.to_bytes(32, "little", signed=True)}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (pa.array([1.5, float("nan"), 0.0, -0.0, -1.5, float("-inf"), float("inf")]), "-inf -1.5 -0.0 0.0 1.5 inf nan"),
        (pa.array([1, -2, 0], pa.float16()), "-2.0 0.0 1.0"),
        (pa.array([2**64 - 1, 0, 2**63], pa.uint64()), f"0 {2**63} {2**64 - 1}"),
        (pa.array([True, False]), "False True"),
        (pa.array(["b", "é", "", "a\0", "a"]), " a a\0 b é"),
        (pa.array([Decimal("2.5"), Decimal("-10.0")]), "-10.0 2.5"),
        (pa.array([date(2000, 1, 2), date(1960, 1, 1)]), "1960-01-01 2000-01-02"),
    ],
    ids=lambda found: str(getattr(found, "type", "")),
)
def test_keys_ascend(keys, expected):
    found = print_of(pa.table({"time": [NOON] * len(keys), "key": keys}))
    assert " ".join(map(str, found.table["key"].to_pylist())) == expected


def test_rows_of_many_pieces_are_put_together_in_time_order():
    """Rows of 20 kB, so that a few buckets fill a piece and several pieces are worked on at once."""
    rows = 3000
    table = pa.table(
        {
            "time": [NOON + timedelta(hours=hour) for hour in range(rows)],
            "key": range(rows),
            "text": [f"{number:x}" * 5000 for number in range(10_000, 10_000 + rows)],
        }
    )
    shuffled = table.take(pa.array(np.random.default_rng(1).permutation(rows)))
    found = print_of(shuffled)
    assert found.table == print_of(table).table == table
    assert (found.digest, found.buckets) == (print_of(table).digest, print_of(table).buckets)
    assert found.buckets[7] == print_of(table.slice(7 * 24 - 12, 24)).buckets[0]


def test_rows_come_back_in_key_order_within_their_buckets():
    table = pa.table({"time": [NOON, NOON - timedelta(days=1), NOON - timedelta(hours=1)], "key": ["b", "c", "a"]})
    found = print_of(table)
    assert found.table["key"].to_pylist() == ["c", "a", "b"]
    assert [(bucket.label, bucket.rows) for bucket in found.buckets] == [("2012-12-31", 1), ("2013-01-01", 2)]


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([0.0, -0.0, 0.0, float("nan"), float("nan"), 1.0]),
        pa.array([1, 2, 1, 2, 0, 0], pa.float16()),
        pa.array([b"b", b"a", b"b", b"a", b"", b""]),
        pa.array([Decimal("1.5")] * 6, pa.decimal32(4, 1)),
        pa.array([True, False] * 3),
        pa.array(["x", "y", "x", "x", "y", "y"]).dictionary_encode(),
        pa.array([b"a" * 16, b"b" * 16] * 3, pa.binary(16)).cast(pa.uuid()),
    ],
    ids=lambda keys: str(keys.type),
)
def test_rows_of_equal_keys_are_ordered_by_content(keys):
    table = pa.table({"time": [NOON] * 6, "key": keys, "text": ["f", "a", None, "c", "b", "a"]})
    random = np.random.default_rng(1)
    digests = {print_of(table.take(pa.array(random.permutation(6)))).digest for _ in range(30)}
    assert len(digests) == 1


def test_list_views_and_run_ends_are_the_values_they_stand_for():
    values = [["a"], None, [], ["b", None]]
    base = pa.table({"time": [NOON] * 4, "key": [1, 2, 3, 4], "runs": ["x", "x", "y", None]})
    lists = base.append_column("tags", pa.array(values, pa.list_(pa.string())))
    views = base.append_column("tags", pa.array(values, pa.list_view(pa.string())))
    encoded = lists.set_column(2, "runs", pc.run_end_encode(base["runs"].combine_chunks()))
    assert print_of(views).digest == print_of(encoded).digest == print_of(lists).digest


def test_fixed_size_lists_are_lists():
    values = [[1, 2], None, [3, None]]
    base = pa.table({"time": [NOON] * 3, "key": [1, 2, 3]})
    digests = {
        print_of(base.append_column("x", pa.array(values, arrow))).digest
        for arrow in (pa.list_(pa.int8()), pa.list_(pa.int8(), 2), pa.large_list(pa.int8()))
    }
    assert len(digests) == 1


def test_values_under_a_null_struct_or_list_are_not_hashed():
    base = pa.table({"time": [NOON] * 2, "key": [1, 2]})
    mask = pa.array([False, True])
    digests = set()
    for hidden in ("left over", "other"):
        point = pa.StructArray.from_arrays([pa.array(["x", hidden])], ["a"], mask=mask)
        tags = pa.ListArray.from_arrays(pa.array([0, 1, 2]), pa.array(["x", hidden]), mask=mask)
        digests.add(print_of(base.append_column("point", point).append_column("tags", tags)).digest)
    assert len(digests) == 1


def test_an_extension_is_known_by_name_whether_or_not_its_type_is_registered():
    base = pa.table({"time": [NOON], "key": [1]})
    registered = base.append_column("id", pa.array([b"a" * 16], pa.binary(16)).cast(pa.uuid()))
    field = pa.field("id", pa.binary(16), metadata={"ARROW:extension:name": "arrow.uuid"})
    unregistered = base.append_column(field, pa.array([b"a" * 16], pa.binary(16)))
    assert print_of(registered).columns[0] == Column(name="id", type='extension<"arrow.uuid",binary>')
    assert print_of(unregistered).digest == print_of(registered).digest


def test_dates_and_naive_times_are_utc():
    at = [datetime.fromisoformat("2013-01-01T23:59"), datetime.fromisoformat("2013-01-02")]
    naive = print_of(pa.table({"time": at, "key": [1, 2]}))
    zoned = pa.array(at, pa.timestamp("us")).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us", "Asia/Tokyo"))
    aware = print_of(pa.table({"time": zoned, "key": [1, 2]}))
    dates = print_of(pa.table({"time": [moment.date() for moment in at], "key": [1, 2]}))
    labels = [[bucket.label for bucket in found.buckets] for found in (naive, aware, dates)]
    assert labels == [["2013-01-01", "2013-01-02"]] * 3
    assert len({naive.digest, aware.digest, dates.digest}) == 3


def test_hours_are_labelled_by_instant():
    found = print_of(pa.table({"time": [NOON], "key": [1]}), bucket=Bucket.HOUR)
    assert [bucket.label for bucket in found.buckets] == ["2013-01-01T12:00Z"]


@pytest.mark.parametrize(
    ("table", "message", "hint"),
    [
        ({"time": [None, NOON], "key": [None, 1]}, "1 in 'time', 1 in 'key'", "Fill or drop"),
        ({"time": ["2013-01-01"], "key": [1]}, "'time' must hold timestamps or dates", "Cast time to a timestamp"),
        ({"time": [1356998400], "key": [1]}, "found int64", "Cast time"),
        ({"time": [NOON], "key": [[1]]}, "'key' of type large_list<item: int64> cannot be sorted", "numbers or text"),
        ({"time": [NOON], "key": [{"a": 1}]}, "cannot be sorted", "numbers or text"),
    ],
)
def test_tables_that_cannot_be_ordered_are_refused(table, message, hint):
    with pytest.raises(DefinitionError, match=re.escape(message)) as caught:
        print_of(pa.table(table))
    assert hint in caught.value.hint


def test_types_without_an_encoding_are_refused_by_column():
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    interval = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    for odd in (union, interval):
        with pytest.raises(DefinitionError, match=r"column 'odd' has type .* no canonical encoding"):
            print_of(pa.table({"time": [NOON], "key": [1], "odd": odd}))


def test_a_date_with_a_time_of_day_is_refused_by_column():
    broken = pa.array([1], pa.int64()).cast(pa.date64())
    with pytest.raises(DefinitionError, match="column 'day' of type date64"):
        print_of(pa.table({"time": [NOON], "key": [1], "day": broken}))


def test_repeated_column_names_are_refused():
    table = pa.Table.from_arrays([pa.array([NOON]), pa.array([1]), pa.array([2])], names=["time", "key", "key"])
    with pytest.raises(DefinitionError, match="several named 'key'"):
        print_of(table)


def test_no_rows_have_the_digest_of_their_columns():
    table = pa.table({"time": pa.array([], pa.timestamp("s")), "key": pa.array([], pa.int64())})
    found = print_of(table)
    root = merkle_root([canonical_json([column.model_dump() for column in found.columns])], BulkAlgorithm.BLAKE3)
    assert (found.buckets, found.digest) == ((), f"blake3-rows-v2:{root}")
    assert print_of(table.rename_columns(["time", "other"]), key="other").digest != found.digest
