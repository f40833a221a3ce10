from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from snapline.lineage.errors import DefinitionError
from snapline.lineage.leakage.check import ROWS_SCHEMA, STORED_ROWS, LeakageReport, check
from snapline.lineage.leakage.examples import Inputs
from snapline.lineage.leakage.rules import Rules, parse_rules

MICRO = timedelta(microseconds=1)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
P = datetime(2013, 1, 10, 12, tzinfo=UTC)
UNTIL = datetime(2013, 2, 1, tzinfo=UTC)
AS_OF = datetime(2013, 3, 1, tzinfo=UTC)
INSTANT = pa.timestamp("us", "UTC")
RULES = """\
apiVersion: snapline/v1
kind: LeakageRules
name: pit
prediction_time: p
embargo: 1h
horizon: 7d
features: [{column: wind, time: wind_at, known: wind_known}]
label: {time: label_at, known: label_known}
entity: who
near_duplicates: {columns: [note, size]}
"""
SCHEMA = pa.schema(
    [("id", pa.int64())]
    + [(name, INSTANT) for name in ("p", "wind_at", "wind_known", "label_at", "label_known")]
    + [("wind", pa.float64()), ("who", pa.string()), ("note", pa.string()), ("size", pa.float64())]
)


def rules_of(text: str = RULES) -> Rules:
    return parse_rules(text.encode(), "rules.yaml")


def only(*lines: str) -> Rules:
    return rules_of("\n".join(["apiVersion: snapline/v1", "kind: LeakageRules", "name: pit", *lines, ""]))


def clean(key: int, p: datetime = P, **changed: Any) -> dict[str, Any]:
    """An example that breaks no rule, at the edge of each."""
    times = {"wind_at": p - HOUR, "wind_known": p, "label_at": p + MICRO, "label_known": AS_OF}
    return {"id": key, "p": p, **times, "wind": 1.0, "who": f"a{key}", "note": f"n{key}", "size": 0.0} | changed


def inputs(rows: Sequence[dict[str, Any]] | pa.Table, name: str = "trips@1", **changed: Any) -> Inputs:
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema=SCHEMA)
    said = {"key": "id", "time": "p", "until": UNTIL, "read_as_of": AS_OF} | changed
    return Inputs(snapshot=name, table=table, **said)


def evaluated(*rows: dict[str, Any]) -> list[Inputs]:
    return [inputs(rows, "later@2")] if rows else []


def broken(report: LeakageReport) -> dict[str, int]:
    return {finding.rule: finding.rows for finding in report.findings if finding.rows}


def after(key: int, **changed: Any) -> dict[str, Any]:
    return clean(key, UNTIL, **changed)


def test_rows_at_the_very_edge_of_every_rule_are_clean() -> None:
    report = check(rules_of(), [inputs([clean(1), clean(2, label_at=P + 7 * DAY)])], evaluated(after(3)))
    assert not report.leaked
    assert (report.unchecked, report.remarks, report.rows.num_rows) == ((), (), 0)
    assert report.rows.schema == ROWS_SCHEMA
    names = [finding.rule for finding in report.findings]
    assert len(set(names)) == len(names)
    assert {"training/feature-event-time/wind", "evaluation/label-known-time", "evaluation-before-cut"} <= set(names)
    assert {"entity-overlap", "near-duplicate", "training/unknown-time/p", "evaluation/unknown-entity/who"} <= set(
        names
    )


@pytest.mark.parametrize(
    ("column", "value", "rule", "allowed"),
    [
        ("wind_at", P - HOUR + MICRO, "feature-event-time/wind", "at most 2013-01-10T11:00:00.000000Z"),
        ("wind_known", P + MICRO, "feature-known-time/wind", "at most 2013-01-10T12:00:00.000000Z"),
        ("label_at", P, "label-event-time", "after 2013-01-10T12:00:00.000000Z"),
        ("label_at", P + 7 * DAY + MICRO, "label-horizon", "at most 2013-01-17T12:00:00.000000Z"),
        ("label_known", AS_OF + MICRO, "label-known-time", "at most 2013-03-01T00:00:00.000000Z"),
        ("wind_known", None, "unknown-time/wind_known", "a value"),
        ("label_at", None, "unknown-time/label_at", "a value"),
        ("p", None, "unknown-time/p", "a value"),
        ("who", None, "unknown-entity/who", "a value"),
    ],
)
def test_one_microsecond_too_far_is_found_and_named(
    column: str, value: datetime | None, rule: str, allowed: str
) -> None:
    report = check(rules_of(), [inputs([clean(1), clean(7) | {column: value}])], evaluated(after(3)))
    assert broken(report) == {f"training/{rule}": 1}
    (row,) = report.rows.to_pylist()
    shown = None if value is None else value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert row == {
        "rule": f"training/{rule}",
        "snapshot": "trips@1",
        "key": "7",
        "column": column,
        "value": shown,
        "allowed": allowed,
        "train_snapshot": None,
        "train_key": None,
    }


def test_evaluation_examples_are_held_against_the_same_rules() -> None:
    report = check(rules_of(), [inputs([clean(1)])], evaluated(after(3, wind_known=UNTIL + MICRO)))
    assert broken(report) == {"evaluation/feature-known-time/wind": 1}


def test_an_evaluation_row_before_the_end_of_any_training_cut_is_found() -> None:
    train = [inputs([clean(1)]), inputs([clean(2)], "trips@2", until=UNTIL + DAY)]
    report = check(rules_of(), train, evaluated(after(3), clean(4, UNTIL + DAY)))
    assert broken(report) == {"evaluation-before-cut": 1}
    assert report.rows["key"].to_pylist() == ["3"]
    assert report.rows["allowed"].to_pylist() == ["at or after 2013-02-02T00:00:00.000000Z"]


def test_without_a_prediction_time_the_event_time_is_held_against_the_cut() -> None:
    late, early = after(3), after(4) | {"wind_at": UNTIL - MICRO}
    evaluation = [inputs([late | {"wind_at": UNTIL}, early], "later@2", time="wind_at")]
    report = check(only("entity: who"), [inputs([clean(1)])], evaluation)
    assert broken(report) == {"evaluation-before-cut": 1}
    assert report.rows["key"].to_pylist() == ["4"]
    assert report.rows["column"].to_pylist() == ["wind_at"]


def test_an_unknown_event_time_is_found_where_it_stands_for_the_prediction() -> None:
    evaluation = [inputs([after(3), after(4, wind_at=None)], "later@2", time="wind_at")]
    report = check(only("entity: who"), [inputs([clean(1)])], evaluation)
    assert broken(report)["evaluation/unknown-time/wind_at"] == 1


def test_an_entity_of_both_sets_is_found_with_the_first_training_row() -> None:
    train = [inputs([clean(9, who="x"), clean(5, who="x"), clean(6)])]
    report = check(rules_of(), train, evaluated(after(3, who="x"), after(4, who="X")))
    assert broken(report) == {"entity-overlap": 1}
    (row,) = report.rows.to_pylist()
    assert (row["key"], row["value"], row["train_snapshot"], row["train_key"]) == ("3", "x", "trips@1", "5")
    assert row["allowed"] == "what no training row has, found in 2"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Hello,  World!", "hello world", True),
        (" Straße\t1\n", "STRASSE 1", True),
        ("ﬁne ① Ａ", "FINE 1 a", True),
        ("e\u0301te\u0301", "ÉTÉ", True),
        ("can’t", "can't", True),
        ("soft\u00adhyphen", "softhyphen", True),
        ("a\u3000b\u0085c", "a b c", True),
        ("ΣΊΣΥΦΟΣ", "σίσυφος", True),
        ("ab", "a b", False),
        ("1+1", "11", False),
        ("été", "ete", False),
        ("a", None, False),
    ],
)
def test_texts_are_compared_as_normalized(one: str, other: str | None, same: bool) -> None:
    report = check(only("near_duplicates: {columns: [note, size]}"), [inputs([clean(1, note=one)])],
                   evaluated(after(3, note=other)))  # fmt: skip
    assert broken(report) == ({"near-duplicate": 1} if same else {})
    if same:
        assert report.rows["train_key"].to_pylist() == ["1"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (pa.array([0.1 + 0.2]), pa.array([0.3]), True),
        (pa.array([0.1], pa.float32()), pa.array([0.1]), True),
        (pa.array([5], pa.int8()), pa.array([5.0]), True),
        (pa.array([5], pa.uint64()), pa.array([Decimal("5.00")]), True),
        (pa.array([-0.0]), pa.array([0]), True),
        (pa.array([float("nan")]), pa.array([float("nan")]), True),
        (pa.array([2**53 + 1]), pa.array([2**53]), False),
        (pa.array([1.000001]), pa.array([1.000002]), False),
        (pa.array([float("inf")]), pa.array([float("-inf")]), False),
        (pa.array([b"a\x00"]), pa.array([b"a"]), False),
        (pa.array(["A"]).dictionary_encode(), pa.array(["a"], pa.large_string()), True),
        (pa.array([P], pa.timestamp("ms", "UTC")), pa.array([P], INSTANT), True),
        (pa.array([True]), pa.array([False]), False),
    ],
)
def test_other_values_are_compared_by_what_they_are(one: pa.Array, other: pa.Array, same: bool) -> None:
    train, evaluation = (
        inputs(pa.table({"id": [1], "p": pa.array([UNTIL], INSTANT), "v": values})) for values in (one, other)
    )
    report = check(only("near_duplicates: {columns: [v]}"), [train], [evaluation])
    assert broken(report) == ({"near-duplicate": 1} if same else {})


def test_the_columns_of_a_content_do_not_run_into_each_other() -> None:
    rules = only("near_duplicates: {columns: [note, who]}")
    train = [inputs([clean(1, note="ab", who="c"), clean(2, note=None, who="x")])]
    report = check(rules, train, evaluated(after(3, note="a", who="bc"), after(4, note="x", who=None)))
    assert broken(report) == {}


def test_rows_without_content_repeat_nothing_and_are_counted() -> None:
    rules = only("near_duplicates: {columns: [note]}")
    report = check(rules, [inputs([clean(1, note="…"), clean(2, note=None)])], evaluated(after(3, note=" ")))
    assert not report.leaked
    assert report.remarks == (
        "near-duplicate: 2 training rows have no content in those columns",
        "near-duplicate: 1 evaluation rows have no content in those columns",
    )


def test_every_row_is_counted_and_the_first_by_key_are_kept() -> None:
    count = STORED_ROWS + 5
    rows = [clean(key, wind_known=P + HOUR) for key in reversed(range(count))]
    report = check(rules_of(), [inputs(rows)], evaluated(after(count)))
    rule = "training/feature-known-time/wind"
    assert broken(report) == {rule: count}
    assert report.rows["key"].to_pylist() == [str(key) for key in range(STORED_ROWS)]
    assert report.remarks == (f"{rule}: the first {STORED_ROWS} of {count} rows are kept, by key",)


def test_without_evaluation_rows_what_the_rules_ask_of_them_is_unchecked() -> None:
    report = check(rules_of(), [inputs([clean(1)])], [])
    assert report.unchecked == (
        "entity, near_duplicates: no evaluation snapshot is named, by the rules or by the model",
    )
    assert not any(finding.rule.startswith(("evaluation", "entity", "near")) for finding in report.findings)
    report = check(only("prediction_time: p", "label: {time: label_at}"), [inputs([clean(1)])], [])
    assert report.unchecked == ()
    assert report.remarks == ("evaluation: no evaluation snapshot is named, by the rules or by the model",)


@pytest.mark.parametrize("lines", [[], ["prediction_time: p"]])
def test_rules_that_ask_nothing_of_anybody_are_no_pass(lines: list[str]) -> None:
    report = check(only(*lines), [inputs([clean(1)])], [])
    assert report.unchecked == ("evaluation: no evaluation snapshot is named, by the rules or by the model",)
    assert not check(only(*lines), [inputs([clean(1)])], evaluated(after(3))).unchecked


@pytest.mark.parametrize(("train", "evaluation"), [(0, 1), (1, 0), (0, 0)])
def test_no_rows_are_nothing_to_check_and_not_a_pass(train: int, evaluation: int) -> None:
    sides = [inputs([clean(1)] * train)], [inputs([after(3)] * evaluation, "later@2")]
    report = check(rules_of(), *sides)
    assert len(report.unchecked) == 2 - train - evaluation
    assert all("has no rows" in said for said in report.unchecked)
    sides_checked = {finding.rule.partition("/")[0] for finding in report.findings}
    assert ("training" in sides_checked, "evaluation" in sides_checked) == (bool(train), bool(evaluation))
    assert "near-duplicate" not in sides_checked


def test_a_label_known_when_nobody_says_is_unchecked() -> None:
    unsaid = inputs([clean(1, label_known=AS_OF + DAY)], read_as_of=None)
    report = check(rules_of(), [unsaid], evaluated(after(3)))
    assert report.unchecked == ("training/label-known-time: nothing states as of when trips@1 was read",)
    assert "training/label-known-time" not in {finding.rule for finding in report.findings}
    report = check(rules_of(), [unsaid, inputs([clean(2, label_known=AS_OF + DAY)], "trips@2")], evaluated(after(3)))
    assert broken(report) == {"training/label-known-time": 1}
    assert len(report.unchecked) == 1


def test_a_nanosecond_is_enough_and_units_may_differ() -> None:
    nanosecond = pa.array([P.timestamp() * 1e9 // 1], pa.int64()).cast(pa.timestamp("ns", "UTC"))
    later = pa.array([int(P.timestamp()) * 10**9 + 1], pa.int64()).cast(pa.timestamp("ns", "UTC"))
    p = pa.array([int(P.timestamp())], pa.timestamp("s", "America/New_York"))
    rules = only("prediction_time: p", "features: [{column: t, time: t}]")
    assert not check(rules, [inputs(pa.table({"id": [1], "p": p, "t": nanosecond}))], []).leaked
    report = check(rules, [inputs(pa.table({"id": [1], "p": p, "t": later}))], [])
    assert report.rows["value"].to_pylist() == ["2013-01-10T12:00:00.000000001Z"]


def test_instants_before_the_epoch_and_beyond_the_calendar_are_ordered() -> None:
    times = pa.array([-1, -(2**62)], pa.timestamp("s", "UTC"))
    table = pa.table({"id": [1, 2], "p": pa.array([-2, -(2**62) - 1], pa.timestamp("s", "UTC")), "t": times})
    report = check(only("prediction_time: p", "features: [{column: t, time: t}]"), [inputs(table)], [])
    assert report.rows["value"].to_pylist() == ["1969-12-31T23:59:59.000000Z", f"{-(2**62) * 10**9} ns after 1970"]


def test_dates_are_their_first_instant_in_utc() -> None:
    table = pa.table({"id": [1, 2], "p": pa.array([P, P], INSTANT), "day": pa.array([P.date(), (P + DAY).date()])})
    report = check(only("prediction_time: p", "features: [{column: day, time: day}]"), [inputs(table)], [])
    assert report.rows["key"].to_pylist() == ["2"]


def test_an_unknown_column_is_refused_with_file_line_and_field() -> None:
    rules = only("prediction_time: p", "features:", "  - column: wind", "    time: nowhere")
    with pytest.raises(DefinitionError) as refused:
        check(rules, [inputs([clean(1)])], [])
    assert refused.value.message.startswith("rules.yaml:7: features.0.time: snapshot trips@1 has no column 'nowhere'")
    assert "its columns are id, p, wind_at" in refused.value.message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("entity: nowhere", "rules.yaml:4: entity: snapshot trips@1 has no column 'nowhere'"),
        (
            "prediction_time: note",
            "rules.yaml:4: prediction_time: column 'note' of snapshot trips@1: expected timestamps",
        ),
        ("prediction_time: size", "expected timestamps or dates, found double"),
        ("near_duplicates: {columns: [note, gone]}", "rules.yaml:4: near_duplicates.columns.1: snapshot trips@1"),
    ],
)
def test_columns_that_do_not_fit_are_refused(line: str, message: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        check(only(line), [inputs([clean(1)])], evaluated(after(3)))
    assert message in refused.value.message


def test_a_zone_beside_none_is_refused() -> None:
    naive = pa.array([P.replace(tzinfo=None)], pa.timestamp("us"))
    rules = only("prediction_time: p", "features: [{column: t, time: t}]")
    with pytest.raises(DefinitionError, match="column 'p' of snapshot trips@1 has a time zone and column 't'"):
        check(rules, [inputs(pa.table({"id": [1], "p": pa.array([P], INSTANT), "t": naive}))], [])
    assert not check(rules, [inputs(pa.table({"id": [1], "p": naive, "t": naive}))], []).leaked


@pytest.mark.parametrize("line", ["entity: v", "near_duplicates: {columns: [v]}"])
def test_values_that_cannot_be_equal_by_type_are_refused(line: str) -> None:
    def side(values: pa.Array, name: str) -> list[Inputs]:
        return [inputs(pa.table({"id": [1], "p": pa.array([UNTIL], INSTANT), "v": values}), name)]

    with pytest.raises(DefinitionError, match="column 'v' of snapshot b holds text, but integer in snapshot a"):
        check(only(line), side(pa.array([1]), "a"), side(pa.array(["1"]), "b"))
    with pytest.raises(DefinitionError, match="expected text, numbers, times or bytes, found large_list"):
        check(only(line), side(pa.array([[1]]), "a"), side(pa.array([[1]]), "b"))


def test_text_that_is_no_text_is_refused() -> None:
    latin = pa.array([b"caf\xe9"]).view(pa.string())
    table = pa.table({"id": [1], "p": pa.array([UNTIL], INSTANT), "v": latin})
    with pytest.raises(DefinitionError, match=r"near_duplicates.columns.0: column 'v' .* not UTF-8"):
        check(only("near_duplicates: {columns: [v]}"), [inputs(table)], [inputs(table)])


def test_names_that_look_like_sql_are_only_names() -> None:
    name = "t'; DROP TABLE training --\""
    table = pa.table({"id": [1], "p": pa.array([P], INSTANT), name: pa.array([P + DAY], INSTANT)})
    rules = only("prediction_time: p", "features:", "  - column: p", f"    time: {json.dumps(name)}")
    report = check(rules, [inputs(table, "it's@1")], [])
    assert report.rows["snapshot"].to_pylist() == ["it's@1"]
    assert len(report.findings) == 3
