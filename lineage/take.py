"""Take a snapshot of a source, hold one against its source, and read one's rows back.

A row is a member of a cut when `since <= time < until` and, in a series with a known column, `known <= as_of`. A row
inside the window that became known later is late: no member, and not forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapline.lineage.cut import Cut
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import ConflictError, DefinitionError
from snapline.lineage.files import HashedFile
from snapline.lineage.fingerprint import Fingerprint, fingerprint, instants, refuse_nulls, start_label
from snapline.lineage.manifest import encode_manifest
from snapline.lineage.objects import ObjectStore
from snapline.lineage.snapshot import BucketChange, BucketCount, Comparison, Manifest, Series, Snapshot
from snapline.lineage.sources.parquet import ParquetSource

_LABELS_NAMED = 10


def take(series: Series, cut: Cut, objects: ObjectStore, now: datetime) -> Snapshot:
    """Read a cut of a series' source, store its manifest, and return the snapshot.

    Args:
        series: What to read.
        cut: Which rows; without an as-of instant, one is set to `now` when the series has a known column.
        objects: Where the manifest goes; its algorithm is the snapshot's.
        now: The instant of the take.

    Raises:
        DefinitionError: The source cannot be cut this way: a column is missing, has nulls or the wrong type, or an
            as-of instant was given without a known column.
        NotFoundError: The source is gone.
        ConflictError: The source changed while it was read.
    """
    if series.known is None and cut.as_of is not None:
        raise DefinitionError(
            f"snapshot {series.name!r} has no known column, so nothing can be cut as of {cut.as_of.isoformat()}",
            hint="Leave out the as-of instant, or start a series with a known column.",
        )
    if series.known is not None and cut.as_of is None:
        cut = Cut(since=cut.since, until=cut.until, as_of=now)
    content = _read(series, cut, objects.algorithm)
    found = content.members
    manifest = Manifest(columns=found.columns, buckets=found.buckets, files=content.files, left_out=content.left_out)
    return Snapshot(
        series=series,
        cut=cut,
        digest=found.digest,
        rows=found.table.num_rows,
        buckets=len(found.buckets),
        manifest=objects.put(encode_manifest(manifest)),
        taken_at=now,
    )


def compare(
    snapshot: Snapshot, manifest: Manifest, algorithm: BulkAlgorithm
) -> tuple[Comparison, tuple[HashedFile, ...]]:
    """Return how a snapshot's source differs from it now, and the files that were read to say so.

    Raises:
        DefinitionError: The source can no longer be cut this way.
        NotFoundError: The source is gone.
        ConflictError: The source changed while it was read.
    """
    content = _read(snapshot.series, snapshot.cut, algorithm)
    changed = _changes(manifest, content.members)
    late = arrived_since(manifest.left_out, content.left_out)
    delta = sum(max(change.rows_then, change.rows_now) for change in changed + late)
    return Comparison(changed=changed, late=late, delta_rows=delta), content.files


def arrived_since(then: Iterable[BucketCount], now: Iterable[BucketCount]) -> tuple[BucketChange, ...]:
    """Return the buckets that hold more left-out rows now than then: rows that arrived late."""
    before = {count.label: count.rows for count in then}
    grown = ((count.label, count.rows - before.get(count.label, 0)) for count in now)
    return tuple(BucketChange(label=label, rows_then=0, rows_now=more) for label, more in grown if more > 0)


def rows(snapshot: Snapshot, manifest: Manifest, algorithm: BulkAlgorithm) -> pa.Table:
    """Return a snapshot's rows, verified against its digest, in key order within its buckets.

    Raises:
        ConflictError: The source no longer holds them; the message names the buckets that differ.
        DefinitionError: The source can no longer be cut this way.
        NotFoundError: The source is gone.
    """
    found = _read(snapshot.series, snapshot.cut, algorithm).members
    if found.digest != snapshot.digest:
        labels = [change.label for change in _changes(manifest, found)] or ["its columns"]
        more = f" and {len(labels) - _LABELS_NAMED} more" if len(labels) > _LABELS_NAMED else ""
        raise ConflictError(
            f"the source no longer holds the rows of snapshot {snapshot.series.name}@{snapshot.id[:12]}; "
            f"these differ: {', '.join(labels[:_LABELS_NAMED])}{more}",
            hint=f"Put {snapshot.series.source} back as it was, or take the snapshot anew.",
        )
    return found.table


@dataclass(frozen=True, slots=True)
class _Content:
    """What a source holds of a cut: its members, the rows left out as known too late, and the files that were read."""

    members: Fingerprint
    left_out: tuple[BucketCount, ...]
    files: tuple[HashedFile, ...]


class _Membership:
    """Chooses the members of a cut part by part, counting rows known too late and nulls on the way."""

    def __init__(self, series: Series, cut: Cut) -> None:
        self.series = series
        self.cut = cut
        self.control = tuple(dict.fromkeys(name for name in (series.time, series.known, series.key) if name))
        self.nulls: Counter[str] = Counter()
        self.left_out: Counter[int] = Counter()

    def __call__(self, part: pa.Table) -> NDArray[np.bool_]:
        """Return which rows of a part are members; none once there were nulls, for then there is no snapshot."""
        self.nulls.update({name: part.column(name).null_count for name in self.control})
        if self.nulls.total():
            return np.zeros(part.num_rows, np.bool_)
        time = instants(part, self.series.time)
        members = ~time.before(self.cut.since) & time.before(self.cut.until)
        if self.series.known is not None and self.cut.as_of is not None:
            known = instants(part, self.series.known).not_after(self.cut.as_of)
            starts, counts = np.unique(time.bucket_starts(self.series.bucket)[members & ~known], return_counts=True)
            self.left_out.update(dict(zip(starts.tolist(), counts.tolist(), strict=True)))
            members &= known
        return members


def _read(series: Series, cut: Cut, algorithm: BulkAlgorithm) -> _Content:
    membership = _Membership(series, cut)
    reading = ParquetSource(Path(series.source), algorithm).read(membership.control, membership)
    refuse_nulls(membership.nulls)
    members = fingerprint(reading.table, time=series.time, key=series.key, bucket=series.bucket, algorithm=algorithm)
    left_out = tuple(
        BucketCount(label=start_label(start, series.bucket), rows=count)
        for start, count in sorted(membership.left_out.items())
    )
    return _Content(members, left_out, reading.files)


def _changes(manifest: Manifest, found: Fingerprint) -> tuple[BucketChange, ...]:
    then = {bucket.label: bucket for bucket in manifest.buckets}
    now = {bucket.label: bucket for bucket in found.buckets}
    return tuple(
        BucketChange(
            label=label,
            rows_then=then[label].rows if label in then else 0,
            rows_now=now[label].rows if label in now else 0,
        )
        for label in sorted(then.keys() | now.keys())
        if then.get(label) != now.get(label)
    )
