from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import IntegrityError, NotFoundError
from snapline.lineage.files import HashedFile, SourceFile, hash_file
from snapline.lineage.manifest import changed_files, decode_manifest, encode_manifest
from snapline.lineage.query import run_view
from snapline.lineage.snapshot import BucketDigest, Column, Manifest
from snapline.lineage.sources.opening import open_source

BLAKE3 = BulkAlgorithm.BLAKE3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a.parquet", "b.parquet"):
        (source / name).write_bytes(name.encode())
    return source


@pytest.fixture
def files(folder: Path) -> tuple[SourceFile, ...]:
    return tuple(hashed(folder, name) for name in ("a.parquet", "b.parquet"))


def hashed(folder: Path, name: str) -> SourceFile:
    return SourceFile(**hash_file(folder, name, BLAKE3).model_dump(), first="2013-01-01", last="2013-01-01", later=4)


def changed(files: tuple[HashedFile, ...], path: Path) -> tuple[str, ...]:
    source = open_source(str(path), BLAKE3)
    return changed_files(files, source, source.commit())


@pytest.fixture
def manifest(files: tuple[HashedFile, ...]) -> Manifest:
    return Manifest(
        columns=(Column(name="é", type="int64"),),
        buckets=(BucketDigest(label="2013-01-01", rows=3, hexdigest="ab" * 32),),
        files=files,
        erasures=("ab" * 32,),
        erased=2,
    )


def test_a_manifest_survives_its_bytes_which_are_always_the_same(manifest):
    data = encode_manifest(manifest)
    assert decode_manifest(data) == manifest
    assert encode_manifest(decode_manifest(data)) == data
    empty = Manifest(columns=(), buckets=(), files=())
    assert decode_manifest(encode_manifest(empty)) == empty


def test_the_largest_inode_fits(manifest):
    (first, *rest) = manifest.files
    huge = first.model_copy(update={"stamp": first.stamp.model_copy(update={"inode": 2**64 - 1})})
    wide = manifest.model_copy(update={"files": (huge, *rest)})
    assert decode_manifest(encode_manifest(wide)) == wide


def test_duckdb_reads_a_manifest_as_a_table(manifest):
    table = pq.read_table(pa.BufferReader(encode_manifest(manifest)))
    found = run_view("SELECT unnest(buckets, recursive := true) FROM manifest", {"manifest": table}, ["label"])
    assert found.to_pylist() == [bucket.model_dump() for bucket in manifest.buckets]


@pytest.mark.parametrize("damage", ["cut short", "not parquet", "other columns", "two rows", "a null"])
def test_bytes_that_are_no_manifest_are_refused(manifest, damage):
    whole = pq.read_table(pa.BufferReader(encode_manifest(manifest)))
    tables = {
        "other columns": pa.table({"x": [1]}),
        "two rows": pa.concat_tables([whole, whole]),
        "a null": whole.set_column(0, "columns", pa.nulls(1, whole.schema.field(0).type)),
    }
    data = {"cut short": encode_manifest(manifest)[:-9], "not parquet": b"{}"}.get(damage)
    if data is None:
        sink = pa.BufferOutputStream()
        pq.write_table(tables[damage], sink)
        data = sink.getvalue().to_pybytes()
    with pytest.raises(IntegrityError, match="manifest cannot be read"):
        decode_manifest(data)


def test_an_untouched_source_is_unchanged_and_not_read(folder, files):
    assert changed(files, folder) == ()
    lies = tuple(file.model_copy(update={"hexdigest": "0" * 64}) for file in files)
    assert changed(lies, folder) == ()


def test_a_touched_file_is_hashed_and_is_unchanged_when_its_bytes_are(folder, files):
    os.utime(folder / "a.parquet", ns=(1, 1))
    assert changed(files, folder) == ()
    (folder / "b.parquet").write_bytes(b"B.parquet")
    assert changed(files, folder) == ("b.parquet",)
    (folder / "b.parquet").write_bytes(b"b.parquet")
    assert changed(files, folder) == ()


def test_added_and_removed_files_differ(folder, files):
    (folder / "a.parquet").rename(folder / "c.parquet")
    assert changed(files, folder) == ("a.parquet", "c.parquet")


def test_a_source_that_is_one_file(folder):
    path = folder / "a.parquet"
    files = (hashed(folder, path.name),)
    assert changed(files, path) == ()
    path.write_bytes(b"other")
    assert changed(files, path) == ("a.parquet",)
    path.unlink()
    with pytest.raises(NotFoundError):
        changed(files, path)


def test_a_gate_pays_for_no_heavy_import(manifest, folder, tmp_path):
    (tmp_path / "manifest").write_bytes(encode_manifest(manifest))
    program = (
        "import sys; from pathlib import Path\n"
        "from snapline.lineage.digest import BulkAlgorithm\n"
        "from snapline.lineage.manifest import changed_files, decode_manifest\n"
        "from snapline.lineage.sources.opening import open_source\n"
        "found = decode_manifest(Path(sys.argv[1]).read_bytes())\n"
        "source = open_source(sys.argv[2], BulkAlgorithm.BLAKE3)\n"
        "assert changed_files(found.files, source, source.commit()) == ()\n"
        "heavy = {'duckdb', 'pandas', 'pyarrow.compute', 'pyarrow.dataset', 'torch', 'mlflow'} & sys.modules.keys()\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(tmp_path / "manifest"), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
