from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snapline.lineage.digest import BulkAlgorithm, file_hex
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.sources.location import locate
from snapline.lineage.sources.parquet import ParquetSource
from snapline.lineage.sources.protocol import Reading, Source

BLAKE3 = BulkAlgorithm.BLAKE3


def everything(part: pa.Table) -> np.ndarray:
    return np.ones(part.num_rows, np.bool_)


def read(path: Path, control: tuple[str, ...] = ("key",), keep=everything) -> Reading:
    source: Source = ParquetSource(path, BLAKE3)
    return source.read(control, keep)


def write(path: Path, **columns: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def test_a_file_and_the_hash_of_its_bytes(tmp_path):
    path = write(tmp_path / "any.name", key=[1, 2, 3])
    found = read(path)
    assert found.table.to_pydict() == {"key": [1, 2, 3]}
    assert [(file.path, file.hexdigest) for file in found.files] == [("any.name", file_hex(path, BLAKE3))]


def test_a_folder_is_read_at_every_depth_in_name_order_without_hidden_files(tmp_path):
    for number, name in enumerate(
        ["b.parquet", "a/z.parquet", "a.parquet", "_log/c.parquet", ".d.parquet", "_e.parquet"]
    ):
        write(tmp_path / name, key=[number])
    (tmp_path / "README.md").write_text("not rows")
    found = read(tmp_path)
    assert [file.path for file in found.files] == ["a.parquet", "a/z.parquet", "b.parquet"]
    assert found.table["key"].to_pylist() == [2, 1, 0]


def test_keep_sees_every_row_once_and_only_the_control_columns(tmp_path):
    write(tmp_path / "a.parquet", key=[1, 2, 3, 4, 5], text=list("vwxyz"))
    write(tmp_path / "b.parquet", text=["a"], key=[6])
    seen = []

    def even(part: pa.Table) -> np.ndarray:
        assert part.column_names == ["key"]
        seen.extend(part["key"].to_pylist())
        return part["key"].to_numpy() % 2 == 0

    found = read(tmp_path, keep=even)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert sorted(zip(found.table["key"].to_pylist(), found.table["text"].to_pylist(), strict=True)) == [
        (2, "w"),
        (4, "y"),
        (6, "a"),
    ]


def test_no_rows_keep_their_columns(tmp_path):
    path = write(tmp_path / "a.parquet", key=pa.array([], pa.int64()), text=pa.array([], pa.string()))
    found = read(path)
    assert (found.table.num_rows, found.table.column_names) == (0, ["key", "text"])


def test_names_with_dots_are_columns_not_paths(tmp_path):
    path = write(tmp_path / "a.parquet", **{"a.b": [1], "a": [{"b": 2}]})
    assert read(path, control=("a.b",)).table["a.b"].to_pylist() == [1]


def test_files_may_differ_in_physical_types_units_and_zones(tmp_path):
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    write(tmp_path / "a.parquet", key=["x"], time=pa.array([noon], pa.timestamp("ms", "UTC")))
    write(
        tmp_path / "b.parquet",
        time=pa.array([noon], pa.timestamp("ns", "Asia/Tokyo")),
        key=pa.array(["y"]).dictionary_encode(),
    )
    found = read(tmp_path)
    assert found.table["key"].to_pylist() == ["x", "y"]
    assert found.table["time"].to_pylist() == [noon, noon]


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


def test_units_that_no_one_type_holds_are_refused(tmp_path):
    write(tmp_path / "a.parquet", key=pa.array([2**62], pa.timestamp("us")))
    write(tmp_path / "b.parquet", key=pa.array([1], pa.timestamp("ns")))
    with pytest.raises(DefinitionError, match="cannot be read as one table"):
        read(tmp_path)


def test_a_missing_control_column_names_what_there_is(tmp_path):
    path = write(tmp_path / "a.parquet", key=[1], text=["a"])
    with pytest.raises(DefinitionError, match="no column 'when'; its columns are key, text"):
        read(path, control=("when", "key"))


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


def test_no_source_and_no_files(tmp_path):
    with pytest.raises(NotFoundError, match="no Parquet file or folder"):
        read(tmp_path / "gone.parquet")
    (tmp_path / "_hidden.parquet").touch()
    with pytest.raises(NotFoundError, match=r"no \.parquet file in the folder"):
        read(tmp_path)


def test_links_and_folders_that_hold_values_are_refused(tmp_path):
    data = write(tmp_path / "real" / "a.parquet", key=[1])
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "inner").symlink_to(data.parent)
    with pytest.raises(DefinitionError, match="is a link to a folder"):
        locate(tmp_path / "linked")
    (tmp_path / "link.parquet").symlink_to(data)
    with pytest.raises(DefinitionError, match="not a regular file"):
        read(tmp_path / "link.parquet")
    write(tmp_path / "hive" / "year=2013" / "a.parquet", key=[1])
    with pytest.raises(DefinitionError, match="year=2013 holds the value of a column"):
        read(tmp_path / "hive")


def change_during(action):
    """Return a `keep` that lets `action` happen once, in another thread, while the source is being read."""
    pending = [action]

    def keep(part: pa.Table) -> np.ndarray:
        if pending:
            writer = threading.Thread(target=pending.pop())
            writer.start()
            writer.join()
        return everything(part)

    return keep


@pytest.mark.parametrize("crime", ["rewritten", "appended", "replaced", "removed", "added", "garbled"])
def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path, crime):
    first = write(tmp_path / "a.parquet", key=[1, 2, 3, 4])
    last = write(tmp_path / "b.parquet", key=[5, 6, 7, 8])
    other = write(tmp_path / "_other.parquet", key=[1, 2, 3, 5])
    action = {
        "rewritten": lambda: first.write_bytes(other.read_bytes()),
        "appended": lambda: first.write_bytes(first.read_bytes() + b"PAR1"),
        "replaced": lambda: other.replace(first),
        "removed": first.unlink,
        "added": lambda: write(tmp_path / "c.parquet", key=[9]),
        "garbled": lambda: (first.write_bytes(b"zzzz"), last.write_bytes(b"zzzz")),
    }[crime]
    for path in (first, last):
        os.utime(path, ns=(0, 0))
    with pytest.raises(ConflictError, match=r"changed while it was read: [abc]\.parquet"):
        read(tmp_path, keep=change_during(action))
