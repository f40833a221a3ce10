from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from snapline.lineage.plain import as_csv, as_json, plain, text_of

AT = datetime(2013, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected", "text"),
    [
        (None, None, ""),
        (True, True, "true"),
        (7, 7, "7"),
        ("a,b", "a,b", "a,b"),
        (1.5, 1.5, "1.5"),
        (float("nan"), None, "nan"),
        (float("-inf"), None, "-inf"),
        (Decimal(12), 12, "12"),
        (Decimal("1.50"), "1.50", "1.50"),
        (AT, "2013-01-01T12:00:00+00:00", "2013-01-01T12:00:00+00:00"),
        (date(2013, 1, 1), "2013-01-01", "2013-01-01"),
        (time(1, 2), "01:02:00", "01:02:00"),
        (timedelta(days=1), "1 day, 0:00:00", "1 day, 0:00:00"),
        (b"\x00\xff", "00ff", "00ff"),
        ([1, None, AT], [1, None, "2013-01-01T12:00:00+00:00"], '[1, null, "2013-01-01T12:00:00+00:00"]'),
        ({"a": [b"\x01"]}, {"a": ["01"]}, '{"a": ["01"]}'),
    ],
)
def test_every_value_has_a_plain_form(value: Any, expected: Any, text: str) -> None:
    assert plain(value) == expected
    assert text_of(value) == text


def test_json_has_the_columns_and_a_row_by_name() -> None:
    table = pa.table({"id": ["ü"], "at": pa.array([AT], pa.timestamp("us", "UTC")), "x": [float("nan")]})
    found = json.loads(as_json(table), parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert found["rows"] == [{"id": "ü", "at": "2013-01-01T12:00:00+00:00", "x": None}]
    assert found["columns"][0] == {"name": "id", "type": "string"}


def test_csv_reads_back() -> None:
    table = pa.table({"a": ['x,"y"\nz', None], "b": [["p", "q"], []]})
    assert list(csv.reader(io.StringIO(as_csv(table)))) == [["a", "b"], ['x,"y"\nz', '["p", "q"]'], ["", "[]"]]


def test_an_answer_without_rows_keeps_its_header() -> None:
    table = pa.table({"a": pa.array([], pa.int64())})
    assert as_csv(table) == "a\n"
    assert json.loads(as_json(table)) == {"columns": [{"name": "a", "type": "int64"}], "rows": []}
