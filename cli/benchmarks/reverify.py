"""What holding a snapshot against its source costs when one day of a thousand changed."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from snapline.cli.benchmarks import tables
from snapline.cli.benchmarks.measuring import Row, median_seconds
from snapline.lineage.comparing import compare
from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.manifest import decode_manifest
from snapline.lineage.objects import ObjectStore
from snapline.lineage.snapshot import Series
from snapline.lineage.take import Archive, take

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TARGET = 50


def measure(rows: int) -> list[Row]:
    """Return the seconds of a full re-verify and of one that reads only what moved, and their ratio."""
    rows -= rows % tables.DAYS
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "days")
        source.mkdir()
        per_day = rows // tables.DAYS
        for day in range(tables.DAYS):
            _write_day(source, day, per_day, rows)
        series = Series(name="rows", source=str(source), time="time", known=None, key="key", bucket=Bucket.DAY)
        cut = Cut(since=EPOCH, until=EPOCH + timedelta(days=tables.DAYS))
        archive = Archive(ObjectStore(Path(folder, "objects"), BulkAlgorithm.BLAKE3), "0" * 64)
        snapshot = take(series, cut, archive, EPOCH)
        manifest = decode_manifest(archive.objects.read(snapshot.manifest))
        _correct(source / "0500.parquet")
        found = compare(snapshot, manifest, archive).comparison
        if [change.corrected for change in found.changed] != [1]:
            raise AssertionError(f"expected one corrected row, found {found}")
        full = median_seconds(lambda: compare(snapshot, manifest, archive, full=True), repeats=1)
        part = median_seconds(lambda: compare(snapshot, manifest, archive))
    what = f"{rows:,} rows in {tables.DAYS} daily files"
    speed_up = full / part
    return [
        Row("re-verify", f"full: {what}", full, "s"),
        Row("re-verify", "after 1 changed bucket in 1,000", part, "s"),
        Row("re-verify", "full over incremental", speed_up, "x", target=f"at least {TARGET}x", met=speed_up >= TARGET),
    ]


def _write_day(source: Path, day: int, per_day: int, rows: int) -> None:
    keys = np.arange(day * per_day, (day + 1) * per_day)
    pq.write_table(tables.batch(keys, rows), source / f"{day:04}.parquet")


def _correct(path: Path) -> None:
    table = pq.read_table(path)
    counts = table.column("count").to_numpy().copy()
    counts[0] += 1
    pq.write_table(table.set_column(table.column_names.index("count"), "count", pa.array(counts)), path)
