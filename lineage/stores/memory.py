"""Entries kept in this process, for tests and for trying things out."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from snapline.lineage.stores.protocol import Entry, require_unmoved


class MemoryStore:
    """A store that lasts as long as the object; safe to share between threads."""

    def __init__(self) -> None:
        self._entries: tuple[Entry, ...] = ()
        self._lock = Lock()

    def load(self) -> Sequence[Entry]:
        """Return every entry in order."""
        return self._entries

    def append(self, entries: Sequence[Entry], expected_length: int, expected_head: str) -> None:
        """Add all entries, or none.

        Raises:
            ConflictError: The store holds other entries by now.
        """
        with self._lock:
            last = (len(self._entries), self._entries[-1].digest) if self._entries else None
            require_unmoved((expected_length, expected_head), last)
            self._entries = (*self._entries, *entries)
