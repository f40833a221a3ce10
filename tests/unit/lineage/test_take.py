from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.files import hash_file
from snapline.lineage.manifest import decode_manifest
from snapline.lineage.objects import ObjectStore
from snapline.lineage.snapshot import BucketChange, BucketCount, Comparison, Manifest, Series, Snapshot
from snapline.lineage.take import compare, rows, take

BLAKE3 = BulkAlgorithm.BLAKE3
DAY = timedelta(days=1)
START = datetime(2013, 1, 1, tzinfo=UTC)
NOW = datetime(2013, 6, 1, 12, tzinfo=UTC)
WINDOW = Cut(since=START, until=START + 3 * DAY)


class Trips:
    """A source with a known column that a test edits, and the snapshots taken of it."""

    def __init__(self, folder: Path, known: str | None = "seen") -> None:
        self.path = folder / "trips.parquet"
        self.objects = ObjectStore(folder / "objects", BLAKE3)
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
        snapshot = take(self.series, cut, self.objects, NOW)
        return snapshot, decode_manifest(self.objects.read(snapshot.manifest))

    def compare(self, taken: tuple[Snapshot, Manifest]) -> Comparison:
        self.write()
        return compare(*taken, BLAKE3)[0]


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
    assert manifest.files == (hash_file(trips.path.parent, "trips.parquet", BLAKE3),)
    assert trips.take()[0] == snapshot


def test_the_window_is_half_open_and_the_as_of_instant_closed(trips):
    snapshot, manifest = trips.take(Cut(since=START + DAY / 2, until=START + 2 * DAY, as_of=START + 2 * DAY))
    assert rows(snapshot, manifest, BLAKE3)["id"].to_pylist() == [1, 2]
    assert manifest.left_out == (BucketCount(label="2013-01-02", rows=1),)
    assert trips.compare((snapshot, manifest)) == Comparison()


def test_without_a_known_column_there_is_no_as_of(timeless):
    snapshot, _ = timeless.take()
    assert snapshot.cut.as_of is None
    with pytest.raises(DefinitionError, match="has no known column"):
        timeless.take(Cut(since=START, until=NOW, as_of=NOW))


def test_a_window_that_runs_backwards_is_refused():
    with pytest.raises(ValidationError, match="the window is empty"):
        Cut(since=NOW, until=NOW)


def test_a_window_without_rows_is_a_snapshot_of_the_columns(trips):
    snapshot, manifest = trips.take(Cut(since=START - 9 * DAY, until=START))
    assert (snapshot.rows, snapshot.buckets, len(manifest.columns)) == (0, 0, 4)
    assert rows(snapshot, manifest, BLAKE3).column_names == ["at", "seen", "id", "delay"]
    assert not trips.compare((snapshot, manifest)).restated


def test_the_algorithm_is_in_the_name_and_in_every_digest(trips):
    blake3, _ = trips.take()
    trips.objects = ObjectStore(trips.path.parent / "others", BulkAlgorithm.SHA256)
    sha256, manifest = trips.take()
    assert (blake3.digest[:15], sha256.digest[:15]) == ("blake3-rows-v1:", "sha256-rows-v1:")
    assert rows(sha256, manifest, BulkAlgorithm.SHA256).num_rows == 6


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
    assert trips.compare(taken) == Comparison()
    _, files = compare(*taken, BLAKE3)
    assert files == (hash_file(trips.path.parent, "trips.parquet", BLAKE3),)


def test_a_corrected_row_changes_its_bucket(trips):
    taken = trips.take()
    trips.rows[3]["delay"] = 1000
    assert trips.compare(taken) == Comparison(
        changed=(BucketChange(label="2013-01-02", rows_then=2, rows_now=2),), delta_rows=2
    )


def test_a_row_that_vanished_changes_its_bucket(trips):
    taken = trips.take()
    del trips.rows[0], trips.rows[0]
    comparison = trips.compare(taken)
    assert comparison.changed == (BucketChange(label="2013-01-01", rows_then=2, rows_now=0),)
    assert (comparison.late, comparison.delta_rows) == ((), 2)


def test_a_row_known_after_the_cut_is_late_and_changes_nothing(trips):
    taken = trips.take()
    late = {"at": START + DAY, "seen": NOW + timedelta(microseconds=1), "id": 50, "delay": 0}
    trips.rows += [late, dict(late, id=51), dict(late, at=START, id=52)]
    comparison = trips.compare(taken)
    assert comparison.changed == ()
    assert [(change.label, change.rows_now) for change in comparison.late] == [("2013-01-01", 1), ("2013-01-02", 2)]
    assert (comparison.delta_rows, comparison.restated) == (3, True)
    assert rows(*taken, BLAKE3).num_rows == 6


def test_a_row_written_late_but_said_to_be_known_before_changes_its_bucket(trips):
    taken = trips.take()
    trips.rows.append({"at": START + DAY, "seen": NOW, "id": 50, "delay": 0})
    comparison = trips.compare(taken)
    assert comparison.changed == (BucketChange(label="2013-01-02", rows_then=2, rows_now=3),)


def test_a_bucket_that_had_no_members_changes_when_it_gets_some(trips):
    taken = trips.take(Cut(since=START - 9 * DAY, until=START + DAY))
    trips.rows.append({"at": START - 2 * DAY, "seen": START, "id": 50, "delay": 0})
    assert trips.compare(taken).changed == (BucketChange(label="2012-12-30", rows_then=0, rows_now=1),)


def test_without_a_known_column_every_difference_is_a_change(timeless):
    taken = timeless.take()
    timeless.rows.append({"at": START, "seen": NOW + DAY, "id": 50, "delay": 0})
    comparison = timeless.compare(taken)
    assert comparison.changed == (BucketChange(label="2013-01-01", rows_then=2, rows_now=3),)
    assert comparison.late == ()


def test_another_schema_changes_every_bucket(trips):
    taken = trips.take()
    table = pq.read_table(trips.path)
    pq.write_table(table.set_column(3, "delay", table["delay"].cast(pa.int32())), trips.path)
    comparison, _ = compare(*taken, BLAKE3)
    assert [change.label for change in comparison.changed] == ["2013-01-01", "2013-01-02", "2013-01-03"]
    assert comparison.delta_rows == 6


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
    table = rows(*trips.take(), BLAKE3)
    assert table["id"].to_pylist() == [0, 1, 2, 3, 4, 5]
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")


def test_rows_that_are_no_longer_there_are_refused_by_bucket(trips):
    taken = trips.take()
    trips.rows[5]["delay"] = 0
    trips.write()
    with pytest.raises(ConflictError, match=rf"trips@{taken[0].id[:12]}; these differ: 2013-01-03$"):
        rows(*taken, BLAKE3)


def test_a_long_list_of_buckets_is_cut_short(tmp_path):
    path = tmp_path / "days.parquet"
    days = [date(2013, 1, 1) + timedelta(days=number) for number in range(15)]
    pq.write_table(pa.table({"day": days, "id": list(range(15))}), path)
    series = Series(name="days", source=str(path), time="day", known=None, key="id", bucket=Bucket.DAY)
    objects = ObjectStore(tmp_path / "objects", BLAKE3)
    snapshot = take(series, Cut(since=START, until=NOW), objects, NOW)
    pq.write_table(pa.table({"day": days, "id": list(range(1, 16))}), path)
    with pytest.raises(ConflictError, match="2013-01-10 and 5 more"):
        rows(snapshot, decode_manifest(objects.read(snapshot.manifest)), BLAKE3)


# -- sources that cannot be cut ----------------------------------------------------------------------------------------


def test_nulls_anywhere_in_the_source_are_refused_with_their_count(trips):
    trips.rows[0]["at"] = None
    trips.rows += [{"at": NOW + DAY, "seen": None, "id": None, "delay": 0}] * 2
    trips.write()
    with pytest.raises(DefinitionError, match="1 in 'at', 2 in 'seen', 2 in 'id'"):
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
    for again in (trips.take, lambda: compare(*taken, BLAKE3), lambda: rows(*taken, BLAKE3)):
        with pytest.raises(NotFoundError, match=r"trips\.parquet"):
            again()


def test_one_column_may_play_several_parts(tmp_path):
    path = tmp_path / "days.parquet"
    pq.write_table(pa.table({"day": [date(2013, 1, 2), date(2013, 1, 1)]}), path)
    series = Series(name="days", source=str(path), time="day", known="day", key="day", bucket=Bucket.WEEK)
    snapshot = take(series, Cut(since=START, until=NOW), ObjectStore(tmp_path / "objects", BLAKE3), NOW)
    assert (snapshot.rows, snapshot.buckets) == (2, 1)
