"""The membership index as a file, and the hashes in it, which stored indices rely on for ever."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import IntegrityError
from snapline.lineage.objects import ObjectStore
from snapline.lineage.rows.hashes import Hashes, key_hashes, row_hashes, salt_fingerprint
from snapline.lineage.rows.membership import IndexWriter, holding, over_report, read_index

SALT = "5a" * 32
GOLDEN_KEYS = ["141a18f9382744dd", "7bffde66bd245cea", "814d8635242b46ea"]
GOLDEN_CONTENTS = ["7131b234", "783de560", "5b1c523c"]
GOLDEN_SALT = "7e6cf45d968f9382b08f1317d6f2a8cb"
ROWS = pa.table(
    {
        "id": pa.array([1, -1, 2**40], pa.int64()),
        "name": ["", "ada", "x" * 33],
        "at": pa.array([0, None, 1_500_000_000_123_456_789], pa.timestamp("ns", "UTC")),
        "tags": [[], ["a", None], None],
    }
)


def index_of(path: Path, buckets: int, rows: int) -> dict[str, Hashes]:
    random = np.random.default_rng(0)
    written = {}
    with IndexWriter(path) as writer:
        for number in range(buckets):
            hashes = Hashes(random.integers(2**64, size=rows, dtype=np.uint64), np.arange(rows, dtype=np.uint32))
            writer.add(f"b{number:04d}", hashes)
            written[f"b{number:04d}"] = hashes
    return written


def test_hashes_are_those_of_the_recipe():
    """Stored indices and tombstones hold these: another value here means a new recipe, under a new name."""
    found = row_hashes(ROWS, "id", SALT)
    assert [f"{key:016x}" for key in found.keys] == GOLDEN_KEYS
    assert [f"{content:08x}" for content in found.contents] == GOLDEN_CONTENTS
    assert salt_fingerprint(SALT) == GOLDEN_SALT


def test_a_key_of_minus_zero_is_a_key_of_zero_though_the_rows_differ():
    zero, minus = (row_hashes(pa.table({"k": [value]}), "k", SALT) for value in (0.0, -0.0))
    assert zero.keys == minus.keys
    assert zero.contents != minus.contents


def test_hashes_look_independent_of_each_other_and_of_the_keys():
    """Of consecutive keys, each bit is set half of the time, within six standard deviations."""
    hashes = key_hashes(pa.array(range(40_000), pa.int64()), SALT)
    assert len(set(hashes.tolist())) == 40_000
    shares = [np.mean((hashes >> np.uint64(bit)) & np.uint64(1)) for bit in range(64)]
    assert max(abs(share - 0.5) for share in shares) < 6 * 0.5 / np.sqrt(40_000)


def test_reading_one_bucket_reads_few_rows_and_a_row_takes_eleven_bytes(tmp_path):
    path = tmp_path / "index.parquet"
    written = index_of(path, 60, 5_000)
    with pq.ParquetFile(path) as file:
        assert file.num_row_groups > 4
    assert path.stat().st_size / 300_000 < 11
    found = read_index(path, {"b0031"})
    assert list(found) == ["b0031"]
    assert sorted(found["b0031"].contents.tolist()) == list(range(5_000))
    assert set(found["b0031"].keys.tolist()) == set(written["b0031"].keys.tolist())


def test_a_large_bucket_is_one_bucket_in_several_row_groups(tmp_path):
    path = tmp_path / "index.parquet"
    index_of(path, 1, (1 << 20) + 5)
    with pq.ParquetFile(path) as file:
        assert file.num_row_groups == 2
    assert len(read_index(path)["b0000"]) == (1 << 20) + 5


def test_an_index_of_no_rows_holds_nothing(tmp_path):
    path = tmp_path / "index.parquet"
    index_of(path, 0, 0)
    assert read_index(path) == {}
    assert holding(path, np.array([1], np.uint64)).tolist() == [False]
    index_of(path, 1, 1)
    assert holding(path, np.zeros(0, np.uint64)).tolist() == []


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no index"])
def test_what_is_no_index_is_refused(tmp_path, content):
    path = tmp_path / "index.parquet"
    path.write_bytes(content)
    for look in (read_index, lambda found: holding(found, np.zeros(1, np.uint64))):
        with pytest.raises(IntegrityError, match="cannot be read"):
            look(path)


def test_an_index_of_another_recipe_is_refused(tmp_path):
    path = tmp_path / "index.parquet"
    index_of(path, 1, 3)
    pq.write_table(pq.read_table(path).replace_schema_metadata({"recipe": "membership-v0"}), path)
    with pytest.raises(IntegrityError, match="no membership index of recipe membership-v1"):
        read_index(path)


def test_a_stored_index_is_verified_before_it_is_used(tmp_path):
    objects = ObjectStore(tmp_path / "objects", BulkAlgorithm.BLAKE3)
    index_of(tmp_path / "index.parquet", 1, 3)
    address = objects.put_file(tmp_path / "index.parquet")
    path = objects.verified(address)
    assert len(read_index(path)["b0000"]) == 3
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(IntegrityError, match="holds other bytes"):
        objects.verified(address)
    path.unlink()
    with pytest.raises(IntegrityError, match="cannot be read"):
        objects.verified(address)


def test_the_bound_on_mistaken_claims_is_keys_times_rows_over_two_to_the_64():
    assert over_report(1, 2**64) == over_report(2**40, 2**40) == 1
    assert over_report(1000, 10**7) == pytest.approx(5.42e-10, rel=1e-2)
    assert over_report(0, 10**7) == 0
