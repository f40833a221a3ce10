"""One name for several files: a data file with what else decides its rows, such as a write-ahead log or deletes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from snapline.lineage.digest import BulkAlgorithm, bytes_hex
from snapline.lineage.files import FileStamp

_INODE_DIGITS = 12  # 48 bits


def bundle_stamp(stamps: Sequence[FileStamp]) -> FileStamp:
    """Return one stamp for several files: their total size, their newest times, and a digest of all their stamps.

    One file keeps its own stamp. The digest stands in the place of the inode.
    """
    if len(stamps) == 1:
        return stamps[0]
    described = json.dumps([stamp.model_dump() for stamp in stamps], sort_keys=True)
    return FileStamp(
        size_bytes=sum(stamp.size_bytes for stamp in stamps),
        mtime_ns=max(stamp.mtime_ns for stamp in stamps),
        ctime_ns=max(stamp.ctime_ns for stamp in stamps),
        inode=int(bytes_hex(described.encode(), BulkAlgorithm.SHA256)[:_INODE_DIGITS], 16),
    )


def bundle_hex(hexdigests: Sequence[str], algorithm: BulkAlgorithm) -> str:
    """Return one hex digest for the bytes of several files, in order; one file keeps its own."""
    return hexdigests[0] if len(hexdigests) == 1 else bytes_hex("\n".join(hexdigests).encode(), algorithm)
