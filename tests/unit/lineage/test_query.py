from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.lineage.errors import DefinitionError
from snapline.lineage.query import matching, run_view, select

FLIGHTS = pa.table(
    {
        "id": [3, 1, 2, 1],
        "carrier": pa.array(["UA", "AA", None, "B6"], pa.large_string()),
        "delay": [5.0, None, -1.0, 5.0],
    }
)


def test_rows_come_in_key_order_and_ties_by_the_other_columns():
    found = run_view("SELECT * FROM flights", {"flights": FLIGHTS}, ["missing", "id"])
    assert found.to_pylist() == [
        {"id": 1, "carrier": "AA", "delay": None},
        {"id": 1, "carrier": "B6", "delay": 5.0},
        {"id": 2, "carrier": None, "delay": -1.0},
        {"id": 3, "carrier": "UA", "delay": 5.0},
    ]


def test_without_a_key_rows_are_ordered_by_every_column():
    found = run_view("SELECT delay, id FROM flights -- no key here", {"flights": FLIGHTS}, [])
    assert found["id"].to_pylist() == [2, 1, 3, 1]


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)))
def test_the_order_of_the_tables_rows_does_not_show(order):
    query = "SELECT id, count(*) AS flights, sum(delay) AS delay FROM flights GROUP BY id"
    shuffled = FLIGHTS.take(pa.array(order))
    assert run_view(query, {"flights": shuffled}, ["id"]) == run_view(query, {"flights": FLIGHTS}, ["id"])


def test_nested_columns_break_ties():
    table = pa.table({"id": [1, 1], "tags": [["b"], ["a"]]})
    assert run_view("FROM t", {"t": table}, ["id"])["tags"].to_pylist() == [["a"], ["b"]]


def test_several_tables_and_times_in_utc():
    days = pa.table({"seen": pa.array([datetime(2013, 1, 1, 23, tzinfo=UTC)], pa.timestamp("us", "UTC")), "id": [2]})
    found = run_view(
        "SELECT id, CAST(seen AS DATE)::VARCHAR AS day FROM flights JOIN days USING (id)",
        {"flights": FLIGHTS, "days": days},
        ["id"],
    )
    assert found.to_pylist() == [{"id": 2, "day": "2013-01-01"}]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT nothing FROM flights", '"nothing" not found'),
        ("SELECT *\nFROM flights\nWHER id = 1", "LINE 3"),
        ("SELECT * FROM elsewhere", "elsewhere does not exist"),
        ("SELECT CAST(carrier AS INTEGER) FROM flights", "Could not convert"),
        ("", "found nothing"),
        ("SELECT 1; SELECT 2", "found SELECT, SELECT"),
        ("CREATE TABLE t AS SELECT 1", "found CREATE"),
        ("SET threads = 4", "found SET"),
        ("COPY flights TO 'out.csv'", "found COPY"),
        ("ATTACH 'other.db'", "found ATTACH"),
        ("INSTALL httpfs", "found LOAD"),
    ],
)
def test_what_is_not_one_good_select_is_refused(query, message):
    with pytest.raises(DefinitionError, match=message):
        run_view(query, {"flights": FLIGHTS}, ["id"])


def test_a_query_reaches_no_file_and_no_python_variable(tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    outside = pa.table({"a": [1]})
    for query in (f"SELECT * FROM '{secret}'", f"SELECT * FROM read_csv('{secret}')", "SELECT * FROM outside"):
        with pytest.raises(DefinitionError, match="cannot be run"):
            run_view(query, {"flights": FLIGHTS}, [])
    assert outside.num_rows == 1


def test_a_table_without_columns_is_refused():
    with pytest.raises(DefinitionError, match="at least one column"):
        run_view("SELECT 1 AS one", {"empty": FLIGHTS.select([])}, [])


def test_matching_follows_the_rows_and_null_is_no():
    assert matching(FLIGHTS, "delay > 0 AND carrier <> 'UA'") == [False, False, False, True]
    assert matching(FLIGHTS, "carrier = 'UA' OR carrier IS NULL") == [True, False, True, False]
    assert matching(FLIGHTS.slice(0, 0), "delay > 0") == []


def test_matching_needs_no_columns():
    assert matching(FLIGHTS.select([]), "true") == [True] * 4


@pytest.mark.parametrize(
    ("predicate", "message"),
    [
        ("delay", "must be true or false, found DOUBLE"),
        ("altitude > 3", '"altitude" not found'),
        ("count(*) > 1", "Aggregates"),
        ("", "cannot be run"),
        ("true, false", "single expression"),
        ("true; DROP TABLE rows", "cannot be run"),
        ("EXISTS (SELECT 1 FROM read_csv('/etc/hostname'))", "file system operations are disabled"),
    ],
)
def test_predicates_that_are_not_one_boolean_are_refused(predicate, message):
    with pytest.raises(DefinitionError, match=message):
        matching(FLIGHTS, predicate)


def test_select_keeps_the_order_that_was_asked_for():
    found = select("SELECT id, carrier FROM flights ORDER BY id DESC, carrier DESC", {"flights": FLIGHTS})
    assert found.to_pylist() == [
        {"id": 3, "carrier": "UA"},
        {"id": 2, "carrier": None},
        {"id": 1, "carrier": "B6"},
        {"id": 1, "carrier": "AA"},
    ]


def test_columns_of_one_name_are_numbered_apart():
    found = select("SELECT id, id, id AS id_1, delay AS id FROM flights LIMIT 0", {"flights": FLIGHTS})
    assert found.column_names == ["id", "id_1", "id_1_1", "id_2"]


@pytest.mark.parametrize("statement", ["DROP TABLE flights", "SELECT 1; SELECT 2", "SET threads = 2", "ATTACH 'x.db'"])
def test_select_is_all_that_can_be_asked(statement):
    with pytest.raises(DefinitionError, match="expected one SELECT statement"):
        select(statement, {"flights": FLIGHTS})
