"""The stat cache: what it vouches for, what it must not, and what a damaged one does."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file

from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.files import FileStamp, stamp_of
from snapline.lineage.stat_cache import CLOCK_GRANULARITY_NS, StatCache
from snapline.lineage.weights import check_weights, measure_weights

BLAKE3 = BulkAlgorithm.BLAKE3
RECIPE = "blake3-file-v1"
OLD = FileStamp(size_bytes=3, mtime_ns=1_000, ctime_ns=2_000, inode=2**64 - 1)
NOW = 10**18


@pytest.fixture
def cache(tmp_path: Path) -> StatCache:
    return StatCache(tmp_path / "cache" / "digests.db", now_ns=NOW)


def test_an_empty_cache_knows_nothing_and_makes_no_file(cache: StatCache, tmp_path: Path) -> None:
    assert cache.get(tmp_path / "a", OLD, RECIPE) is None
    assert not cache.path.exists()


def test_a_value_is_remembered_for_one_file_stamp_and_recipe(cache: StatCache, tmp_path: Path) -> None:
    cache.put(tmp_path / "a", OLD, RECIPE, "x")
    assert StatCache(cache.path, now_ns=NOW).get(tmp_path / "a", OLD, RECIPE) == "x"
    assert cache.get(tmp_path / "b", OLD, RECIPE) is None
    assert cache.get(tmp_path / "a", OLD, "sha256-file-v1") is None
    for field in FileStamp.model_fields:
        moved = OLD.model_copy(update={field: 7})
        assert cache.get(tmp_path / "a", moved, RECIPE) is None, field


def test_the_newest_value_wins(cache: StatCache, tmp_path: Path) -> None:
    moved = OLD.model_copy(update={"ctime_ns": 3_000})
    cache.put(tmp_path / "a", OLD, RECIPE, "x")
    cache.put(tmp_path / "a", moved, RECIPE, "y")
    assert cache.get(tmp_path / "a", OLD, RECIPE) is None
    assert cache.get(tmp_path / "a", moved, RECIPE) == "y"


@pytest.mark.parametrize("field", ["mtime_ns", "ctime_ns"])
def test_a_stamp_that_could_hide_a_later_write_is_not_remembered(cache: StatCache, tmp_path: Path, field: str) -> None:
    young = OLD.model_copy(update={field: NOW - CLOCK_GRANULARITY_NS + 1})
    cache.put(tmp_path / "a", young, RECIPE, "x")
    assert cache.get(tmp_path / "a", young, RECIPE) is None
    settled = OLD.model_copy(update={field: NOW - CLOCK_GRANULARITY_NS})
    cache.put(tmp_path / "a", settled, RECIPE, "x")
    assert cache.get(tmp_path / "a", settled, RECIPE) == "x"


@pytest.mark.parametrize("damage", [b"", b"{}", b"not a database" * 400])
def test_a_damaged_cache_is_an_empty_one_and_heals(cache: StatCache, tmp_path: Path, damage: bytes) -> None:
    cache.path.parent.mkdir()
    cache.path.write_bytes(damage)
    assert cache.get(tmp_path / "a", OLD, RECIPE) is None
    cache.put(tmp_path / "a", OLD, RECIPE, "x")
    assert cache.get(tmp_path / "a", OLD, RECIPE) == "x"


def test_a_cut_off_cache_is_an_empty_one(cache: StatCache, tmp_path: Path) -> None:
    cache.put(tmp_path / "a", OLD, RECIPE, "x" * 50_000)
    cache.path.write_bytes(cache.path.read_bytes()[:6000])
    assert cache.get(tmp_path / "a", OLD, RECIPE) is None
    cache.put(tmp_path / "a", OLD, RECIPE, "y")
    assert cache.get(tmp_path / "a", OLD, RECIPE) == "y"


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = StatCache(tmp_path / "file" / "digests.db", now_ns=NOW)
    cache.put(tmp_path / "a", OLD, RECIPE, "x")
    assert cache.get(tmp_path / "a", OLD, RECIPE) is None


def _write_many(path: Path, writer: int) -> None:
    cache = StatCache(path, now_ns=NOW)
    for number in range(20):
        cache.put(Path(f"/{writer}/{number}"), OLD, RECIPE, f"{writer}-{number}")


def test_parallel_writers_lose_nothing(cache: StatCache) -> None:
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(_write_many, [cache.path] * 4, range(4)))
    for writer in range(4):
        for number in range(20):
            assert cache.get(Path(f"/{writer}/{number}"), OLD, RECIPE) == f"{writer}-{number}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "weights"
    found.mkdir()
    save_file({"a": numpy.arange(1000, dtype=numpy.float32)}, found / "model.safetensors")
    return found


def fresh(path: Path) -> StatCache:
    time.sleep(2 * CLOCK_GRANULARITY_NS / 1e9)
    return StatCache(path, now_ns=time.time_ns())


def test_what_was_measured_is_not_read_again(folder: Path, tmp_path: Path) -> None:
    cache = fresh(tmp_path / "digests.db")
    manifest = measure_weights(folder, BLAKE3, cache=cache)
    read: list[int] = []
    again = measure_weights(folder, BLAKE3, cache=cache, on_progress=lambda _, done, __: read.append(done))
    assert again == manifest
    assert read == []


def test_equal_stamps_are_believed_and_full_believes_nothing(folder: Path, tmp_path: Path) -> None:
    cache = fresh(tmp_path / "digests.db")
    manifest = measure_weights(folder, BLAKE3, cache=cache)
    model = folder / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    cache = fresh(cache.path)
    cache.put(model, stamp_of(model), RECIPE, manifest.files[0].hexdigest)  # forged: nobody hashed these bytes
    assert check_weights(manifest, folder, BLAKE3, cache=cache, full=False) == ()
    changed = ("model.safetensors: tensor a changed",)
    assert check_weights(manifest, folder, BLAKE3, cache=cache, full=True) == changed
    # The full reading corrected what the cache believed.
    assert check_weights(manifest, folder, BLAKE3, cache=cache, full=False) == changed


def test_a_touched_file_is_read_again_and_found_equal(folder: Path, tmp_path: Path) -> None:
    cache = fresh(tmp_path / "digests.db")
    manifest = measure_weights(folder, BLAKE3, cache=cache)
    model = folder / "model.safetensors"
    os.utime(model)
    cache = fresh(cache.path)
    assert cache.get(model, stamp_of(model), RECIPE) is None
    assert check_weights(manifest, folder, BLAKE3, cache=cache, full=False) == ()
    assert cache.get(model, stamp_of(model), RECIPE) == manifest.files[0].hexdigest


def test_a_renamed_folder_keeps_its_files_stamps(folder: Path) -> None:
    before = stamp_of(folder / "model.safetensors")
    moved = folder.rename(folder.with_name("moved"))
    assert stamp_of(moved / "model.safetensors") == before
