"""Hold a snapshot against its source as it is now, re-reading only what may have changed.

A bucket can differ only if a file that reaches over it is not as it was hashed. So the buckets under changed files are
read, from every file that reaches over them, and no other. Rows of the buckets that differ are then paired with the
snapshot's by key, through its membership index: the old rows themselves need not be there any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapline.lineage.cut import Bucket, bucket_end, parse_instant
from snapline.lineage.files import HashedFile, SourceFile
from snapline.lineage.reading import Reader, hash_files, refuse_change
from snapline.lineage.rows.encoding import columns_of, plain
from snapline.lineage.rows.fingerprint import instants, start_label
from snapline.lineage.rows.hashes import key_hashes, row_hashes
from snapline.lineage.rows.membership import read_index
from snapline.lineage.rows.pairing import ROW_KINDS, Differing, Rows, differing, flat, joined
from snapline.lineage.rows.streaming import Layout, fingerprint_stream
from snapline.lineage.snapshot import BucketChange, BucketDigest, Column, Comparison, Manifest, Series, Snapshot
from snapline.lineage.sources.opening import open_source
from snapline.lineage.sources.protocol import Source, Window
from snapline.lineage.staleness import commits_after
from snapline.lineage.take import Archive


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison, the source's files as they were when it was made, and the rows of the buckets that differ."""

    comparison: Comparison
    files: tuple[SourceFile, ...]
    rows: Differing | None


def compare(
    snapshot: Snapshot, manifest: Manifest, archive: Archive, full: bool = False, source: Source | None = None
) -> Compared:
    """Return how a snapshot's source differs from it now.

    Args:
        snapshot: What was recorded.
        manifest: Its manifest.
        archive: With the tombstones of `manifest.erasures`.
        full: Hash every byte and read every row again, whatever the stamps say.
        source: The snapshot's source, where it is open already.

    Raises:
        DefinitionError: The source can no longer be cut this way.
        NotFoundError: The source is gone.
        ConflictError: The source changed while it was read.
    """
    source = source or open_source(snapshot.series.source, archive.objects.algorithm)
    commit = source.commit()
    reader = Reader(snapshot.series, snapshot.cut, source, commit, archive.tombstones)
    hashed = hash_files(source, commit, () if full else manifest.files)
    then = {file.path: file for file in manifest.files}
    files = tuple(_placed(file, then.get(file.path), reader) for file in hashed)
    here = columns_of(plain(reader.schema().empty_table()).schema)
    columns = column_changes(manifest.columns, here)
    changed: tuple[BucketChange, ...] = ()
    rows: Differing | None = None
    if not columns:
        touched = _all_labels(manifest, files) if full else _under_changed_files(manifest.files, files)
        changed, rows = _changed(reader, snapshot, manifest, archive, files, touched)
    elif _cut_alike(snapshot.series, manifest.columns, here):
        changed = _deleted(reader, snapshot, archive, [file.path for file in files])
    refuse_change(source, commit, hashed, snapshot.series.source)
    newer = sum(file.later for file in files)
    lag = commits_after(source.commits(), snapshot.commit) if source.travels else None
    return Compared(Comparison(changed=changed, columns=columns, commit=commit, lag=lag, newer=newer), files, rows)


def _placed(file: HashedFile, then: SourceFile | None, reader: Reader) -> SourceFile:
    """Return a file with the buckets it reaches over: those known, or found by reading its times."""
    if then is file:
        return then
    if then is not None and then.hexdigest == file.hexdigest:
        return then.model_copy(update={"stamp": file.stamp})
    return reader.place(file)


def column_changes(then: Sequence[Column], now: Sequence[Column]) -> tuple[str, ...]:
    """Return one phrase for each column that is not on both sides alike."""
    before, here = ({column.name: column.type for column in side} for side in (then, now))
    return tuple(
        f"column {name!r} was {before.get(name, 'missing')}, is {here.get(name, 'missing')}"
        for name in sorted(before.keys() | here.keys())
        if before.get(name) != here.get(name)
    )


def _cut_alike(series: Series, then: Sequence[Column], now: Sequence[Column]) -> bool:
    """Return whether the columns that a cut is made by are of the same types on both sides."""
    control = {series.time, series.key, series.known, series.known_until}
    before, here = ({column.name: column.type for column in side if column.name in control} for side in (then, now))
    return before == here


Span = tuple[str, str]


def _under_changed_files(then: Iterable[SourceFile], now: Iterable[SourceFile]) -> list[Span]:
    """Return the first and last bucket of each file that is not in both states alike."""
    before, here = ({file.path: file for file in side} for side in (then, now))
    moved = [
        file
        for side, other in ((before, here), (here, before))
        for path, file in side.items()
        if path not in other or other[path].hexdigest != file.hexdigest
    ]
    return [(file.first, file.last) for file in moved if file.first is not None and file.last is not None]


def _all_labels(manifest: Manifest, files: Iterable[SourceFile]) -> list[Span]:
    labels = [bucket.label for bucket in manifest.buckets]
    spans = [(labels[0], labels[-1])] if labels else []
    return spans + [(file.first, file.last) for file in files if file.first is not None and file.last is not None]


def windows_over(spans: Iterable[Span], bucket: Bucket) -> list[Window]:
    """Return the spans as windows of whole buckets that neither overlap nor touch."""
    windows: list[Window] = []
    for first, last in sorted(spans, key=lambda span: parse_instant(span[0])):
        since, until = parse_instant(first), bucket_end(last, bucket)
        if windows and since <= windows[-1].until:
            windows[-1] = Window(windows[-1].since, max(until, windows[-1].until))
        else:
            windows.append(Window(since, until))
    return windows


def reaches(file: SourceFile, window: Window, bucket: Bucket) -> bool:
    """Return whether a file may have rows in a window."""
    if file.first is None or file.last is None:
        return False
    return parse_instant(file.first) < window.until and bucket_end(file.last, bucket) > window.since


Parts = Sequence[tuple[Window, Sequence[str]]]


def _parts(files: Iterable[SourceFile], spans: Iterable[Span], bucket: Bucket) -> Parts:
    """Return the windows that spans make up, each with the files that reach into it."""
    windows = windows_over(spans, bucket)
    return [(window, [file.path for file in files if reaches(file, window, bucket)]) for window in windows]


def _changed(
    reader: Reader,
    snapshot: Snapshot,
    manifest: Manifest,
    archive: Archive,
    files: Sequence[SourceFile],
    touched: Sequence[Span],
) -> tuple[tuple[BucketChange, ...], Differing | None]:
    """Return the buckets inside the touched spans that differ, and their rows paired by key."""
    bucket = snapshot.series.bucket
    parts = _parts(files, touched, bucket)
    then = {found.label: found for found in manifest.buckets if _inside(found.label, parts)}
    now = {found.label: found for found in _digests(reader, archive, parts)}
    left_out = {count.label: count.rows for count in manifest.left_out}
    grown = {count.label for count in reader.left_out if count.rows > left_out.get(count.label, 0)}
    labels = sorted({label for label in then.keys() | now.keys() if then.get(label) != now.get(label)} | grown)
    if not labels:
        return (), None
    index = read_index(archive.objects.verified(snapshot.membership), labels)
    differ = _parts(files, [(label, label) for label in labels], bucket)
    rows = differing(Rows.of_index(index, labels), _rows_now(reader, archive, differ, labels), left_out)
    counts = rows.counts()
    changes = tuple(
        BucketChange(
            label=label,
            rows_then=then[label].rows if label in then else 0,
            rows_now=now[label].rows if label in now else 0,
            **{kind: int(counts[kind][place]) for kind in ROW_KINDS},
        )
        for place, label in enumerate(labels)
    )
    return changes, rows


def _deleted(reader: Reader, snapshot: Snapshot, archive: Archive, names: Sequence[str]) -> tuple[BucketChange, ...]:
    """Return the buckets that lost members, by key alone: among other columns no content is what it was."""
    series, rows_now = snapshot.series, Counter[str]()
    keys = []
    for piece in reader.pieces(names, on_progress=archive.on_progress):
        keys.append(key_hashes(piece.table.column(series.key), archive.salt))
        starts, counts = np.unique(piece.starts[piece.members], return_counts=True)
        rows_now.update(
            {start_label(int(start), series.bucket): int(n) for start, n in zip(starts, counts, strict=True)}
        )
    here = np.unique(flat(keys, np.uint64))
    members = read_index(archive.objects.verified(snapshot.membership))
    gone = {label: int(np.count_nonzero(~np.isin(hashes.keys, here))) for label, hashes in sorted(members.items())}
    return tuple(
        BucketChange(label=label, rows_then=len(members[label]), rows_now=rows_now[label], deleted=count)
        for label, count in gone.items()
        if count
    )


def _inside(label: str, parts: Parts) -> bool:
    start = parse_instant(label)
    return any(window.since <= start < window.until for window, _ in parts)


def _digests(reader: Reader, archive: Archive, parts: Parts) -> tuple[BucketDigest, ...]:
    """Return the digests of the members' buckets inside the windows, as they are now."""
    series = reader.series
    layout = Layout(plain(reader.schema().empty_table()).schema, series.time, series.key, series.bucket)
    pieces = (
        piece.member_rows
        for window, names in parts
        for piece in reader.pieces(names, window, on_progress=archive.on_progress)
    )
    with archive.objects.workspace() as folder:
        return fingerprint_stream(pieces, layout, archive.objects.algorithm, folder).buckets


def _rows_now(reader: Reader, archive: Archive, parts: Parts, labels: Sequence[str]) -> Rows:
    """Return the rows that lie in some buckets now."""
    series = reader.series
    place_of = {label: place for place, label in enumerate(labels)}
    hashes, places, late, known = [], [], [], []
    for window, names in parts:
        for piece in reader.pieces(names, window):
            place = places_of(piece.starts, place_of, series.bucket)
            wanted = place >= 0
            if wanted.any():
                table = piece.table.filter(pa.array(wanted))
                hashes.append(row_hashes(table, series.key, archive.salt))
                places.append(place[wanted])
                late.append(np.full(table.num_rows, True) if series.known is None else ~piece.members[wanted])
                known.append(seconds_known(table, series))
    return Rows(labels, joined(hashes), flat(places, np.int64), flat(late, np.bool_), flat(known, np.int64))


def places_of(starts: NDArray[np.int64], place_of: Mapping[str, int], bucket: Bucket) -> NDArray[np.int64]:
    """Return the place of each row's bucket among some labels; -1 for a bucket that is none of them."""
    distinct, where = np.unique(starts, return_inverse=True)
    found = [place_of.get(start_label(int(start), bucket), -1) for start in distinct]
    return np.array(found, np.int64)[where]


def seconds_known(table: pa.Table, series: Series) -> NDArray[np.int64]:
    """Return when each row became known, in seconds since the epoch; zeros in a series without a known column."""
    if series.known is None:
        return np.zeros(table.num_rows, np.int64)
    times = instants(table, series.known)
    return np.floor_divide(times.ticks, times.per_second)
