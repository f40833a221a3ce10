"""What the suites of sources share: a table that is made and opened again, and its rows by way of the source."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from source_tables import KEY, MAKERS, TIME, Maker
from source_tables_more import MORE_MAKERS

from snapline.lineage.cut import Bucket
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.rows.fingerprint import fingerprint
from snapline.lineage.snapshot import Commit
from snapline.lineage.sources.opening import open_source
from snapline.lineage.sources.protocol import Source, Window

EVERY = [*MAKERS, *MORE_MAKERS]
TRAVELLING = [maker for maker in EVERY if maker.travels]


class Place:
    """Where a maker keeps its table: makes it when called, and opens it, again if need be."""

    def __init__(self, maker: Maker, folder: Path) -> None:
        self.maker = maker
        self.folder = folder / f"t{uuid.uuid4().hex}"

    def __call__(self, table: pa.Table) -> Source:
        self.folder.mkdir()
        self.spec = self.maker.create(self.folder, table)
        return self.again()

    def again(self) -> Source:
        return open_source(self.spec, BulkAlgorithm.BLAKE3)


def scanned(
    source: Source, commit: Commit, window: Window | None = None, names: Iterable[str] | None = None
) -> pa.Table:
    """Every row of a commit, or of some of its files."""
    chosen = source.names(commit) if names is None else names
    tables = [piece for name in chosen for piece in source.scan(commit, name, TIME, window, None)]
    return pa.concat_tables([source.schema(commit).empty_table(), *tables], promote_options="permissive")


def digest(table: pa.Table) -> str:
    return fingerprint(table, time=TIME, key=KEY, bucket=Bucket.DAY, algorithm=BulkAlgorithm.BLAKE3).digest


def keys(table: pa.Table) -> list[int]:
    return sorted(table.column(KEY).to_pylist())
