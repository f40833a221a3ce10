from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from snapline.lineage.digest import BulkAlgorithm, bytes_hex
from snapline.lineage.errors import IntegrityError
from snapline.lineage.objects import ObjectStore


@pytest.fixture(params=list(BulkAlgorithm))
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "objects", request.param)


def files(objects: ObjectStore) -> list[Path]:
    return sorted(path for path in objects.root.rglob("*") if path.is_file())


def test_an_objects_address_is_the_digest_of_its_bytes(objects: ObjectStore) -> None:
    address = objects.put(b"bytes")
    assert address == f"{objects.algorithm}-object-v1:{bytes_hex(b'bytes', objects.algorithm)}"
    assert objects.read(address) == b"bytes"
    assert files(objects) == [objects.path(address)]


def test_the_same_bytes_are_kept_once_however_they_arrive(objects: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    assert objects.put(b"bytes") == objects.put(b"bytes") == objects.put_file(tmp_path / "file")
    assert len(files(objects)) == 1


def test_an_object_is_written_by_many_at_once_and_is_whole(objects: ObjectStore) -> None:
    data = b"x" * 100_000
    with ThreadPoolExecutor(8) as pool:
        addresses = set(pool.map(lambda _: objects.put(data), range(16)))
    assert len(addresses) == len(files(objects)) == 1
    assert objects.read(addresses.pop()) == data


def test_no_bytes_are_an_object_too(objects: ObjectStore) -> None:
    assert objects.read(objects.put(b"")) == b""


def test_a_home_reads_what_another_algorithm_addressed(tmp_path: Path) -> None:
    address = ObjectStore(tmp_path, BulkAlgorithm.SHA256).put(b"bytes")
    assert ObjectStore(tmp_path, BulkAlgorithm.BLAKE3).read(address) == b"bytes"


@pytest.mark.parametrize("crime", ["changed", "shortened", "emptied", "removed", "replaced by a folder", "no folder"])
def test_an_object_that_is_not_whole_is_refused(objects: ObjectStore, crime: str) -> None:
    address = objects.put(b"some bytes")
    path = objects.path(address)
    changes = {"changed": b"same bytes", "shortened": b"some byte", "emptied": b""}
    if crime in changes:
        path.chmod(0o644)
        path.write_bytes(changes[crime])
    else:
        path.unlink()
        if crime == "replaced by a folder":
            path.mkdir()
        elif crime == "no folder":
            path.parent.rmdir()
            path.parent.write_bytes(b"")
    with pytest.raises(IntegrityError, match=address) as caught:
        objects.read(address)
    assert "copy of this home" in caught.value.hint


def test_putting_an_object_again_mends_it(objects: ObjectStore) -> None:
    address = objects.put(b"some bytes")
    objects.path(address).chmod(0o644)
    objects.path(address).write_bytes(b"damaged")
    assert objects.put(b"some bytes") == address
    assert objects.read(address) == b"some bytes"


def test_nobody_is_invited_to_write_to_an_object(objects: ObjectStore) -> None:
    assert objects.path(objects.put(b"bytes")).stat().st_mode & 0o222 == 0


def test_a_missing_file_leaves_nothing_behind(objects: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        objects.put_file(tmp_path / "nothing")
    assert files(objects) == []


WORKER = """
import pathlib, sys, time
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.objects import ObjectStore
with ObjectStore(pathlib.Path(sys.argv[1]), BulkAlgorithm.BLAKE3).workspace() as folder:
    (folder / "rows").write_text("somebody's rows")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_a_workspace_is_gone_when_the_work_is_done_or_fails(objects: ObjectStore) -> None:
    with objects.workspace() as folder:
        (folder / "rows").write_text("rows")
    assert not folder.exists()
    with pytest.raises(KeyError), objects.workspace() as folder:
        raise KeyError
    assert not folder.exists()


def test_what_a_killed_process_left_is_removed_and_what_another_works_in_is_not(objects: ObjectStore) -> None:
    with (
        objects.workspace() as mine,
        subprocess.Popen(
            [sys.executable, "-c", WORKER, objects.root], stdout=subprocess.PIPE, encoding="utf-8"
        ) as worker,
    ):
        assert worker.stdout is not None
        theirs = Path(worker.stdout.readline().strip())
        with objects.workspace():
            assert (mine.is_dir(), (theirs / "rows").is_file()) == (True, True)
        worker.kill()
        worker.wait()
        assert (theirs / "rows").is_file()
        with objects.workspace():
            assert (mine.is_dir(), theirs.exists()) == (True, False)
