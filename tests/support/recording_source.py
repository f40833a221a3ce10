"""A second real source: Parquet files as they are, which remembers which of them anybody scanned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa

from snapline.lineage.files import FileStamp
from snapline.lineage.snapshot import Commit
from snapline.lineage.sources.parquet import ParquetSource
from snapline.lineage.sources.protocol import Source, Window


class RecordingSource:
    """Passes everything on to another source, and keeps the names of the files that were scanned or hashed."""

    def __init__(self, source: Source | ParquetSource) -> None:
        self.source = source
        self.scanned: list[str] = []
        self.hashed: list[str] = []

    @property
    def travels(self) -> bool:
        return self.source.travels

    def commit(self, version: str | None = None, as_of: datetime | None = None) -> Commit:
        return self.source.commit(version, as_of)

    def commits(self) -> tuple[Commit, ...]:
        return self.source.commits()

    def names(self, commit: Commit) -> tuple[str, ...]:
        return self.source.names(commit)

    def stamp(self, name: str) -> FileStamp:
        return self.source.stamp(name)

    def hexdigest(self, name: str) -> str:
        self.hashed.append(name)
        return self.source.hexdigest(name)

    def schema(self, commit: Commit) -> pa.Schema:
        return self.source.schema(commit)

    def scan(
        self, commit: Commit, name: str, time: str, window: Window | None, columns: Sequence[str] | None
    ) -> Iterator[pa.Table]:
        self.scanned.append(name)
        yield from self.source.scan(commit, name, time, window, columns)
