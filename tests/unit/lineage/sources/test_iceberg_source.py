from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType

from snapline.lineage.digest import BulkAlgorithm, file_hex
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.snapshot import Commit
from snapline.lineage.sources.iceberg import IcebergSource
from snapline.lineage.sources.protocol import Window

BLAKE3 = BulkAlgorithm.BLAKE3
START = datetime(2013, 1, 1, tzinfo=UTC)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    opened = SqlCatalog("one", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    opened.create_namespace("space")
    yield opened
    opened.close()


def flights(keys: Sequence[int]) -> pa.Table:
    times = pa.array([START + timedelta(days=key) for key in keys], pa.timestamp("us", "UTC"))
    return pa.table(
        {"key": pa.array(keys, pa.int64()), "time": times, "carrier": pa.array([f"c{key}" for key in keys], "string")}
    )


def made(catalog: SqlCatalog, *batches: Sequence[int], name: str = "space.t") -> Table:
    table = catalog.create_table(name, schema=flights([]).schema)
    for keys in batches:
        table.append(flights(keys))
    return table


def opened(folder: Path, table: str = "space.t") -> IcebergSource:
    return IcebergSource(str(folder / "catalog.db"), table, BLAKE3)


def rows(source: IcebergSource, commit: Commit, window: Window | None = None, time: str = "time") -> list[Any]:
    pieces = [piece for name in source.names(commit) for piece in source.scan(commit, name, time, window, None)]
    return sorted((row for piece in pieces for row in piece.to_pylist()), key=lambda row: row["key"])


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Deleting(_FastAppendFiles):
    """An append that also brings one delete file, which pyiceberg reads and does not write."""

    deletes: DataFile

    def _existing_manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        output = self._io.new_output(f"{metadata.location}/metadata/deletes-{self._snapshot_id}.avro")
        writer = _DeleteManifest(metadata.spec(), metadata.schema(), output, self._snapshot_id, "null")
        with writer:
            writer.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=self.deletes
                )
            )
        return [*super()._existing_manifests(), writer.to_manifest_file()]


def delete_positions(table: Table, file: str, positions: Sequence[int], content: DataFileContent) -> None:
    path = Path(table.location().removeprefix("file://"), "data", f"deletes-{len(table.snapshots())}.parquet")
    fields = [pa.field("file_path", pa.string(), False), pa.field("pos", pa.int64(), False)]
    numbered = [field.with_metadata({"PARQUET:field_id": str(2147483546 - at)}) for at, field in enumerate(fields)]
    pq.write_table(pa.table([[file] * len(positions), list(positions)], schema=pa.schema(numbered)), path)
    deletes = DataFile.from_args(
        content=content,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(positions),
        file_size_in_bytes=path.stat().st_size,
        lower_bounds={2147483546: file.encode()},
        upper_bounds={2147483546: file.encode()},
        equality_ids=[1] if content is DataFileContent.EQUALITY_DELETES else None,
    )
    deletes.spec_id = 0
    with table.transaction() as transaction:
        update = _Deleting(operation=Operation.APPEND, transaction=transaction, io=table.io)
        update.deletes = deletes
        update.commit()


def test_names_lie_below_the_table_and_stand_for_the_bytes(tmp_path, catalog):
    made(catalog, [1, 2])
    source = opened(tmp_path)
    (name,) = source.names(source.commit())
    file = tmp_path / "space/t" / name
    assert name.startswith("data/")
    assert source.hexdigest(name) == file_hex(file, BLAKE3)
    assert source.stamp(name).inode == file.stat().st_ino


def test_a_positional_delete_is_part_of_the_name_the_stamp_and_the_digest(tmp_path, catalog):
    table = made(catalog, [0, 1, 2, 3], [4])
    source = opened(tmp_path)
    before = source.commit()
    (task,) = (task for task in table.scan().plan_files() if task.file.record_count == 4)
    delete_positions(table, task.file.file_path, [1, 3], DataFileContent.POSITION_DELETES)
    after = source.commit()
    (plain,) = set(source.names(before)) - set(source.names(after))
    deleted = next(name for name in source.names(after) if name.startswith(plain))
    assert deleted.split("#")[0] == plain
    assert source.stamp(deleted) != source.stamp(plain)
    assert source.hexdigest(deleted) != source.hexdigest(plain)
    assert [row["key"] for row in rows(source, before)] == [0, 1, 2, 3, 4]
    assert [row["key"] for row in rows(source, after)] == [0, 2, 4]
    window = Window(START + timedelta(days=2), START + timedelta(days=4))
    assert [row["key"] for row in rows(source, after, window)] == [2]
    assert [row["key"] for row in rows(source, before, window)] == [2, 3]


def test_equality_deletes_are_refused(tmp_path, catalog):
    table = made(catalog, [0, 1])
    delete_positions(table, "", [0], DataFileContent.EQUALITY_DELETES)
    source = opened(tmp_path)
    with pytest.raises(DefinitionError, match="equality deletes"):
        source.names(source.commit())


def test_each_commit_is_read_by_the_names_its_columns_had(tmp_path, catalog):
    table = made(catalog, [1])
    with table.update_schema() as update:
        update.rename_column("carrier", "airline")
        update.rename_column("time", "departure")
        update.add_column("delay", DoubleType())
    later = flights([2]).rename_columns(["key", "departure", "airline"])
    table.append(later.append_column("delay", pa.array([1.5])))
    source = opened(tmp_path)
    then, now = source.commits()
    window = Window(START, START + timedelta(days=2))
    assert source.schema(then).names == ["key", "time", "carrier"]
    assert source.schema(now).names == ["key", "departure", "airline", "delay"]
    assert [row["carrier"] for row in rows(source, then, window)] == ["c1"]
    assert [(row["airline"], row["delay"]) for row in rows(source, now, time="departure")] == [
        ("c1", None),
        ("c2", 1.5),
    ]
    assert [row["key"] for row in rows(source, now, window, "departure")] == [1]


def test_a_table_without_a_snapshot_is_not_found_and_an_emptied_one_has_no_rows(tmp_path, catalog):
    table = made(catalog)
    source = opened(tmp_path)
    for ask in (source.commit, source.commits):
        with pytest.raises(NotFoundError, match="no snapshot yet"):
            ask()
    table.append(flights([1]))
    table.delete()
    assert source.names(source.commit()) == ()
    assert source.schema(source.commit()).names == ["key", "time", "carrier"]


def test_a_missing_file_is_named(tmp_path, catalog):
    made(catalog, [1])
    source = opened(tmp_path)
    commit = source.commit()
    (name,) = source.names(commit)
    (tmp_path / "space/t" / name).unlink()
    for ask in (source.stamp, source.hexdigest, lambda name: list(source.scan(commit, name, "time", None, None))):
        with pytest.raises(NotFoundError, match=Path(name).name):
            ask(name)
    shutil.rmtree(tmp_path / "space/t/metadata")
    with pytest.raises(NotFoundError, match=r"space\.t is not all there"):
        source.commit()


def test_a_file_that_changes_during_a_scan_is_a_conflict(tmp_path, catalog):
    made(catalog, [1])
    source = opened(tmp_path)
    commit = source.commit()
    (name,) = source.names(commit)
    scan = source.scan(commit, name, "time", None, None)
    next(scan)
    os.utime(tmp_path / "space/t" / name, (1, 1))
    with pytest.raises(ConflictError, match="changed while it was read"):
        list(scan)


def test_a_rolled_back_snapshot_is_on_no_branch_and_still_read_by_its_id(tmp_path, catalog):
    table = made(catalog, [1], [2])
    source = opened(tmp_path)
    first, second = source.commits()
    with table.manage_snapshots() as manage:
        manage.rollback_to_snapshot(int(first.id))
    table.append(flights([3]))
    assert source.commits()[0] == first
    assert second not in source.commits()
    assert source.commit(second.id) == second
    assert [row["key"] for row in rows(source, second)] == [1, 2]
    assert [row["key"] for row in rows(source, source.commit())] == [1, 3]


def test_reading_leaves_the_catalogue_as_it_is(tmp_path, catalog):
    made(catalog, [1])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    source = opened(tmp_path)
    assert rows(source, source.commit())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_catalogue_that_cannot_say_which_table_is_meant_is_refused(tmp_path, catalog):
    table = made(catalog, [1])
    with pytest.raises(NotFoundError, match=r"no table space\.u"):
        opened(tmp_path, "space.u").commit()
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as database, database:
        values = ("two", "space", "t", table.metadata_location, None, "TABLE")
        database.execute("INSERT INTO iceberg_tables VALUES (?, ?, ?, ?, ?, ?)", values)
    with pytest.raises(DefinitionError, match="holds 2 catalogues"):
        opened(tmp_path).commit()


def test_what_is_no_catalogue_is_refused(tmp_path):
    with pytest.raises(NotFoundError, match="no catalogue"):
        opened(tmp_path).commit()
    assert not list(tmp_path.iterdir())
    (tmp_path / "catalog.db").write_bytes(b"no catalogue " * 1000)
    with pytest.raises(DefinitionError, match="cannot be read as an Iceberg catalogue"):
        opened(tmp_path).commit()
    with pytest.raises(DefinitionError, match="names no catalogue of pyiceberg's configuration"):
        IcebergSource("nowhere", "space.t", BLAKE3).commit()


def test_a_catalogue_of_the_users_own_configuration_is_read_by_its_name(tmp_path, catalog):
    made(catalog, [1, 2])
    script = """
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.sources.iceberg import IcebergSource
source = IcebergSource("one", "space.t", BulkAlgorithm.BLAKE3)
commit = source.commit()
print(sum(piece.num_rows for name in source.names(commit) for piece in source.scan(commit, name, "time", None, None)))
"""
    configured = {"PYICEBERG_CATALOG__ONE__URI": f"sqlite:///{tmp_path}/catalog.db"}
    environment = {**os.environ, **configured, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == "2\n"


def test_dates_are_cut_by_their_midnight(tmp_path, catalog):
    dated = flights([0, 1, 2]).set_column(
        1, "time", flights([0, 1, 2])["time"].cast(pa.timestamp("us")).cast(pa.date32())
    )
    catalog.create_table("space.dated", schema=dated.schema).append(dated)
    source = opened(tmp_path, "space.dated")
    window = Window(START + timedelta(hours=1), START + timedelta(days=1, hours=1))
    assert [row["key"] for row in rows(source, source.commit(), window)] == [1]


def test_files_added_from_elsewhere_keep_their_whole_location(tmp_path, catalog):
    table = made(catalog, [1])
    elsewhere = tmp_path / "elsewhere.parquet"
    (file,) = _dataframe_to_data_files(table.metadata, flights([2]), table.io)
    shutil.move(file.file_path.removeprefix("file://"), elsewhere)
    table.add_files([f"file://{elsewhere}"], check_duplicate_files=False)
    source = opened(tmp_path)
    names = source.names(source.commit())
    assert f"file://{elsewhere}" in names
    assert source.hexdigest(f"file://{elsewhere}") == file_hex(elsewhere, BLAKE3)
