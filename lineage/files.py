"""Files as evidence: what a file's stat said when its bytes were hashed.

A stamp lets a later check skip re-reading a file that nobody touched. Equal stamps mean the digest still holds;
different stamps mean only that the bytes must be hashed again. The change time is part of a stamp because, unlike the
modification time, a program cannot set it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from snapline.lineage.digest import BulkAlgorithm, file_hex
from snapline.lineage.documents import Value
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError


class FileStamp(Value):
    """The parts of a file's stat that change when its bytes do; times in nanoseconds."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class HashedFile(Value):
    """A file's path, relative to the folder that was hashed, its stamp, and the hex digest of its bytes."""

    path: str
    stamp: FileStamp
    hexdigest: str


class SourceFile(HashedFile):
    """A file of a source, and which buckets of a snapshot it has rows of.

    Attributes:
        first: Label of the earliest bucket inside the window that the file has rows in; None when it has none.
        last: Label of the latest.
        later: How many of its rows lie at or after the window's end.
    """

    first: str | None = None
    last: str | None = None
    later: int = 0


def stamp_of(path: Path | str) -> FileStamp:
    """Return the stamp of a regular file.

    Raises:
        NotFoundError: There is no such file.
        DefinitionError: It is a link, a folder, a socket or a device.
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(
            f"no file {path}", hint="Put it back; if it was vacuumed or expired, read a newer commit."
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise DefinitionError(
            f"{path} is not a regular file", hint="Links, sockets and devices are not hashed; use the file itself."
        )
    return FileStamp(
        size_bytes=found.st_size, mtime_ns=found.st_mtime_ns, ctime_ns=found.st_ctime_ns, inode=found.st_ino
    )


def hash_file(folder: Path, relative: str, algorithm: BulkAlgorithm) -> HashedFile:
    """Hash one file and stamp it.

    Raises:
        ConflictError: The file changed while it was read.
    """
    path = folder / relative
    before = stamp_of(path)
    hexdigest = file_hex(path, algorithm)
    if stamp_of(path) != before:
        raise ConflictError(
            f"{path} changed while it was read", hint="Wait until nothing writes to it and run this again."
        )
    return HashedFile(path=relative, stamp=before, hexdigest=hexdigest)
