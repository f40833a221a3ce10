"""A cut of a source with history gives the same digest whenever it is evaluated, unless rows were erased."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.erasure.tombstones import Tombstones
from snapline.lineage.objects import ObjectStore
from snapline.lineage.rows.hashes import key_hashes
from snapline.lineage.snapshot import Series
from snapline.lineage.take import Archive, take

DAY = timedelta(days=1)
START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime(2030, 1, 1, tzinfo=UTC)
SALT = "5a" * 32
INSTANT = pa.timestamp("us", "UTC")
KEYS = st.integers(0, 9)
EDITS = st.lists(st.tuples(st.sampled_from(["add", "correct", "delete"]), KEYS), min_size=1, max_size=6)


def rows_of(table: dict[int, int]) -> pa.Table:
    keys = sorted(table)
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "at": pa.array([START + key * DAY / 4 for key in keys], INSTANT),
            "value": pa.array([table[key] for key in keys], pa.int64()),
        }
    )


def edited(table: dict[int, int], edits: list[tuple[str, int]]) -> list[dict[int, int]]:
    """Return every state that the edits lead through, one at a time."""
    states = []
    for what, key in edits:
        table = dict(table)
        if what == "delete":
            table.pop(key, None)
        else:
            table[key] = table.get(key, 0) + (100 if what == "correct" else 1)
        states.append(table)
    return states


@settings(max_examples=15)
@given(first=st.dictionaries(KEYS, st.integers(0, 9), min_size=1), edits=EDITS, erased=st.sets(KEYS, max_size=3))
def test_the_same_cut_of_a_delta_table_twice(
    first: dict[int, int], edits: list[tuple[str, int]], erased: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = str(Path(folder, "table"))
        series = Series(name="t", source=f"delta:{table}", time="at", known=None, key="id", bucket=Bucket.DAY)
        archive = Archive(ObjectStore(Path(folder, "objects"), BulkAlgorithm.BLAKE3), SALT)
        write_deltalake(table, rows_of(first))
        pinned = [take(series, _cut(_committed(table)), archive, NOW)]
        for state in edited(first, edits):
            write_deltalake(table, rows_of(state), mode="overwrite")
            pinned.append(take(series, _cut(_committed(table)), archive, NOW))
        for snapshot in pinned:
            again = take(series, snapshot.cut, archive, NOW + DAY)
            assert (again.digest, again.id, again.commit) == (snapshot.digest, snapshot.id, snapshot.commit)
            by_version = take(series, _cut(None), archive, NOW + DAY, version=snapshot.commit.id)
            assert by_version.digest == snapshot.digest
        hashes = key_hashes(pa.array(sorted(erased), pa.int64()), SALT)
        hashes.sort()
        without = Archive(archive.objects, SALT, Tombstones(("ab" * 32,), hashes, SALT))
        for snapshot, state in zip(pinned, [first, *edited(first, edits)], strict=True):
            cleaned = take(series, snapshot.cut, without, NOW + DAY)
            assert (cleaned.digest == snapshot.digest) is not bool(erased & state.keys())


def _cut(as_of: datetime | None) -> Cut:
    return Cut(since=START, until=START + 3 * DAY, as_of=as_of)


def _committed(table: str) -> datetime:
    """Return the instant of the newest version, as its log says."""
    return datetime.fromtimestamp(DeltaTable(table).history(1)[0]["timestamp"] / 1000, UTC)


@settings(max_examples=25)
@given(first=st.dictionaries(KEYS, st.integers(0, 9), min_size=1), edits=EDITS)
def test_the_same_cut_of_rows_that_say_when_they_hold(first: dict[int, int], edits: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "periods.parquet")
        series = Series(
            name="t", source=str(path), time="at", known="seen", known_until="gone", key="id", bucket=Bucket.DAY
        )
        archive = Archive(ObjectStore(Path(folder, "objects"), BulkAlgorithm.BLAKE3), SALT)
        history: list[dict[str, Any]] = []
        pinned = []
        states = [first, *edited(first, edits)]
        for step, (before, after) in enumerate(zip([{}, *states], states, strict=False)):
            _record(history, before, after, START + step * DAY)
            pq.write_table(pa.Table.from_pylist(history, schema=PERIODS), path)
            pinned.append(take(series, _cut(START + step * DAY), archive, NOW))
        for snapshot, state in zip(pinned, states, strict=True):
            again = take(series, snapshot.cut, archive, NOW + DAY)
            assert (again.digest, again.id, again.rows) == (snapshot.digest, snapshot.id, len(state))


PERIODS = pa.schema([("id", pa.int64()), ("at", INSTANT), ("value", pa.int64()), ("seen", INSTANT), ("gone", INSTANT)])


def _record(history: list[dict[str, Any]], before: dict[int, int], after: dict[int, int], when: datetime) -> None:
    """Close what is no longer true and add what is new, as a bitemporal table does."""
    for row in history:
        if row["gone"] is None and after.get(row["id"]) != row["value"]:
            row["gone"] = when
    for key, value in after.items():
        if before.get(key) != value:
            row = {"id": key, "at": START + key * DAY / 4, "value": value, "seen": when, "gone": None}
            history.append(row)
