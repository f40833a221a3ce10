from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from snapline.lineage.comparing import compare
from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.files import hash_file
from snapline.lineage.manifest import decode_manifest
from snapline.lineage.objects import ObjectStore
from snapline.lineage.snapshot import BucketChange, BucketCount, Comparison, Manifest, Series, Snapshot
from snapline.lineage.take import Archive, rows, take

BLAKE3 = BulkAlgorithm.BLAKE3
DAY = timedelta(days=1)
START = datetime(2013, 1, 1, tzinfo=UTC)
SALT = "5a" * 32
NOW = datetime(2013, 6, 1, 12, tzinfo=UTC)
WINDOW = Cut(since=START, until=START + 3 * DAY)


class Trips:
    """A source with a known column that a test edits, and the snapshots taken of it."""

    def __init__(self, folder: Path, known: str | None = "seen") -> None:
        self.path = folder / "trips.parquet"
        self.archive = Archive(ObjectStore(folder / "objects", BLAKE3), SALT)
        self.series = Series(name="trips", source=str(self.path), time="at", known=known, key="id", bucket=Bucket.DAY)
        self.rows = [
            {"at": START + number * DAY / 2, "seen": START + number * DAY, "id": number, "delay": number}
            for number in range(8)
        ]
        self.write()

    def write(self) -> None:
        schema = pa.schema(
            [
                ("at", pa.timestamp("us", "UTC")),
                ("seen", pa.timestamp("us", "UTC")),
                ("id", pa.int64()),
                ("delay", pa.int64()),
            ]
        )
        pq.write_table(pa.Table.from_pylist(self.rows, schema=schema), self.path)

    def take(self, cut: Cut = WINDOW) -> tuple[Snapshot, Manifest]:
        snapshot = take(self.series, cut, self.archive, NOW)
        return snapshot, decode_manifest(self.archive.objects.read(snapshot.manifest))

    def compare(self, taken: tuple[Snapshot, Manifest]) -> Comparison:
        self.write()
        quick = compare(*taken, self.archive).comparison
        assert compare(*taken, self.archive, full=True).comparison == quick
        return quick


@pytest.fixture
def trips(tmp_path: Path) -> Trips:
    return Trips(tmp_path)


@pytest.fixture
def timeless(tmp_path: Path) -> Trips:
    """The same trips, in a series without a known column."""
    return Trips(tmp_path, known=None)


def test_a_take_says_what_was_cut(trips):
    snapshot, manifest = trips.take()
    assert (snapshot.rows, snapshot.buckets, snapshot.taken_at) == (6, 3, NOW)
    assert snapshot.cut == Cut(since=START, until=START + 3 * DAY, as_of=NOW)
    assert [(bucket.label, bucket.rows) for bucket in manifest.buckets] == [
        ("2013-01-01", 2),
        ("2013-01-02", 2),
        ("2013-01-03", 2),
    ]
    (file,) = manifest.files
    assert (file.path, file.first, file.last, file.later) == ("trips.parquet", "2013-01-01", "2013-01-03", 2)
    assert file.hexdigest == hash_file(trips.path.parent, "trips.parquet", BLAKE3).hexdigest
    assert trips.take()[0] == snapshot


def test_the_window_is_half_open_and_the_as_of_instant_closed(trips):
    snapshot, manifest = trips.take(Cut(since=START + DAY / 2, until=START + 2 * DAY, as_of=START + 2 * DAY))
    assert rows(snapshot, manifest, trips.archive)["id"].to_pylist() == [1, 2]
    assert manifest.left_out == (BucketCount(label="2013-01-02", rows=1),)
    assert not trips.compare((snapshot, manifest)).restated


def test_without_a_known_column_there_is_no_as_of(timeless):
    snapshot, _ = timeless.take()
    assert snapshot.cut.as_of is None
    with pytest.raises(DefinitionError, match="no known column, and its source keeps no history"):
        timeless.take(Cut(since=START, until=NOW, as_of=NOW))


def test_a_window_that_runs_backwards_is_refused():
    with pytest.raises(ValidationError, match="the window is empty"):
        Cut(since=NOW, until=NOW)


def test_a_window_without_rows_is_a_snapshot_of_the_columns(trips):
    snapshot, manifest = trips.take(Cut(since=START - 9 * DAY, until=START))
    assert (snapshot.rows, snapshot.buckets, len(manifest.columns)) == (0, 0, 4)
    assert rows(snapshot, manifest, trips.archive).column_names == ["at", "seen", "id", "delay"]
    assert not trips.compare((snapshot, manifest)).restated


def test_the_algorithm_is_in_the_name_and_in_every_digest(trips):
    blake3, _ = trips.take()
    trips.archive = Archive(ObjectStore(trips.path.parent / "others", BulkAlgorithm.SHA256), SALT)
    sha256, manifest = trips.take()
    assert (blake3.digest[:15], sha256.digest[:15]) == ("blake3-rows-v2:", "sha256-rows-v2:")
    assert rows(sha256, manifest, trips.archive).num_rows == 6


def test_two_sources_of_the_same_rows_share_their_digest_and_not_their_id(trips, tmp_path):
    (tmp_path / "copy").mkdir()
    copy = Trips(tmp_path / "copy")
    (original, _), (copied, _) = trips.take(), copy.take()
    assert copied.digest == original.digest
    assert copied.id != original.id


# -- comparing ---------------------------------------------------------------------------------------------------------


def test_a_source_that_only_grew_outside_the_cut_is_the_same(trips):
    taken = trips.take()
    trips.rows.append({"at": START + 3 * DAY, "seen": NOW, "id": 99, "delay": 0})
    trips.rows.append({"at": START - timedelta(microseconds=1), "seen": NOW, "id": 98, "delay": 0})
    trips.rows.reverse()
    comparison = trips.compare(taken)
    assert (comparison.changed, comparison.columns, comparison.newer) == ((), (), 3)


def test_a_corrected_row_changes_its_bucket(trips):
    taken = trips.take()
    trips.rows[3]["delay"] = 1000
    comparison = trips.compare(taken)
    assert comparison.changed == (BucketChange(label="2013-01-02", rows_then=2, rows_now=2, corrected=1),)
    assert comparison.delta_rows == 1


def test_a_row_that_vanished_changes_its_bucket(trips):
    taken = trips.take()
    del trips.rows[0], trips.rows[0]
    comparison = trips.compare(taken)
    assert comparison.changed == (BucketChange(label="2013-01-01", rows_then=2, rows_now=0, deleted=2),)
    assert (comparison.total("late"), comparison.delta_rows) == (0, 2)


def test_a_row_known_after_the_cut_is_late_and_no_member(trips):
    taken = trips.take()
    late = {"at": START + DAY, "seen": NOW + timedelta(microseconds=1), "id": 50, "delay": 0}
    trips.rows += [late, dict(late, id=51), dict(late, at=START, id=52)]
    comparison = trips.compare(taken)
    assert comparison.changed == (
        BucketChange(label="2013-01-01", rows_then=2, rows_now=2, late=1),
        BucketChange(label="2013-01-02", rows_then=2, rows_now=2, late=2),
    )
    assert (comparison.delta_rows, comparison.restated) == (3, True)
    assert rows(*taken, trips.archive).num_rows == 6


def test_a_row_written_late_but_said_to_be_known_before_changes_its_bucket(trips):
    taken = trips.take()
    trips.rows.append({"at": START + DAY, "seen": NOW, "id": 50, "delay": 0})
    comparison = trips.compare(taken)
    assert comparison.changed == (BucketChange(label="2013-01-02", rows_then=2, rows_now=3, appended=1),)


def test_a_bucket_that_had_no_members_changes_when_it_gets_some(trips):
    taken = trips.take(Cut(since=START - 9 * DAY, until=START + DAY))
    trips.rows.append({"at": START - 2 * DAY, "seen": START, "id": 50, "delay": 0})
    assert trips.compare(taken).changed == (BucketChange(label="2012-12-30", rows_then=0, rows_now=1, appended=1),)


def test_without_a_known_column_every_new_row_is_late(timeless):
    taken = timeless.take()
    timeless.rows.append({"at": START, "seen": NOW + DAY, "id": 50, "delay": 0})
    comparison = timeless.compare(taken)
    assert comparison.changed == (BucketChange(label="2013-01-01", rows_then=2, rows_now=3, late=1),)


def test_a_row_corrected_with_a_new_known_time_is_a_correction(trips):
    taken = trips.take()
    trips.rows[3] |= {"delay": 1000, "seen": NOW + DAY}
    comparison = trips.compare(taken)
    assert comparison.changed == (BucketChange(label="2013-01-02", rows_then=2, rows_now=1, corrected=1),)


def test_a_row_that_moved_to_another_bucket_is_a_correction_there(trips):
    taken = trips.take()
    trips.rows[0]["at"] = START + 2 * DAY
    comparison = trips.compare(taken)
    assert [(change.label, change.delta) for change in comparison.changed] == [("2013-01-01", 0), ("2013-01-03", 1)]
    assert comparison.total("corrected") == 1


def test_columns_that_differ_are_named_and_rows_not_paired(trips):
    taken = trips.take()
    table = pq.read_table(trips.path)
    pq.write_table(table.set_column(3, "delay", table["delay"].cast(pa.int32())), trips.path)
    comparison = compare(*taken, trips.archive).comparison
    assert comparison.columns == ("column 'delay' was int64, is int32",)
    assert (comparison.changed, comparison.restated) == ((), True)


def test_putting_the_rows_back_makes_it_the_same_again(trips):
    taken = trips.take()
    before = dict(trips.rows[0])
    trips.rows[0]["delay"] = -1
    assert trips.compare(taken).restated
    trips.rows[0] = before
    assert not trips.compare(taken).restated


# -- reading back ------------------------------------------------------------------------------------------------------


def test_rows_come_back_in_key_order_within_buckets(trips):
    trips.rows.reverse()
    trips.write()
    table = rows(*trips.take(), trips.archive)
    assert table["id"].to_pylist() == [0, 1, 2, 3, 4, 5]
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")


def test_rows_that_are_no_longer_there_are_refused_by_bucket(trips):
    taken = trips.take()
    trips.rows[5]["delay"] = 0
    trips.write()
    with pytest.raises(ConflictError, match=rf"trips@{taken[0].id[:12]}; these differ: 2013-01-03$"):
        rows(*taken, trips.archive)


def test_a_long_list_of_buckets_is_cut_short(tmp_path):
    path = tmp_path / "days.parquet"
    days = [date(2013, 1, 1) + timedelta(days=number) for number in range(15)]
    pq.write_table(pa.table({"day": days, "id": list(range(15))}), path)
    series = Series(name="days", source=str(path), time="day", known=None, key="id", bucket=Bucket.DAY)
    archive = Archive(ObjectStore(tmp_path / "objects", BLAKE3), SALT)
    snapshot = take(series, Cut(since=START, until=NOW), archive, NOW)
    pq.write_table(pa.table({"day": days, "id": list(range(1, 16))}), path)
    with pytest.raises(ConflictError, match="2013-01-10 and 5 more"):
        rows(snapshot, decode_manifest(archive.objects.read(snapshot.manifest)), archive)


# -- sources that cannot be cut ----------------------------------------------------------------------------------------


def test_null_times_anywhere_and_other_nulls_in_the_window_are_refused_with_their_count(trips):
    trips.rows[0]["at"] = None
    trips.rows += [{"at": START, "seen": None, "id": None, "delay": 0}] * 2
    trips.write()
    with pytest.raises(DefinitionError, match="1 in 'at', 2 in 'id', 2 in 'seen'"):
        trips.take()


@pytest.mark.parametrize("column", ["at", "seen"])
def test_times_as_text_are_refused_with_a_hint(trips, column):
    table = pq.read_table(trips.path)
    text = table[column].cast(pa.string())
    pq.write_table(table.set_column(table.column_names.index(column), column, text), trips.path)
    with pytest.raises(DefinitionError, match=f"'{column}' must hold timestamps or dates") as caught:
        trips.take()
    assert "Cast" in caught.value.hint


def test_a_vanished_source_is_not_found(trips):
    taken = trips.take()
    trips.path.unlink()
    for again in (trips.take, lambda: compare(*taken, trips.archive), lambda: rows(*taken, trips.archive)):
        with pytest.raises(NotFoundError, match=r"trips\.parquet"):
            again()


def test_one_column_may_play_several_parts(tmp_path):
    path = tmp_path / "days.parquet"
    pq.write_table(pa.table({"day": [date(2013, 1, 2), date(2013, 1, 1)]}), path)
    series = Series(name="days", source=str(path), time="day", known="day", key="day", bucket=Bucket.WEEK)
    snapshot = take(series, Cut(since=START, until=NOW), Archive(ObjectStore(tmp_path / "objects", BLAKE3), SALT), NOW)
    assert (snapshot.rows, snapshot.buckets) == (2, 1)


# -- two time axes -----------------------------------------------------------------------------------------------------

PERIODS = pa.schema(
    [
        *((name, pa.timestamp("us", "UTC")) for name in ("at", "seen", "gone")),
        ("id", pa.int64()),
        ("delay", pa.int64()),
    ]
)


class Periods:
    """A source that keeps every version of a row, with when it became known and when it stopped being true."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "periods.parquet"
        self.archive = Archive(ObjectStore(folder / "objects", BLAKE3), SALT)
        self.series = Series(
            name="periods",
            source=str(self.path),
            time="at",
            known="seen",
            known_until="gone",
            key="id",
            bucket=Bucket.DAY,
        )
        self.rows = [{"at": START, "seen": START, "gone": None, "id": n, "delay": n} for n in range(4)]

    def correct(self, identifier: int, when: datetime) -> None:
        (row,) = (row for row in self.rows if row["id"] == identifier and row["gone"] is None)
        self.rows.append(row | {"seen": when, "delay": row["delay"] + 100})
        row["gone"] = when

    def take(self, as_of: datetime) -> tuple[Snapshot, Manifest]:
        pq.write_table(pa.Table.from_pylist(self.rows, schema=PERIODS), self.path)
        snapshot = take(self.series, Cut(since=START, until=START + DAY, as_of=as_of), self.archive, NOW)
        return snapshot, decode_manifest(self.archive.objects.read(snapshot.manifest))


def test_a_source_with_both_known_columns_repeats_a_read_exactly(tmp_path):
    periods = Periods(tmp_path)
    before = periods.take(START + DAY)
    periods.correct(2, START + 2 * DAY)
    again, _ = periods.take(START + DAY)
    assert again.digest == before[0].digest
    after = periods.take(START + 2 * DAY)
    assert after[0].digest != before[0].digest
    assert rows(*after, periods.archive)["delay"].to_pylist() == [0, 1, 102, 3]
    assert rows(*before, periods.archive)["delay"].to_pylist() == [0, 1, 2, 3]
    comparison = compare(*before, periods.archive).comparison
    assert [(change.corrected, change.late, change.deleted) for change in comparison.changed] == [(1, 0, 0)]
