from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recording_source import RecordingSource

from snapline.lineage.comparing import Compared, compare
from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import ConflictError
from snapline.lineage.manifest import decode_manifest
from snapline.lineage.objects import ObjectStore
from snapline.lineage.snapshot import BucketChange, Manifest, Series, Snapshot
from snapline.lineage.sources.parquet import ParquetSource
from snapline.lineage.take import Archive, take

DAY = timedelta(days=1)
START = datetime(2013, 1, 1, tzinfo=UTC)
NOW = datetime(2013, 6, 1, 12, tzinfo=UTC)
WINDOW = Cut(since=START, until=START + 5 * DAY)
SCHEMA = pa.schema(
    [("at", pa.timestamp("us", "UTC")), ("seen", pa.timestamp("us", "UTC")), ("id", pa.int64()), ("delay", pa.int64())]
)


class Days:
    """A folder with a file for each day, four rows a day."""

    def __init__(self, folder: Path, known: str | None = "seen") -> None:
        self.folder = folder / "days"
        self.folder.mkdir()
        self.archive = Archive(ObjectStore(folder / "objects", BulkAlgorithm.BLAKE3), "5a" * 32)
        self.series = Series(name="days", source=str(self.folder), time="at", known=known, key="id", bucket=Bucket.DAY)
        self.days: list[list[dict[str, Any]]] = [
            [self.row(day, 10 * day + number) for number in range(4)] for day in range(6)
        ]
        for day in range(6):
            self.write(day)

    def row(self, day: int, key: int, seen: datetime | None = None) -> dict[str, Any]:
        at = START + day * DAY + key % 10 * DAY / 10
        return {"at": at, "seen": seen or at, "id": key, "delay": key}

    def write(self, day: int) -> None:
        table = pa.Table.from_pylist(self.days[day], schema=SCHEMA)
        pq.write_table(table, self.folder / f"{day}.parquet", row_group_size=2)

    def take(self, cut: Cut = WINDOW) -> tuple[Snapshot, Manifest]:
        snapshot = take(self.series, cut, self.archive, NOW)
        return snapshot, decode_manifest(self.archive.objects.read(snapshot.manifest))

    def compare(self, taken: tuple[Snapshot, Manifest], full: bool = False) -> tuple[Compared, RecordingSource]:
        source = RecordingSource(ParquetSource(self.folder, BulkAlgorithm.BLAKE3))
        return compare(*taken, self.archive, full, source), source


@pytest.fixture
def days(tmp_path: Path) -> Days:
    return Days(tmp_path)


def test_a_source_that_did_not_move_is_not_scanned(days: Days) -> None:
    found, source = days.compare(days.take())
    assert not found.comparison.restated
    assert (source.scanned, source.hashed) == ([], [])
    assert found.comparison.newer == 4


def test_only_the_day_whose_file_changed_is_read(days: Days) -> None:
    taken = days.take()
    days.days[2][1]["delay"] = 99
    days.write(2)
    found, source = days.compare(taken)
    assert found.comparison.changed == (BucketChange(label="2013-01-03", rows_then=4, rows_now=4, corrected=1),)
    assert set(source.scanned) == set(source.hashed) == {"2.parquet"}


def test_a_file_that_changed_outside_the_window_costs_no_bucket(days: Days) -> None:
    taken = days.take()
    days.days[5].append(days.row(5, 58))
    days.write(5)
    found, source = days.compare(taken)
    assert (found.comparison.restated, found.comparison.newer) == (False, 5)
    assert source.scanned == ["5.parquet"]  # its times alone, to place it


def test_a_full_comparison_reads_everything_inside_the_window(days: Days) -> None:
    found, source = days.compare(days.take(), full=True)
    assert not found.comparison.restated
    assert set(source.hashed) == {f"{day}.parquet" for day in range(6)}
    assert {f"{day}.parquet" for day in range(5)} <= set(source.scanned)


def test_every_kind_is_counted_where_it_lies(days: Days) -> None:
    taken = days.take()
    days.days[0][0]["delay"] = 99
    days.days[1].pop()
    days.days[2] += [days.row(2, 28, NOW + DAY), days.row(2, 29, NOW - DAY)]
    days.days[3].append(days.row(3, 30, NOW + DAY) | {"delay": 7})
    for day in range(4):
        days.write(day)
    found, _ = days.compare(taken)
    assert found.comparison.changed == (
        BucketChange(label="2013-01-01", rows_then=4, rows_now=4, corrected=1),
        BucketChange(label="2013-01-02", rows_then=4, rows_now=3, deleted=1),
        BucketChange(label="2013-01-03", rows_then=4, rows_now=5, appended=1, late=1),
        BucketChange(label="2013-01-04", rows_then=4, rows_now=4, corrected=1),
    )
    assert found.comparison.delta_rows == 5


def test_a_row_that_moved_to_another_day_is_one_correction(days: Days) -> None:
    taken = days.take()
    moved = days.days[1].pop()
    days.days[2].append(moved | {"at": moved["at"] + DAY})
    days.write(1)
    days.write(2)
    comparison = days.compare(taken)[0].comparison
    assert (comparison.total("corrected"), comparison.delta_rows) == (1, 1)
    assert [change.rows_now for change in comparison.changed] == [3, 5]


def test_without_a_known_column_every_new_key_is_late(tmp_path: Path) -> None:
    days = Days(tmp_path, known=None)
    taken = days.take()
    days.days[2].append(days.row(2, 28))
    days.write(2)
    changed = days.compare(taken)[0].comparison.changed
    assert changed == (BucketChange(label="2013-01-03", rows_then=4, rows_now=5, late=1),)


def test_rows_left_out_at_the_take_are_never_called_late(days: Days) -> None:
    days.days[2].append(days.row(2, 28, NOW + DAY))
    days.write(2)
    taken = days.take()
    days.days[2].append(days.row(2, 29, NOW + 2 * DAY))
    days.days[2][0]["delay"] = 99
    days.write(2)
    (change,) = days.compare(taken)[0].comparison.changed
    assert (change.late, change.corrected, change.delta) == (1, 1, 2)


def test_a_file_that_is_gone_takes_its_rows_with_it(days: Days) -> None:
    taken = days.take()
    (days.folder / "3.parquet").unlink()
    found, source = days.compare(taken)
    assert found.comparison.changed == (BucketChange(label="2013-01-04", rows_then=4, rows_now=0, deleted=4),)
    assert source.scanned == []


class Meddling(RecordingSource):
    """A source that somebody writes to after its first file was scanned."""

    def __init__(self, days: Days) -> None:
        super().__init__(ParquetSource(days.folder, BulkAlgorithm.BLAKE3))
        self.days = days

    def scan(self, commit, name, time, window, columns):
        yield from super().scan(commit, name, time, window, columns)
        self.days.days[4][0]["delay"] += 1
        self.days.write(4)


def test_a_source_that_changes_while_it_is_compared_is_refused(days: Days) -> None:
    taken = days.take()
    days.days[2][1]["delay"] = 99
    days.write(2)
    with pytest.raises(ConflictError, match=r"changed while it was read: 4\.parquet"):
        compare(*taken, days.archive, source=Meddling(days))


def test_a_deleted_member_is_seen_though_the_columns_changed_too(days: Days) -> None:
    taken = days.take()
    del days.days[1][2]
    days.days[3].append(days.row(3, 38, NOW + DAY))
    for day, rows in enumerate(days.days):
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        pq.write_table(table.append_column("note", pa.nulls(len(rows), pa.string())), days.folder / f"{day}.parquet")
    comparison = days.compare(taken)[0].comparison
    assert comparison.columns == ("column 'note' was missing, is string",)
    assert comparison.changed == (BucketChange(label="2013-01-02", rows_then=4, rows_now=3, deleted=1),)


def test_keys_of_another_type_are_not_taken_for_deletions(days: Days) -> None:
    taken = days.take()
    schema = SCHEMA.set(2, pa.field("id", pa.int32()))
    for day, rows in enumerate(days.days):
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), days.folder / f"{day}.parquet")
    comparison = days.compare(taken)[0].comparison
    assert (comparison.columns, comparison.changed) == (("column 'id' was int64, is int32",), ())
