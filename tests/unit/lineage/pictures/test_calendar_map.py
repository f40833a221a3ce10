from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest
from histories import START, snapshot

from snapline.lineage.cut import Bucket, bucket_label
from snapline.lineage.pictures.calendar_map import CELLS, CalendarMap, Cell, calendar_map, svg
from snapline.lineage.snapshot import BucketChange, BucketDigest, Commit, Comparison, Manifest

STEPS = {Bucket.HOUR: timedelta(hours=1), Bucket.DAY: timedelta(days=1), Bucket.WEEK: timedelta(days=7)}
STEPS |= {Bucket.MONTH: timedelta(days=31), Bucket.YEAR: timedelta(days=366)}


def manifest(unit: Bucket, count: int, start: datetime = datetime(2012, 12, 31, tzinfo=UTC)) -> Manifest:
    labels = dict.fromkeys(bucket_label(start + n * STEPS[unit], unit) for n in range(count))
    if unit in (Bucket.MONTH, Bucket.YEAR):
        labels = dict.fromkeys(label[:7] + "-01" for label in labels)
    buckets = tuple(BucketDigest(label=label, rows=100, hexdigest="0" * 64) for label in labels)
    return Manifest(columns=(), buckets=buckets, files=())


def comparison(*changes: BucketChange) -> Comparison:
    return Comparison(changed=changes, commit=Commit(id="2"))


def corners(drawn: CalendarMap) -> list[tuple[str, ...]]:
    """Where each cell lies: corners of the rectangles, and starts of the paths."""
    root = ElementTree.fromstring(svg(drawn, 10_000))
    rects = [(rect.get("x", ""), rect.get("y", "")) for rect in root.iter("rect")]
    paths = [
        tuple(part.partition("h")[0].split()) for path in root.iter("path") for part in path.get("d", "").split("M")[1:]
    ]
    return [*rects, *paths]


@pytest.mark.parametrize("unit", list(Bucket))
def test_every_bucket_has_a_place_of_its_own_inside(unit: Bucket) -> None:
    drawn = calendar_map(snapshot(bucket=unit), manifest(unit, 400), None, None)
    found = corners(drawn)
    assert len(found) == len(set(found)) == len(drawn.cells)
    root = ElementTree.fromstring(svg(drawn, 0))
    assert all(float(x) < float(root.get("width", "0")) and float(y) < float(root.get("height", "0")) for x, y in found)


@pytest.mark.parametrize(
    ("unit", "count", "shown"),
    [
        (Bucket.HOUR, 700, Bucket.HOUR),
        (Bucket.HOUR, 24 * 300, Bucket.DAY),
        (Bucket.HOUR, 24 * 1000, Bucket.WEEK),
        (Bucket.DAY, CELLS, Bucket.DAY),
        (Bucket.DAY, CELLS + 1, Bucket.WEEK),
        (Bucket.DAY, 20_000, Bucket.MONTH),
    ],
)
def test_too_many_buckets_are_shown_in_a_wider_unit(unit: Bucket, count: int, shown: Bucket) -> None:
    drawn = calendar_map(snapshot(bucket=unit), manifest(unit, count), None, None)
    assert drawn.unit is shown
    assert len(drawn.cells) <= CELLS
    assert sum(cell.rows for cell in drawn.cells) == 100 * count


def test_counts_of_a_wider_unit_are_added_up() -> None:
    changes = (
        BucketChange(label="2013-01-01", rows_then=100, rows_now=101, late=1, corrected=4),
        BucketChange(label="2013-01-02", rows_then=100, rows_now=98, deleted=2, corrected=1),
    )
    drawn = calendar_map(snapshot(), manifest(Bucket.DAY, 1000), comparison(*changes), START)
    assert (drawn.unit, drawn.changed) == (Bucket.WEEK, 8)
    assert next(cell.changed for cell in drawn.cells if any(cell.changed)) == (0, 5, 2, 1)


@pytest.mark.parametrize(("rows", "changed", "level"), [
    (100, 0, 0), (1000, 1, 1), (100, 1, 1), (100, 2, 2), (100, 5, 2), (100, 6, 3), (100, 20, 3), (100, 21, 4), (0, 1, 4)
])  # fmt: skip
def test_the_colour_tells_the_share_that_changed(rows: int, changed: int, level: int) -> None:
    assert Cell(START, rows, (0, changed, 0, 0)).level == level


def test_a_changed_cell_says_what_changed() -> None:
    changes = [BucketChange(label=f"2013-01-0{n}", rows_then=100, rows_now=100, corrected=n, late=1) for n in (1, 2, 3)]
    drawn = calendar_map(snapshot(), manifest(Bucket.DAY, 10), comparison(*changes), START)
    root = ElementTree.fromstring(svg(drawn, 2))
    assert [rect[0].text for rect in root.iter("rect")] == [
        "2013-01-02: 100 rows; 2 corrected, 1 late",
        "2013-01-03: 100 rows; 3 corrected, 1 late",
    ]
    assert {path.get("class") for path in root.iter("path")} == {"l0", "l2"}


def test_a_bucket_that_was_not_there_then_is_drawn() -> None:
    change = BucketChange(label="2014-05-05", rows_then=0, rows_now=3, appended=3)
    drawn = calendar_map(snapshot(), manifest(Bucket.DAY, 3), comparison(change), START)
    assert (drawn.cells[-1].rows, drawn.cells[-1].level) == (0, 4)


def test_never_compared_looks_unlike_unchanged() -> None:
    never = svg(calendar_map(snapshot(), manifest(Bucket.DAY, 3), None, None), 10)
    unchanged = svg(calendar_map(snapshot(), manifest(Bucket.DAY, 3), comparison(), START), 10)
    assert 'class="l0 unknown"' in never
    assert 'class="l0"' in unchanged


def test_a_snapshot_without_rows_is_an_empty_calendar() -> None:
    drawn = calendar_map(snapshot(), manifest(Bucket.DAY, 0), None, None)
    assert drawn.cells == ()
    assert ElementTree.fromstring(svg(drawn, 10)).get("width")
