"""File stamps and hashed files."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from blake3 import blake3

from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.files import hash_file, stamp_of


def test_a_file_is_hashed_and_stamped(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"content")
    found = hash_file(tmp_path, "a/b", BulkAlgorithm.BLAKE3)
    assert (found.path, found.hexdigest) == ("a/b", blake3(b"content").hexdigest())
    stat = (tmp_path / "a" / "b").stat()
    assert found.stamp.model_dump() == {
        "size_bytes": 7,
        "mtime_ns": stat.st_mtime_ns,
        "ctime_ns": stat.st_ctime_ns,
        "inode": stat.st_ino,
    }
    assert hash_file(tmp_path, "a/b", BulkAlgorithm.SHA256).hexdigest == hashlib.sha256(b"content").hexdigest()


def test_a_modification_time_put_back_still_leaves_another_stamp(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"content")
    before, stat = stamp_of(path), path.stat()
    path.write_bytes(b"CONTENT")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = stamp_of(path)
    assert (after.size_bytes, after.mtime_ns, after.inode) == (before.size_bytes, before.mtime_ns, before.inode)
    assert after != before


def test_a_missing_file_and_a_file_used_as_a_folder_are_not_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "absent", tmp_path / "file" / "inside"):
        with pytest.raises(NotFoundError, match="no file"):
            stamp_of(path)


def test_what_is_not_a_regular_file_has_no_stamp(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("absent")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "folder", "pipe"):
        with pytest.raises(DefinitionError, match=f"{name} is not a regular file"):
            hash_file(tmp_path, name, BulkAlgorithm.BLAKE3)


def test_a_file_that_grows_while_it_is_read_is_a_conflict(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (32 << 20))
    writer = subprocess.Popen(["sh", "-c", 'while :; do echo y >> "$0"; done', str(path)])
    try:
        size = path.stat().st_size
        while path.stat().st_size == size:
            pass  # until the writer writes
        with pytest.raises(ConflictError, match="changed while it was read"):
            hash_file(tmp_path, "log", BulkAlgorithm.SHA256)
    finally:
        writer.kill()
        writer.wait()
