"""Weights that were tampered with after they were measured: each crime is noticed and named."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file

from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.stat_cache import CLOCK_GRANULARITY_NS, StatCache
from snapline.lineage.weights import WeightsManifest, check_weights, measure_weights


class Registered:
    """Weights in two shards, measured and remembered by a warm cache."""

    def __init__(self, root: Path, algorithm: BulkAlgorithm) -> None:
        self.folder, self.algorithm = root / "weights", algorithm
        self.folder.mkdir()
        for shard in ("one", "two"):
            tensors = {f"{shard}.{name}": numpy.arange(64, dtype=numpy.float32) for name in ("up", "down")}
            save_file(tensors, self.folder / f"{shard}.safetensors", metadata={"format": "pt"})
        (self.folder / "config.json").write_text('{"hidden_size": 64}')
        time.sleep(2 * CLOCK_GRANULARITY_NS / 1e9)
        self.cache = StatCache(root / "digests.db", now_ns=time.time_ns())
        self.manifest: WeightsManifest = measure_weights(self.folder, algorithm, cache=self.cache)

    def check(self, full: bool = False) -> tuple[str, ...]:
        return check_weights(self.manifest, self.folder, self.algorithm, cache=self.cache, full=full)


@pytest.fixture(params=list(BulkAlgorithm))
def registered(tmp_path: Path, request: pytest.FixtureRequest) -> Registered:
    found = Registered(tmp_path, request.param)
    assert found.check() == ()
    return found


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(place, os.SEEK_END if place < 0 else os.SEEK_SET)
        byte = stream.read(1)[0]
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 1]))


def replaced(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def test_one_flipped_byte_names_its_tensor(registered: Registered) -> None:
    flip(registered.folder / "one.safetensors", -1)
    assert registered.check() == ("one.safetensors: tensor one.up changed",)
    flip(registered.folder / "one.safetensors", -1)
    assert registered.check() == ()


def test_a_flip_with_the_modification_time_put_back(registered: Registered) -> None:
    path = registered.folder / "two.safetensors"
    before = path.stat()
    flip(path, -1)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert registered.check() == ("two.safetensors: tensor two.up changed",)


def test_other_weights_under_the_same_name_size_and_time(registered: Registered) -> None:
    path = registered.folder / "two.safetensors"
    before, fake = path.stat(), registered.folder.parent / "fake"
    shutil.copy(path, fake)
    flip(fake, -1)
    os.utime(fake, ns=(before.st_atime_ns, before.st_mtime_ns))
    fake.replace(path)
    assert registered.check() == ("two.safetensors: tensor two.up changed",)


def test_two_shards_that_swapped_names(registered: Registered) -> None:
    one, two = (registered.folder / f"{name}.safetensors" for name in ("one", "two"))
    one.rename(registered.folder / "aside")
    two.rename(one)
    (registered.folder / "aside").rename(two)
    sentences = registered.check()
    assert "one.safetensors: tensor one.up is missing" in sentences
    assert "two.safetensors: tensor one.up is extra" in sentences


def test_two_tensors_that_swapped_names(registered: Registered) -> None:
    flip(registered.folder / "one.safetensors", -1)  # so that the two differ
    manifest = measure_weights(registered.folder, registered.algorithm)
    path = registered.folder / "one.safetensors"
    content = path.read_bytes()
    path.write_bytes(
        content.replace(b"one.up", b"one.XX").replace(b"one.down", b"one.up").replace(b"one.XX", b"one.down")
    )
    sentences = check_weights(manifest, registered.folder, registered.algorithm, cache=registered.cache, full=False)
    assert sentences == ("one.safetensors: tensor one.down changed", "one.safetensors: tensor one.up changed")


def test_a_change_of_header_metadata_alone(registered: Registered) -> None:
    replaced(registered.folder / "one.safetensors", b'"format":"pt"', b'"format":"tf"')
    assert registered.check() == ("one.safetensors: its header changed, no tensor did",)


def test_a_reinterpreted_dtype(registered: Registered) -> None:
    path = registered.folder / "one.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"'))
    assert "one.safetensors: tensor one.up was F32 [64], is I32 [64]" in registered.check()


def test_a_file_slipped_in(registered: Registered) -> None:
    (registered.folder / "modeling.py").write_text("print('hello')")
    assert registered.check() == ("file modeling.py is extra",)


def test_a_file_taken_away(registered: Registered) -> None:
    (registered.folder / "config.json").unlink()
    assert registered.check() == ("file config.json is missing",)


def test_an_edited_configuration(registered: Registered) -> None:
    (registered.folder / "config.json").write_text('{"hidden_size": 63}')
    assert registered.check() == ("config.json: its bytes changed",)


@pytest.mark.parametrize("keep_bytes", [0, 4, 40, -1])
def test_a_truncated_file(registered: Registered, keep_bytes: int) -> None:
    path = registered.folder / "one.safetensors"
    path.write_bytes(path.read_bytes()[:keep_bytes])
    (sentence,) = registered.check()
    assert sentence.startswith("one.safetensors: its bytes changed: ")
    assert "not a well-formed safetensors file" in sentence


def test_bytes_appended(registered: Registered) -> None:
    with (registered.folder / "one.safetensors").open("ab") as stream:
        stream.write(b"payload")
    (sentence,) = registered.check()
    assert "follow the header" in sentence


def _link_to_a_copy(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def _link_inside(path: Path) -> None:
    path.unlink()
    path.symlink_to("two.safetensors")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("crime", "sentence"),
    [
        (_link_to_a_copy, "one.safetensors is a symbolic link"),
        (_link_inside, "one.safetensors is a symbolic link"),
        (_pipe, "one.safetensors is a named pipe"),
        (_folder, "file one.safetensors is missing"),
    ],
)
def test_a_file_that_is_no_longer_one(registered: Registered, crime: Callable[[Path], None], sentence: str) -> None:
    crime(registered.folder / "one.safetensors")
    assert registered.check() == (sentence,)


def test_the_folder_behind_a_link(registered: Registered) -> None:
    real = registered.folder.rename(registered.folder.parent / "elsewhere")
    registered.folder.symlink_to(real)
    assert registered.check() == (f"{registered.folder} has become a symbolic link",)


def test_the_folder_gone(registered: Registered) -> None:
    away = registered.folder.rename(registered.folder.parent / "away")
    with pytest.raises(NotFoundError, match="no weights folder"):
        registered.check()
    away.rename(registered.folder)
    assert registered.check() == ()


def test_a_pickle_in_place_of_safetensors(registered: Registered) -> None:
    path = registered.folder / "one.safetensors"
    path.write_bytes(b"\x80\x04K\x01.")
    assert registered.check()[0].startswith("one.safetensors: its bytes changed")
    with pytest.raises(DefinitionError, match="not a well-formed safetensors file"):
        measure_weights(registered.folder, registered.algorithm)


def test_a_lost_cache_only_costs_time(registered: Registered) -> None:
    registered.cache.path.unlink()
    assert registered.check() == ()
    flip(registered.folder / "one.safetensors", -1)
    registered.cache.path.write_bytes(b"garbage")
    assert registered.check() == ("one.safetensors: tensor one.up changed",)
    assert registered.check(full=True) == ("one.safetensors: tensor one.up changed",)
