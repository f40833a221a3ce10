"""A Delta log lists commits whose files were vacuumed: they are named, and count for nothing else."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from lineage_home import NOW, SCHEMA, WINDOW, LineageHome

from snapline.cli.diff import text
from snapline.lineage.diff import diff
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.invalidation import Change
from snapline.lineage.model import ModelVersion
from snapline.lineage.observe import Depth
from snapline.lineage.series import CutOptions, Desk, rows_of
from snapline.lineage.snapshot import Snapshot

deltalake = pytest.importorskip("deltalake")


class DeltaHome(LineageHome):
    """A home whose source is a Delta table of two files."""

    def write(self) -> None:
        self.source = self.folder / "trips"
        table = pa.Table.from_pylist(self.rows, schema=SCHEMA)
        deltalake.write_deltalake(str(self.source), table.slice(0, 4), mode="overwrite")
        deltalake.write_deltalake(str(self.source), table.slice(4), mode="append")

    def vacuum(self) -> None:
        table = deltalake.DeltaTable(str(self.source))
        assert table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    def trips(self) -> tuple[Snapshot, ModelVersion]:
        snapshot = self.take(series=self.options(source=f"delta:{self.source}", known=None))
        self.define()
        return snapshot, self.materialize()

    def changes(self, model: ModelVersion) -> set[Change]:
        return {cause.change for cause in self.observe(model, Depth(rows=True)).causes}


@pytest.fixture
def home(tmp_path: Path) -> DeltaHome:
    return DeltaHome(tmp_path)


def test_rows_that_a_compaction_moved_are_read_where_they_are_once_the_old_files_are_gone(home: DeltaHome) -> None:
    snapshot, model = home.trips()
    there = rows_of(snapshot, home.state, Desk(home.objects, NOW))
    deltalake.DeltaTable(str(home.source)).optimize.compact()
    home.vacuum()
    assert rows_of(snapshot, home.state, Desk(home.objects, NOW)).equals(there)
    assert home.changes(model) <= {Change.APPENDED_OUTSIDE}


def test_a_commit_whose_files_were_vacuumed_is_orphaned_once_its_rows_changed(home: DeltaHome) -> None:
    snapshot, model = home.trips()
    home.rows[2]["delay"] = 99
    home.write()
    assert home.changes(model) == {Change.RESTATED}
    home.vacuum()
    assert home.changes(model) == {Change.RESTATED, Change.COMMIT_GONE}
    found = diff(snapshot, None, home.state, Desk(home.objects, NOW))
    assert (found.commit_then, found.total("corrected")) == (None, 1)
    (bucket,) = found.buckets
    assert (bucket.sql_then, bucket.keys["corrected"]) == (None, (2,))


def test_two_snapshots_are_told_apart_though_the_files_of_both_are_gone(home: DeltaHome) -> None:
    then, _ = home.trips()
    home.rows[2]["delay"] = 99
    home.write()
    now = home.take()
    home.rows[3]["delay"] = 98
    home.write()
    home.vacuum()
    found = diff(then, now, home.state, Desk(home.objects, NOW))
    assert (found.total("corrected"), found.buckets[0].sql_then) == (1, None)


def test_a_vacuumed_version_cannot_be_taken_and_the_error_says_why(home: DeltaHome) -> None:
    home.trips()
    home.write()
    home.vacuum()
    length = len(home.store.load())
    with pytest.raises(NotFoundError, match="no file") as caught:
        home.take(cut=CutOptions(version="0"))
    assert "vacuumed" in caught.value.hint
    assert len(home.store.load()) == length


def test_a_version_and_an_instant_are_not_asked_for_together(home: DeltaHome) -> None:
    home.trips()
    with pytest.raises(DefinitionError, match="expected a version or an as-of instant, found both, 0 and 2013-03-01"):
        home.take(cut=CutOptions(since=WINDOW.since, until=WINDOW.until, version="0", as_of="2013-03-01"))


def test_a_diff_of_other_columns_does_not_claim_that_no_row_differs(home: DeltaHome) -> None:
    snapshot, _ = home.trips()
    table = pa.Table.from_pylist(home.rows, schema=SCHEMA).drop_columns("delay")
    deltalake.write_deltalake(str(home.source), table, mode="overwrite", schema_mode="overwrite")
    told = text(diff(snapshot, None, home.state, Desk(home.objects, NOW)), 5)
    assert "their columns differ, so no rows were compared" in told
    assert "column 'delay' was int64, is missing" in told
