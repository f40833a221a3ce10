"""The benches compare like with like; how long things take is for people to read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from snapline.cli.benchmarks import digests, impact, memory, reverify, tables
from snapline.cli.benchmarks.measuring import Row


def test_every_digest_is_compared_with_duckdb_on_the_same_rows() -> None:
    rows = digests.measure(2000)
    baseline = rows[0].value
    assert rows[0].what.startswith("DuckDB sum(md5")
    assert all(row.ratio == row.value / baseline for row in rows)
    aimed = [row.what for row in rows if row.met is not None]
    assert aimed == ["Snapline, rows shuffled", "Snapline, rows in key order"]


def test_shuffled_rows_have_the_digest_of_ordered_ones() -> None:
    (table,) = tables.ordered(3000)
    assert digests._digest(tables.shuffled(table)) == digests._digest(table)
    (scattered,) = tables.scattered(3000)
    assert sorted(scattered["key"].to_pylist()) == list(range(3000))


def test_reverifying_finds_the_one_corrected_row_and_reports_a_ratio() -> None:
    full, part, ratio = reverify.measure(5000)
    assert ratio.value == full.value / part.value
    assert ratio.met is (ratio.value >= reverify.TARGET)


def test_impact_reaches_what_it_says() -> None:
    (row,) = impact.measure(100, 1000)
    assert row.what == "100 models, 1,000 edges: 99 affected"


def test_memory_is_that_of_a_process_of_its_own() -> None:
    peak, rate = memory.measure(2000, 2000)[:2]
    assert 0.01 < peak.value < 4
    assert rate.unit == "Mrows/s"


@pytest.mark.parametrize("met", [True, False, None])
def test_a_row_says_whether_its_target_was_met(tmp_path: Path, met: bool | None) -> None:
    row = Row("a", "b", 1.0, "s", 2.0, "c", "" if met is None else "under 3 s", met)
    told = {True: "met", False: "missed", None: "2.00x c"}[met]
    assert told in row.line()
    assert json.loads(json.dumps(row.document()))["met"] is met
