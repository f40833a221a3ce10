from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snapline.lineage.digest import BulkAlgorithm, file_hex
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.files import stamp_of
from snapline.lineage.snapshot import Commit
from snapline.lineage.sources.location import locate
from snapline.lineage.sources.parquet import ParquetSource
from snapline.lineage.sources.protocol import Source, Window

BLAKE3 = BulkAlgorithm.BLAKE3
DAY = Window(datetime(2013, 1, 2, tzinfo=UTC), datetime(2013, 1, 3, tzinfo=UTC))


def opened(path: Path) -> Source:
    return ParquetSource(path, BLAKE3)


def read(path: Path, time: str = "key", window: Window | None = None, columns: list[str] | None = None) -> pa.Table:
    source = opened(path)
    commit = source.commit()
    pieces = [p for name in source.names(commit) for p in source.scan(commit, name, time, window, columns)]
    return pa.concat_tables(pieces, promote_options="permissive") if pieces else source.schema(commit).empty_table()


def write(path: Path, **columns: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def test_a_file_its_stamp_and_the_hash_of_its_bytes(tmp_path):
    path = write(tmp_path / "any.name", key=[1, 2, 3])
    source = opened(path)
    assert source.names(source.commit()) == ("any.name",)
    assert source.stamp("any.name") == stamp_of(path)
    assert source.hexdigest("any.name") == file_hex(path, BLAKE3)
    assert read(path).to_pydict() == {"key": [1, 2, 3]}


def test_a_folder_is_read_at_every_depth_in_name_order_without_hidden_files(tmp_path):
    names = ["b.parquet", "a/z.parquet", "a.parquet", "_log/c.parquet", ".d.parquet", "_e.parquet"]
    for number, name in enumerate(names):
        write(tmp_path / name, key=[number])
    (tmp_path / "README.md").write_text("not rows")
    source = opened(tmp_path)
    assert source.names(source.commit()) == ("a.parquet", "a/z.parquet", "b.parquet")
    assert read(tmp_path)["key"].to_pylist() == [2, 1, 0]


def test_no_rows_keep_their_columns(tmp_path):
    path = write(tmp_path / "a.parquet", key=pa.array([], pa.int64()), text=pa.array([], pa.string()))
    assert read(path).num_rows == 0
    assert opened(path).schema(opened(path).commit()).names == ["key", "text"]


def test_names_with_dots_are_columns_not_paths(tmp_path):
    path = write(tmp_path / "a.parquet", **{"a.b": [1], "a": [{"b": 2}]})
    assert read(path, "a.b", columns=["a.b"]).to_pydict() == {"a.b": [1]}


def test_the_statistics_of_a_struct_s_child_are_not_taken_for_those_of_a_dotted_name(tmp_path):
    late, kind = datetime(2020, 1, 1, tzinfo=UTC), pa.timestamp("us", "UTC")
    children = pa.StructArray.from_arrays([pa.array([late, late], kind)], ["time"])
    write(tmp_path / "a.parquet", row=children, **{"row.time": pa.array([DAY.since, DAY.until], kind)}, key=[1, 2])
    assert read(tmp_path, "row.time", DAY)["key"].to_pylist() == [1]


def test_files_may_differ_in_physical_types_units_and_zones(tmp_path):
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    write(tmp_path / "a.parquet", key=["x"], time=pa.array([noon], pa.timestamp("ms", "UTC")))
    write(
        tmp_path / "b.parquet",
        time=pa.array([noon], pa.timestamp("ns", "Asia/Tokyo")),
        key=pa.array(["y"]).dictionary_encode(),
    )
    found = read(tmp_path)
    assert found["key"].to_pylist() == ["x", "y"]
    assert found["time"].to_pylist() == [noon, noon]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"key": ["1"], "x": [1]}, "b.parquet: column 'key' is string, but int64 in a.parquet"),
        ({"key": [1]}, "b.parquet: column 'x' is missing, but int64 in a.parquet"),
        ({"key": [1], "x": [1], "y": [1]}, "b.parquet: column 'y' is int64, but missing in a.parquet"),
        ({"key": [1], "x": pa.array([1], pa.int32())}, "b.parquet: column 'x' is int32, but int64 in a.parquet"),
    ],
)
def test_files_that_are_not_one_table_are_refused(tmp_path, other, message):
    write(tmp_path / "a.parquet", key=[1], x=[1])
    write(tmp_path / "b.parquet", **other)
    with pytest.raises(DefinitionError, match=message):
        read(tmp_path)


def test_naive_and_zoned_files_are_refused(tmp_path):
    write(tmp_path / "a.parquet", key=pa.array([0], pa.timestamp("us")))
    write(tmp_path / "b.parquet", key=pa.array([0], pa.timestamp("us", "UTC")))
    with pytest.raises(DefinitionError, match=r"'key' is timestamp\[utc\], but timestamp in a.parquet"):
        read(tmp_path)


def test_columns_of_one_name_are_refused(tmp_path):
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["key", "key"]), tmp_path / "a.parquet")
    with pytest.raises(DefinitionError, match="several named 'key'"):
        read(tmp_path)


def test_a_file_that_is_not_parquet_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_text("key\n1\n")
    with pytest.raises(DefinitionError, match=r"rows\.parquet cannot be read as Parquet"):
        read(path)


def test_a_truncated_file_is_refused(tmp_path):
    path = write(tmp_path / "rows.parquet", key=list(range(1000)))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DefinitionError, match="cannot be read as Parquet"):
        read(path)


def test_a_file_with_damaged_pages_is_refused(tmp_path):
    path = write(tmp_path / "rows.parquet", key=[str(n) * 50 for n in range(100)])
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(data)
    with pytest.raises(DefinitionError, match="cannot be read as Parquet"):
        read(path)


def test_no_source_and_no_files(tmp_path):
    with pytest.raises(NotFoundError, match="no Parquet file or folder"):
        opened(tmp_path / "gone.parquet").commit()
    (tmp_path / "_hidden.parquet").touch()
    with pytest.raises(NotFoundError, match=r"no \.parquet file in the folder"):
        opened(tmp_path).commit()
    source = opened(write(tmp_path / "a.parquet", key=[1]))
    with pytest.raises(NotFoundError, match=r"no file other.parquet"):
        list(source.scan(source.commit(), "other.parquet", "key", None, None))
    with pytest.raises(NotFoundError, match=r"no file .*other.parquet"):
        source.stamp("other.parquet")


def test_links_and_folders_that_hold_values_are_refused(tmp_path):
    data = write(tmp_path / "real" / "a.parquet", key=[1])
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "inner").symlink_to(data.parent)
    with pytest.raises(DefinitionError, match="is a link to a folder"):
        locate(tmp_path / "linked")
    (tmp_path / "link.parquet").symlink_to(data)
    with pytest.raises(DefinitionError, match="not a regular file"):
        opened(tmp_path / "link.parquet").commit()
    write(tmp_path / "hive" / "year=2013" / "a.parquet", key=[1])
    with pytest.raises(DefinitionError, match="year=2013 holds the value of a column"):
        opened(tmp_path / "hive").commit()


def test_a_commit_is_named_by_names_and_stamps(tmp_path):
    path = write(tmp_path / "a.parquet", key=[1])
    before = opened(tmp_path).commit()
    assert opened(tmp_path).commit() == before
    os.utime(path, ns=(0, 0))
    touched = opened(tmp_path).commit()
    path.rename(tmp_path / "b.parquet")
    assert len({before.id, touched.id, opened(tmp_path).commit().id}) == 3
    assert before.at is None


def test_a_commit_that_is_past_is_not_found_by_whoever_did_not_see_it(tmp_path):
    write(tmp_path / "a.parquet", key=[1])
    first = opened(tmp_path)
    then = first.commit()
    write(tmp_path / "b.parquet", key=[2])
    assert first.names(then) == ("a.parquet",)
    with pytest.raises(NotFoundError, match="no longer as it was"):
        opened(tmp_path).names(then)
    with pytest.raises(NotFoundError, match="no longer as it was"):
        opened(tmp_path).schema(Commit(id="of another time"))


def times(kind: pa.DataType) -> pa.Array:
    """Six times, hours apart, about the day; every second of the row groups of two lies outside or inside alone."""
    start = DAY.since - timedelta(hours=24)
    found = [start, start, DAY.since, DAY.until - timedelta(hours=1), DAY.until, DAY.until]
    if pa.types.is_date(kind):
        return pa.array([moment.date() for moment in found], kind)
    return pa.array([moment.replace(tzinfo=None) for moment in found], pa.timestamp("us")).cast(kind)


KINDS = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "America/New_York")]


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("kind", [*KINDS, pa.date32(), pa.date64()], ids=str)
def test_a_window_holds_with_and_without_statistics_for_every_kind_of_time(tmp_path, kind, statistics):
    table = pa.table({"key": range(6), "time": times(kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2, write_statistics=statistics)
    assert read(tmp_path, "time", DAY)["key"].to_pylist() == [2, 3]


@pytest.mark.parametrize("statistics", [True, False])
def test_times_of_96_bits_are_read(tmp_path, statistics):
    table = pa.table({"key": range(6), "time": times(pa.timestamp("ns"))})
    options = {"use_deprecated_int96_timestamps": True, "write_statistics": statistics}
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2, **options)
    assert read(tmp_path, "time", DAY)["key"].to_pylist() == [2, 3]


def test_row_groups_outside_the_window_are_not_read(tmp_path):
    path = write(tmp_path / "a.parquet", key=[f"{n}" * 99 for n in range(6)], time=times(pa.timestamp("us")))
    with pq.ParquetFile(path) as file:
        chunks = [file.metadata.row_group(group).column(0) for group in (0, 2)]
    data = bytearray(path.read_bytes())
    for chunk in chunks:
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)
    assert read(path, "time", DAY)["key"].to_pylist() == ["2" * 99, "3" * 99]
    with pytest.raises(DefinitionError, match="cannot be read as Parquet"):
        read(path, "time")


def test_row_groups_with_rows_without_a_time_are_read(tmp_path):
    moments = [DAY.until, None, DAY.since, DAY.since, None, None]
    write(tmp_path / "a.parquet", key=range(6), time=pa.array(moments, pa.timestamp("us", "UTC")))
    assert read(tmp_path, "time", DAY)["key"].to_pylist() == [1, 2, 3, 4, 5]
    write(tmp_path / "a.parquet", key=[1, 2], time=pa.array([None, date(2014, 1, 1)]))
    assert read(tmp_path, "time", DAY)["key"].to_pylist() == [1]


def test_a_window_before_1970_and_to_the_end_of_time_holds(tmp_path):
    moments = pa.array([-(2**62), -1, 0, 1, 2**62, 2**63 - 1], pa.timestamp("ns"))
    write(tmp_path / "a.parquet", key=range(6), time=moments)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    before = Window(datetime(1, 1, 1, tzinfo=UTC), epoch)
    assert read(tmp_path, "time", before)["key"].to_pylist() == [0, 1]
    after = Window(epoch, datetime(9999, 12, 31, tzinfo=UTC))
    assert read(tmp_path, "time", after)["key"].to_pylist() == [2, 3, 4, 5]


def test_a_row_group_comes_in_batches(tmp_path):
    rows = 300_000
    pq.write_table(pa.table({"key": range(rows)}), tmp_path / "a.parquet", row_group_size=rows)
    source = opened(tmp_path)
    pieces = [piece.num_rows for piece in source.scan(source.commit(), "a.parquet", "key", None, None)]
    assert sum(pieces) == rows
    assert len(pieces) > 1


@pytest.mark.parametrize("crime", ["rewritten", "appended", "replaced", "removed", "garbled"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, crime):
    path = write(tmp_path / "a.parquet", key=[1, 2, 3, 4])
    other = write(tmp_path / "_other.parquet", key=[1, 2, 3, 5])
    os.utime(path, ns=(0, 0))
    action = {
        "rewritten": lambda: path.write_bytes(other.read_bytes()),
        "appended": lambda: path.write_bytes(path.read_bytes() + b"PAR1"),
        "replaced": lambda: other.replace(path),
        "removed": path.unlink,
        "garbled": lambda: path.write_bytes(b"zzzz"),
    }[crime]
    source = opened(tmp_path)
    reading = source.scan(source.commit(), "a.parquet", "key", None, None)
    assert next(reading)["key"].to_pylist() == [1, 2]
    writer = threading.Thread(target=action)
    writer.start()
    writer.join()
    with pytest.raises(ConflictError, match=r"changed while it was read: a\.parquet"):
        list(reading)


def test_a_file_that_changed_since_the_commit_is_refused(tmp_path):
    write(tmp_path / "a.parquet", key=[1])
    source = opened(tmp_path)
    commit = source.commit()
    write(tmp_path / "a.parquet", key=[1, 2])
    with pytest.raises(ConflictError, match="changed while it was read"):
        list(source.scan(commit, "a.parquet", "key", None, None))


def test_looking_whether_files_moved_imports_nothing_that_reads_rows(tmp_path):
    write(tmp_path / "a.parquet", key=[1])
    code = """
import sys
from pathlib import Path
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.sources.opening import open_source
source = open_source(sys.argv[1], BulkAlgorithm.BLAKE3)
(name,) = source.names(source.commit())
source.stamp(name), source.hexdigest(name)
print([name for name in ("pyarrow", "numpy", "deltalake", "duckdb") if name in sys.modules])
"""
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout == "[]\n"
