"""Digests remembered by file stamp, so that a file nobody touched need not be read again.

The cache is a convenience: it may be deleted, lost or damaged at any time, and then files are read again. It is a small
SQLite file beside the ledger, so parallel writers cannot break it.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from snapline.lineage.files import FileStamp

# A kernel stamps files from a clock that ticks every 1 to 10 ms: two writes in one tick leave the same stamp.
CLOCK_GRANULARITY_NS = 20_000_000
_BUSY_SECONDS = 5.0
_SCHEMA = """CREATE TABLE IF NOT EXISTS remembered
    (path BLOB, recipe TEXT, stamp TEXT, value TEXT, PRIMARY KEY (path, recipe)) WITHOUT ROWID"""
_SELECT = "SELECT value FROM remembered WHERE path = ? AND recipe = ? AND stamp = ?"
_INSERT = "INSERT OR REPLACE INTO remembered VALUES (?, ?, ?, ?)"


class StatCache:
    """Values computed from files' bytes, each valid for exactly one stamp.

    Args:
        path: The cache's file; made, with its folder, by the first `put`.
        now_ns: The present instant, nanoseconds since the epoch. Files are read after it, so a stamp clearly older than
            it cannot hide a later write; a younger one is never remembered (git's "racily clean" rule).
    """

    def __init__(self, path: Path, *, now_ns: int) -> None:
        self.path = path
        self.now_ns = now_ns

    def get(self, file: Path, stamp: FileStamp, recipe: str) -> str | None:
        """Return what `put` remembered for this file under this very stamp, or None.

        Args:
            file: The file, absolute.
            stamp: Its stamp now.
            recipe: What was computed and how, such as `blake3-file-v1`.
        """
        with suppress(sqlite3.Error), closing(self._connect("ro")) as connection:
            row = connection.execute(_SELECT, _key(file, recipe, stamp)).fetchone()
            return row[0] if row and isinstance(row[0], str) else None
        return None

    def put(self, file: Path, stamp: FileStamp, recipe: str, value: str) -> None:
        """Remember a value computed from the bytes the file had under `stamp`, unless the stamp is too young."""
        if max(stamp.mtime_ns, stamp.ctime_ns) > self.now_ns - CLOCK_GRANULARITY_NS:
            return
        row = (*_key(file, recipe, stamp), value)
        try:
            self._insert(row)
        except (OSError, sqlite3.OperationalError):
            return  # a read-only disk, or locked for long
        except sqlite3.DatabaseError:
            with suppress(OSError, sqlite3.Error):
                self.path.unlink(missing_ok=True)
                self._insert(row)

    def _insert(self, row: tuple[object, ...]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._connect("rwc")) as connection, connection:
            connection.execute("PRAGMA synchronous = OFF")  # a power cut may lose a cache
            connection.execute(_SCHEMA)
            connection.execute(_INSERT, row)

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(f"{self.path.absolute().as_uri()}?mode={mode}", uri=True, timeout=_BUSY_SECONDS)


def _key(file: Path, recipe: str, stamp: FileStamp) -> tuple[bytes, str, str]:
    return os.fsencode(file), recipe, stamp.model_dump_json()
