"""What a leakage check must find, and must not: planted leaks, an oracle row by row, and the order of rows."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.lineage.leakage.check import LeakageReport, check
from snapline.lineage.leakage.examples import Inputs
from snapline.lineage.leakage.near_duplicates import folded
from snapline.lineage.leakage.rules import parse_rules

SETTINGS = settings(max_examples=15, deadline=None)
MICRO = timedelta(microseconds=1)
START, UNTIL, AS_OF = (datetime(2013, month, 1, tzinfo=UTC) for month in (1, 2, 3))
EMBARGO, HORIZON = timedelta(hours=1), timedelta(days=7)
TIMES = ("p", "at", "known", "label_at", "label_known")
INSTANT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("id", pa.int64())] + [(name, INSTANT) for name in TIMES] + [("who", pa.string()), ("note", pa.string())]
)
RULES = parse_rules(
    b"""
apiVersion: snapline/v1
kind: LeakageRules
name: pit
prediction_time: p
embargo: 1h
horizon: 7d
features: [{column: at, time: at, known: known}]
label: {time: label_at, known: label_known}
entity: who
near_duplicates: {columns: [note]}
""",
    "rules.yaml",
)
Row = dict[str, Any]
SPANS = st.integers(0, 10**9).map(lambda micros: timedelta(microseconds=micros))


@st.composite
def clean_rows(draw: st.DrawFn, first: datetime, key: int) -> list[Row]:
    """Rows that break no rule, each with its own slack; what it is about and says is its own."""
    rows = []
    for index in range(draw(st.integers(1, 8))):
        p = first + draw(SPANS)
        label_at = p + min(HORIZON, MICRO + draw(SPANS))
        times = {"p": p, "at": p - EMBARGO - draw(SPANS), "known": p - draw(SPANS), "label_at": label_at}
        own = {"label_known": AS_OF - draw(SPANS), "who": f"entity {key + index}", "note": f"says {key + index}"}
        rows.append({"id": key + index, **times, **own})
    return rows


TRAIN, EVALUATION = clean_rows(START, 0), clean_rows(UNTIL, 100)


def checked(train: list[Row], evaluation: list[Row], shuffled: bool = False) -> LeakageReport:
    def side(rows: list[Row], name: str) -> list[Inputs]:
        tables = [pa.Table.from_pylist([row], schema=SCHEMA) for row in rows] if shuffled else []
        table = pa.concat_tables(tables) if shuffled else pa.Table.from_pylist(rows, schema=SCHEMA)
        return [Inputs(name, table, "id", "p", UNTIL, AS_OF)]

    return check(RULES, side(train, "train"), side(evaluation, "evaluation"))


def found(report: LeakageReport) -> set[tuple[str, int]]:
    return {(row["rule"], int(row["key"])) for row in report.rows.to_pylist()}


@SETTINGS
@given(TRAIN, EVALUATION)
def test_clean_rows_are_clean(train: list[Row], evaluation: list[Row]) -> None:
    report = checked(train, evaluation)
    assert (report.leaked, report.unchecked, report.rows.num_rows) == (False, (), 0)


LATER: dict[str, Callable[[Row], Row]] = {
    "feature-event-time/at": lambda row: row | {"at": row["p"] - EMBARGO + MICRO},
    "feature-known-time/at": lambda row: row | {"known": row["p"] + MICRO},
    "label-event-time": lambda row: row | {"label_at": row["p"]},
    "label-horizon": lambda row: row | {"label_at": row["p"] + HORIZON + MICRO},
    "label-known-time": lambda row: row | {"label_known": AS_OF + MICRO},
    "unknown-time/known": lambda row: row | {"known": None},
    "unknown-entity/who": lambda row: row | {"who": None},
}


@pytest.mark.parametrize("rule", LATER)
@settings(SETTINGS, max_examples=8)
@given(TRAIN, EVALUATION, st.data())
def test_exactly_the_planted_examples_are_found(
    rule: str, train: list[Row], evaluation: list[Row], data: st.DataObject
) -> None:
    keys = data.draw(st.sets(st.sampled_from([row["id"] for row in train + evaluation]), min_size=1))
    planted = [[LATER[rule](row) if row["id"] in keys else row for row in rows] for rows in (train, evaluation)]
    report = checked(*planted)
    assert found(report) == {(f"{'training' if key < 100 else 'evaluation'}/{rule}", key) for key in keys}
    assert sum(finding.rows for finding in report.findings) == len(keys)


@SETTINGS
@given(TRAIN, EVALUATION, st.data())
def test_exactly_the_evaluation_rows_that_repeat_training_rows_are_found(
    train: list[Row], evaluation: list[Row], data: st.DataObject
) -> None:
    keys = [row["id"] for row in evaluation]
    shared, similar, early = (data.draw(st.sets(st.sampled_from(keys)), label) for label in ("who", "note", "p"))
    originals = {key: data.draw(st.sampled_from(train)) for key in keys}
    for row in evaluation:
        original = originals[row["id"]]
        row.update({"who": original["who"]} if row["id"] in shared else {})
        row.update({"note": f" {original['note'].upper()}!!"} if row["id"] in similar else {})
        moved = row["p"] - (UNTIL - MICRO) if row["id"] in early else timedelta()
        row.update({name: row[name] - moved for name in TIMES})
    report = checked(train, evaluation)
    rules = {"entity-overlap": shared, "near-duplicate": similar, "evaluation-before-cut": early}
    assert found(report) == {(rule, key) for rule, keys in rules.items() for key in keys}
    for row in report.rows.to_pylist():
        if row["rule"] != "evaluation-before-cut":
            assert int(row["train_key"]) == originals[int(row["key"])]["id"]


ANY_INSTANT = st.none() | st.integers(-4, 4).map(lambda steps: UNTIL + steps * EMBARGO / 2)
ANY_ROW = st.fixed_dictionaries(
    dict.fromkeys(TIMES, ANY_INSTANT)
    | {"who": st.none() | st.sampled_from("abc"), "note": st.none() | st.sampled_from(["x", "X.", "y", ""])}
)


def numbered(first: int) -> st.SearchStrategy[list[Row]]:
    rows = st.lists(ANY_ROW, min_size=1, max_size=8)
    return rows.map(lambda rows: [{"id": first + index, **row} for index, row in enumerate(rows)])


def broken_by(row: Row) -> set[str]:
    """Return the rules of one example that it breaks, as one would check them by hand."""
    p, at, known, label_at = (row[name] for name in ("p", "at", "known", "label_at"))
    verdicts = {f"unknown-time/{name}": row[name] is None for name in TIMES}
    verdicts["unknown-entity/who"] = row["who"] is None
    verdicts["label-known-time"] = row["label_known"] is not None and row["label_known"] > AS_OF
    if p is not None:
        verdicts["feature-event-time/at"] = at is not None and at > p - EMBARGO
        verdicts["feature-known-time/at"] = known is not None and known > p
        verdicts["label-event-time"] = label_at is not None and label_at <= p
        verdicts["label-horizon"] = label_at is not None and label_at > p + HORIZON
    return {rule for rule, broken in verdicts.items() if broken}


@SETTINGS
@given(numbered(0), numbered(100))
def test_a_check_agrees_with_one_made_row_by_row(train: list[Row], evaluation: list[Row]) -> None:
    sides = (("training", train), ("evaluation", evaluation))
    expected = {(f"{side}/{rule}", row["id"]) for side, rows in sides for row in rows for rule in broken_by(row)}
    people = {row["who"] for row in train} - {None}
    notes = {(row["note"] or "").strip(".").lower() for row in train} - {""}
    for row in evaluation:
        verdicts = {
            "entity-overlap": row["who"] in people,
            "near-duplicate": (row["note"] or "").strip(".").lower() in notes,
            "evaluation-before-cut": row["p"] is not None and row["p"] < UNTIL,
        }
        expected |= {(rule, row["id"]) for rule, broken in verdicts.items() if broken}
    assert found(checked(train, evaluation)) == expected


@SETTINGS
@given(numbered(0), numbered(100), st.randoms(use_true_random=False))
def test_the_order_and_the_chunks_of_rows_change_nothing(train: list[Row], evaluation: list[Row], random: Any) -> None:
    report = checked(train, evaluation)
    again = checked(random.sample(train, len(train)), random.sample(evaluation, len(evaluation)), shuffled=True)
    assert (report.findings, report.rows) == (again.findings, again.rows)


@SETTINGS
@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=20))
def test_texts_folded_together_are_folded_as_each_alone(texts: list[str | None]) -> None:
    def alone(text: str) -> str:
        normal = unicodedata.normalize("NFKC", text.replace("\n", " ")).casefold()
        return unicodedata.normalize("NFKC", normal)

    column = pa.chunked_array([pa.array(texts, pa.large_string())])
    assert folded(column).to_pylist() == [None if text is None else alone(text) for text in texts]
