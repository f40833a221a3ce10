from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_logs import edit, inline_deletion_vector, log_file
from deltalake import DeltaTable, WriterProperties, write_deltalake
from source_rows import HOUR, START, flights

from snapline.lineage.digest import BulkAlgorithm, file_hex
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.files import stamp_of
from snapline.lineage.snapshot import Commit
from snapline.lineage.sources.delta import DeltaSource
from snapline.lineage.sources.protocol import Source, Window
from snapline.lineage.sources.row_groups import BATCH_ROWS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def opened(table: Path) -> Source:
    return DeltaSource(str(table), BulkAlgorithm.BLAKE3)


def read(source: Source, commit: Commit, window: Window | None = None, columns: list[str] | None = None) -> list[dict]:
    pieces = [p for name in source.names(commit) for p in source.scan(commit, name, "time", window, columns)]
    return sorted((row for piece in pieces for row in piece.to_pylist()), key=lambda row: row["key"])


def said(milliseconds: int | None):
    """Return an edit after which a commit says it was made then, or says nothing."""

    def change(actions: list[dict]) -> None:
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = milliseconds
        if milliseconds is None:
            actions[:] = [action for action in actions if "commitInfo" not in action]

    return change


def versions(table: Path, *times: int | None) -> Source:
    """A table with a version of one more row each, made at these milliseconds since the epoch."""
    for key, _ in enumerate(times):
        write_deltalake(table, flights([key]), mode="append")
    for version, milliseconds in enumerate(times):
        edit(table, version, said(milliseconds))
    return opened(table)


def test_names_are_the_paths_of_files_and_are_stamped_and_hashed_as_such(table):
    write_deltalake(table, flights(range(4)), partition_by=["carrier"])
    source = opened(table)
    (name,) = source.names(source.commit())
    assert source.stamp(name) == stamp_of(table / name)
    assert source.hexdigest(name) == file_hex(table / name, BulkAlgorithm.BLAKE3)


def test_a_partition_s_values_come_from_the_log(table):
    rows = flights(range(4)).to_pylist()
    for row, carrier in zip(rows, ["a/b", "ü %20&=", None, "__HIVE_DEFAULT_PARTITION__x"], strict=True):
        row["carrier"] = carrier
        row["day"] = row["time"].date()
    write_deltalake(table, pa.Table.from_pylist(rows), partition_by=["carrier", "day", "delay"])
    source = opened(table)
    assert read(source, source.commit()) == rows
    assert len(source.names(source.commit())) == 4
    assert read(source, source.commit(), columns=["delay", "key"]) == [
        {"delay": row["delay"], "key": row["key"]} for row in rows
    ]
    commit = source.commit()
    alone = [piece for name in source.names(commit) for piece in source.scan(commit, name, "time", None, ["carrier"])]
    assert pa.concat_tables(alone)["carrier"].to_pylist().count(None) == 1
    assert {tuple(piece.column_names) for piece in alone} == {("carrier",)}


def test_a_time_that_partitions_is_cut_like_any_other(table):
    days = pa.array([START.date() + timedelta(days=n) for n in range(4)])
    write_deltalake(table, pa.table({"key": range(4), "time": days}), partition_by=["time"])
    source = opened(table)
    window = Window(START + timedelta(days=1), START + timedelta(days=3))
    assert [row["key"] for row in read(source, source.commit(), window)] == [1, 2]


def test_a_column_that_came_later_is_null_in_earlier_files(table):
    write_deltalake(table, flights([0]))
    wider = flights([1]).append_column("gate", pa.array([["B1"]]))
    write_deltalake(table, wider, mode="append", schema_mode="merge")
    source = opened(table)
    then, now = source.commits()
    assert [row["gate"] for row in read(source, now)] == [None, ["B1"]]
    assert "gate" not in source.schema(then).names
    assert "gate" not in read(source, then)[0]


def test_a_version_and_a_range_that_is_named(table):
    source = versions(table, 1000, 2000, 3000)
    assert source.commit("1") == Commit(id="1", at=EPOCH + timedelta(seconds=2))
    assert [row["key"] for row in read(source, source.commit("1"))] == [0, 1]
    with pytest.raises(NotFoundError, match="no version 3; it has 0 to 2"):
        source.commit("3")


def test_an_instant_means_the_last_version_before_the_first_later_one(table):
    source = versions(table, 1000, 5000, 3000, 9000)

    def at(seconds: float) -> str:
        return source.commit(as_of=EPOCH + timedelta(seconds=seconds)).id

    assert [at(1), at(4.999), at(5), at(8), at(9), at(10**9)] == ["0", "0", "2", "2", "3", "3"]
    with pytest.raises(NotFoundError, match="had no version at 1970-01-01T00:00:00"):
        at(0.5)


def test_a_writer_that_leaves_out_the_time_does_not_shift_the_others(table):
    source = versions(table, 1000, None, 3000)
    first, silent, last = source.commits()
    assert [first.at, last.at] == [EPOCH + timedelta(seconds=1), EPOCH + timedelta(seconds=3)]
    written = log_file(table, 1).stat().st_mtime_ns // 10**6
    assert silent.at == EPOCH + timedelta(milliseconds=written)


def test_a_commit_s_own_time_in_the_log_goes_first(table):
    source = versions(table, 1000)
    edit(
        table, 0, lambda actions: [a["commitInfo"].update(inCommitTimestamp=7000) for a in actions if "commitInfo" in a]
    )
    assert source.commit().at == EPOCH + timedelta(seconds=7)


def test_versions_before_the_oldest_checkpoint_are_gone_with_their_log(table):
    source = versions(table, 1000, 2000, 3000, 4000)
    DeltaTable(table, version=2).create_checkpoint()
    assert [commit.id for commit in source.commits()] == ["0", "1", "2", "3"]
    log_file(table, 0).unlink()
    source = opened(table)
    assert [commit.id for commit in source.commits()] == ["2", "3"]
    assert [row["key"] for row in read(source, source.commit("2"))] == [0, 1, 2]
    for gone in ("0", "1"):
        with pytest.raises(NotFoundError, match="it has 2 to 3"):
            source.commit(gone)
    with pytest.raises(NotFoundError, match="its first is 2"):
        source.commit(as_of=EPOCH + timedelta(seconds=2))
    with pytest.raises(NotFoundError, match="no version 1; it has 2 to 3"):
        source.names(Commit(id="1"))


def test_a_vacuumed_file_is_named_with_its_version(table):
    write_deltalake(table, flights([0, 1]))
    source = opened(table)
    (name,) = source.names(source.commit())
    write_deltalake(table, flights([2]), mode="overwrite")
    DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert source.names(source.commit("0")) == (name,)
    with pytest.raises(NotFoundError, match=f"version 0 of .* can no longer be read: no file .*{name}"):
        read(source, source.commit("0"))
    for look in (source.stamp, source.hexdigest):
        with pytest.raises(NotFoundError, match=name):
            look(name)
    assert [row["key"] for row in read(source, source.commit())] == [2]


def test_a_file_altered_in_place_is_seen(table):
    write_deltalake(table, flights([0, 1]))
    source = opened(table)
    commit = source.commit()
    (name,) = source.names(commit)
    stamp, hexdigest = source.stamp(name), source.hexdigest(name)
    reading = source.scan(commit, name, "time", None, None)
    next(reading)
    pq.write_table(flights([0, 7, 8]), table / name)
    assert source.commit() == commit
    assert source.stamp(name) != stamp
    assert source.hexdigest(name) != hexdigest
    with pytest.raises(ConflictError, match="changed while it was read"):
        list(reading)


def deleting(*rows: int):
    """Return an edit that deletes rows of each file by a deletion vector."""

    def change(actions: list[dict]) -> None:
        for action in actions:
            if "add" in action:
                action["add"]["deletionVector"] = inline_deletion_vector(rows)

    return change


def test_rows_deleted_by_a_deletion_vector_are_left_out_and_named(table):
    rows = flights(range(40))
    options = {"configuration": {"delta.enableDeletionVectors": "true"}, "partition_by": ["carrier"]}
    properties = WriterProperties(max_row_group_size=8)
    write_deltalake(
        table, rows.set_column(2, "carrier", pa.array(["a b%"] * 40)), writer_properties=properties, **options
    )
    seen = {}
    for deleted in [(), (3, 17, 39), (3, 17, 38)]:
        if deleted:
            edit(table, 0, deleting(*deleted))
        source = opened(table)
        (name,) = source.names(source.commit())
        seen[name] = (source.stamp(name).size_bytes, source.hexdigest(name))
        assert [row["key"] for row in read(source, source.commit())] == [n for n in range(40) if n not in deleted]
        window = Window(START + 16 * HOUR, START + 20 * HOUR)
        expected = [n for n in range(16, 20) if n not in deleted]
        assert [row["key"] for row in read(source, source.commit(), window)] == expected
    assert len(seen) == len({hexdigest for _, hexdigest in seen.values()}) == 3


def test_deleted_rows_are_left_out_of_every_batch_of_a_row_group(table):
    rows = 2 * BATCH_ROWS + 10
    times = pa.array([START] * rows, pa.timestamp("us", "UTC"))
    write_deltalake(
        table,
        pa.table({"key": range(rows), "time": times}),
        configuration={"delta.enableDeletionVectors": "true"},
        writer_properties=WriterProperties(max_row_group_size=rows),
    )
    deleted = {0, 5, BATCH_ROWS, BATCH_ROWS + 1, 2 * BATCH_ROWS - 1, rows - 1}
    edit(table, 0, deleting(*sorted(deleted)))
    source = opened(table)
    (name,) = source.names(source.commit())
    pieces = list(source.scan(source.commit(), name, "time", None, ["key"]))
    assert len(pieces) > 1
    assert set(range(rows)) - {key for piece in pieces for key in piece["key"].to_pylist()} == deleted


def test_a_deletion_vector_that_deletes_every_row_leaves_none(table):
    write_deltalake(table, flights(range(3)), configuration={"delta.enableDeletionVectors": "true"})
    edit(table, 0, deleting(0, 1, 2))
    assert read(opened(table), Commit(id="0")) == []


def test_deletion_vectors_that_cannot_be_read_are_refused(table):
    write_deltalake(table, flights(range(3)), configuration={"delta.enableDeletionVectors": "true"})
    edit(table, 0, deleting(1))
    edit(
        table,
        0,
        lambda actions: [a["add"]["deletionVector"].update(pathOrInlineDv="0" * 50) for a in actions if "add" in a],
    )
    with pytest.raises(DefinitionError, match=r"deletion vectors of .* cannot be read"):
        opened(table).names(Commit(id="0"))


def test_a_deletion_vector_whose_file_is_gone_is_not_found(table):
    write_deltalake(table, flights(range(3)), configuration={"delta.enableDeletionVectors": "true"})
    vector = {"storageType": "p", "pathOrInlineDv": f"file://{table}/gone.bin", "offset": 1}
    edit(
        table,
        0,
        lambda actions: [
            a["add"].update(deletionVector={**inline_deletion_vector([1]), **vector}) for a in actions if "add" in a
        ],
    )
    with pytest.raises(NotFoundError, match=r"deletion vectors of version 0 .* cannot be read"):
        opened(table).names(Commit(id="0"))


def test_columns_with_other_names_in_the_files_are_refused(table):
    write_deltalake(table, flights([0]), configuration={"delta.columnMapping.mode": "name"})
    with pytest.raises(DefinitionError, match="maps its columns"):
        opened(table).schema(Commit(id="0"))


def test_what_deltalake_cannot_read_is_refused_in_its_words(table):
    write_deltalake(table, flights([0]), configuration={"delta.enableDeletionVectors": "true"})

    def later(actions: list[dict]) -> None:
        for features in ("readerFeatures", "writerFeatures"):
            next(action["protocol"] for action in actions if "protocol" in action)[features].append("later")

    edit(table, 0, later)
    with pytest.raises(DefinitionError, match="'later' is not supported"):
        opened(table).names(Commit(id="0"))


def test_files_of_another_folder_are_refused(table):
    write_deltalake(table, flights([0]))
    edit(table, 0, lambda actions: [a["add"].update(path=f"file://{table}/x.parquet") for a in actions if "add" in a])
    with pytest.raises(DefinitionError, match="outside its own folder"):
        opened(table).names(Commit(id="0"))


@pytest.mark.parametrize("name", ["missing", "empty", "parquet"])
def test_what_is_no_delta_table_is_not_found(tmp_path, name):
    if name != "missing":
        (tmp_path / name).mkdir()
    if name == "parquet":
        pq.write_table(flights([0]), tmp_path / name / "a.parquet")
    with pytest.raises(NotFoundError, match="no Delta table"):
        opened(tmp_path / name).commit()
    assert (tmp_path / name).exists() == (name != "missing")


def test_times_of_96_bits_are_in_the_table_s_unit(table):
    last = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    rows = flights(range(4))
    times = pa.array([*rows["time"].to_pylist()[:3], last], pa.timestamp("us", "UTC"))
    rows = rows.set_column(1, "time", times)
    write_deltalake(table, rows)
    source = opened(table)
    (name,) = source.names(source.commit())
    pq.write_table(rows, table / name, use_deprecated_int96_timestamps=True)
    found = read(opened(table), source.commit(), Window(START + HOUR, START + 3 * HOUR))
    assert found == rows.slice(1, 2).to_pylist()
    assert read(source, source.commit())[3]["time"] == last


def test_a_file_that_is_not_parquet_is_named(table):
    write_deltalake(table, flights([0]))
    source = opened(table)
    (name,) = source.names(source.commit())
    (table / name).write_text("not rows")
    with pytest.raises(DefinitionError, match=f"{name} cannot be read as Parquet"):
        read(source, source.commit())


def test_a_table_made_anew_in_its_place_has_other_files(table):
    write_deltalake(table, flights([0]))
    before = opened(table).names(Commit(id="0"))
    shutil.rmtree(table)
    write_deltalake(table, flights([0]))
    assert not set(before) & set(opened(table).names(Commit(id="0")))
