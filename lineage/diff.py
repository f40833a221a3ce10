"""Say how a snapshot differs from a later one of its series, or from its source as it is now: by bucket, kind and key.

Counts never need the old rows: digests tell which buckets differ, and membership indices pair their rows (see
`pairing`). Indices keep hashes alone, so a row is named only by reading it again: at its snapshot's own commit where
the source travels, or at the newest. A key that is nowhere any more cannot be named, and is only counted.

Two snapshots may have different windows. A new row in a part of a bucket that the first window does not reach over was
appended; a row that is gone from a part that the second does not reach over was left behind, not deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapline.lineage.comparing import column_changes, compare, reaches, windows_over
from snapline.lineage.cut import Bucket, Cut, bucket_end, bucket_label, bucket_start, parse_instant
from snapline.lineage.diff_sql import select_rows
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.manifest import decode_manifest
from snapline.lineage.reading import Piece, Reader
from snapline.lineage.rows.fingerprint import instants
from snapline.lineage.rows.hashes import key_hashes, row_hashes
from snapline.lineage.rows.membership import read_index
from snapline.lineage.rows.pairing import ROW_KINDS, Differing, Rows, differing
from snapline.lineage.series import Desk
from snapline.lineage.snapshot import Commit, Manifest, Snapshot
from snapline.lineage.sources.opening import open_source
from snapline.lineage.sources.protocol import Source, Window, readable
from snapline.lineage.state import State

KEYS_NAMED = 1000


@dataclass(frozen=True, slots=True)
class BucketDiff:
    """One bucket that differs.

    Attributes:
        counts: Rows that differ, by kind.
        left_behind: Rows that the second window does not reach over.
        keys: Keys of such rows in ascending order, by kind, at most `KEYS_NAMED` of each.
        unnamed: How many of the rows looked for can no longer be read anywhere, by kind.
        sql_then: A DuckDB script for the rows that were deleted or corrected, as they were; None where they are not
            kept or there are none.
        sql_now: One for those that were appended, corrected or late, as they are.
    """

    label: str
    rows_then: int
    rows_now: int
    counts: Mapping[str, int]
    left_behind: int = 0
    keys: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    unnamed: Mapping[str, int] = field(default_factory=dict)
    sql_then: str | None = None
    sql_now: str | None = None


@dataclass(frozen=True, slots=True)
class Diff:
    """How two sides differ; `now` is None for the source as it is.

    Attributes:
        commit_then: The first snapshot's commit, if it can still be read; None otherwise.
        commit_now: What the second side was read at; None when that is nowhere any more.
        columns: What differs in the columns; rows are then not paired.
        newer: How many more rows lie at or after the window's end than at the take; 0 between two snapshots.
    """

    then: Snapshot
    now: Snapshot | None
    commit_then: Commit | None
    commit_now: Commit | None
    columns: tuple[str, ...] = ()
    buckets: tuple[BucketDiff, ...] = ()
    newer: int = 0

    @property
    def differs(self) -> bool:
        """Whether anything does."""
        return bool(self.columns or self.buckets or self.newer)

    def total(self, kind: str) -> int:
        """Return how many rows differ in one way."""
        return sum(bucket.counts[kind] for bucket in self.buckets)


def diff(
    then: Snapshot,
    now: Snapshot | None,
    state: State,
    desk: Desk,
    bucket: str | None = None,
    source: Source | None = None,
) -> Diff:
    """Return how a snapshot differs from another of its series, or from its source as it is now.

    Args:
        then: The first side.
        now: The second; None for the source.
        state: What the ledger says.
        desk: Where objects lie.
        bucket: Show only the bucket that this date or instant lies in; None for all.
        source: The series' source, where it is open already.

    Raises:
        DefinitionError: The snapshots are of two series, or the bucket is no date.
        NotFoundError: The source is gone, and was asked for.
        ConflictError: The source changed while it was read.
    """
    if now is not None and now.series != then.series:
        raise DefinitionError(
            f"expected two snapshots of one series, found {then.series.name!r} and {now.series.name!r}",
            hint="Hold snapshots of one name against each other, or one against now.",
        )
    width = then.series.bucket
    label = None if bucket is None else bucket_label(bucket_start(parse_instant(bucket), width), width)
    differ = _Differ(then, now, state, desk, source)
    return differ.from_now(label) if now is None else differ.from_snapshot(now, label)


@dataclass(frozen=True, slots=True)
class _Differ:
    then: Snapshot
    now: Snapshot | None
    state: State
    desk: Desk
    opened: Source | None

    def from_now(self, label: str | None) -> Diff:
        manifest = self._manifest(self.then)
        archive = self.desk.archive(self.state, self.then.series.name, manifest.erasures)
        found = compare(self.then, manifest, archive, source=self.opened)
        comparison = found.comparison
        result = Diff(
            self.then, None, self._own_commit(self.then), comparison.commit, comparison.columns,
            newer=comparison.newer - sum(file.later for file in manifest.files),
        )  # fmt: skip
        if found.rows is None:
            return result
        sizes = {change.label: (change.rows_then, change.rows_now) for change in comparison.changed}
        here = Manifest(columns=(), buckets=(), files=found.files)
        sides = (self._places(self.then, manifest), self._places(None, here))
        return replace(result, buckets=self._buckets(found.rows, sizes, self.then.cut, sides, label))

    def from_snapshot(self, now: Snapshot, label: str | None) -> Diff:
        before, after = self._manifest(self.then), self._manifest(now)
        commits = (self._own_commit(self.then), self._own_commit(now) or self._newest())
        result = Diff(self.then, now, *commits, column_changes(before.columns, after.columns))
        one, other = ({bucket.label: bucket for bucket in side.buckets} for side in (before, after))
        labels = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
        if result.columns or not labels:
            return result
        sides = (self._places(self.then, before), self._places(now, after))
        rows = self._paired(now, labels, sides[1])
        sizes = {name: tuple(side[name].rows if name in side else 0 for side in (one, other)) for name in labels}
        return replace(result, buckets=self._buckets(rows, sizes, now.cut, sides, label))

    def _paired(self, now: Snapshot, labels: Sequence[str], places: Sequence[_Place]) -> Differing:
        """Return the rows of two snapshots paired; which new ones became known later is read where it can be."""
        objects = self.desk.objects
        indices = (read_index(objects.verified(side.membership), labels) for side in (self.then, now))
        before, after = (Rows.of_index(index, labels, late=True) for index in indices)
        width, cut = self.then.series.bucket, self.then.cut
        inside = np.array([_reaches_over(cut, label, width, now.cut) for label in labels])
        late = inside[after.places]
        paired = differing(before, replace(after, late=late), {})
        earliest = cut.as_of if self.then.series.known else None
        if earliest is None or not paired.late.any():
            return paired
        sought = after.hashes.take(np.flatnonzero(paired.late))
        early = {
            (int(key), int(content))
            for piece in _rows_of(places, labels, sought.keys)
            for key, content in self._known_by_then(piece)
        }
        was_known = [
            (key, content) in early
            for key, content in zip(after.hashes.keys.tolist(), after.hashes.contents.tolist(), strict=True)
        ]
        return differing(before, replace(after, late=late & ~np.array(was_known, np.bool_)), {})

    def _known_by_then(self, piece: Piece) -> Iterator[tuple[int, int]]:
        """Yield the hashes of rows that claim to have been known at the first cut."""
        series, as_of = self.then.series, self.then.cut.as_of
        if series.known is not None and as_of is not None:
            early = piece.table.filter(pa.array(instants(piece.table, series.known).not_after(as_of)))
            hashes = row_hashes(early, series.key, self.state.salt)
            yield from zip(hashes.keys.tolist(), hashes.contents.tolist(), strict=True)

    def _buckets(
        self,
        rows: Differing,
        sizes: Mapping[str, tuple[int, ...]],
        window: Cut,
        sides: tuple[Sequence[_Place], Sequence[_Place]],
        only: str | None,
    ) -> tuple[BucketDiff, ...]:
        labels, width = rows.then.labels, self.then.series.bucket
        reached = np.array([_reaches_over(window, label, width, self.then.cut) for label in labels])
        left = rows.deleted & ~reached[rows.then.places]
        rows = replace(rows, deleted=rows.deleted & ~left)
        counts, behind = rows.counts(), rows.then.count(left)
        shown = [place for place, label in enumerate(labels) if only in (None, label)]
        names = {kind: self._names(rows, kind, shown, sides[0 if kind == "deleted" else 1]) for kind in ROW_KINDS}
        found = [
            BucketDiff(
                label=labels[place],
                rows_then=sizes[labels[place]][0],
                rows_now=sizes[labels[place]][1],
                counts={kind: int(counts[kind][place]) for kind in ROW_KINDS},
                left_behind=int(behind[place]),
                keys={kind: names[kind][place][0] for kind in ROW_KINDS},
                unnamed={kind: names[kind][place][1] for kind in ROW_KINDS},
            )
            for place in shown
        ]
        kept = sides[0][:1] if self._own_commit(self.then) else []
        types = {column.name: column.type for column in self._manifest(self.then).columns}
        return tuple(self._with_sql(bucket, types, kept, sides[1]) for bucket in found)

    def _with_sql(
        self, bucket: BucketDiff, types: Mapping[str, str], then: Sequence[_Place], now: Sequence[_Place]
    ) -> BucketDiff:
        """Return a bucket with the scripts that show its rows: as they were where that is kept, and as they are."""

        def script(kinds: tuple[str, ...], snapshot: Snapshot, places: Sequence[_Place]) -> str | None:
            if not places or not any(bucket.counts[kind] for kind in kinds):
                return None
            complete = all(bucket.counts[kind] <= KEYS_NAMED and not bucket.unnamed[kind] for kind in kinds)
            keys = sorted({key for kind in kinds for key in bucket.keys[kind]}) if complete else []
            files = places[0].files(bucket.label)
            return select_rows(snapshot, types, bucket.label, places[0].reader.commit, files, keys)

        return replace(
            bucket,
            sql_then=script(("deleted", "corrected"), self.then, then),
            sql_now=script(("appended", "corrected", "late"), self.now or self.then, now),
        )

    def _names(
        self, rows: Differing, kind: str, shown: Sequence[int], places: Sequence[_Place]
    ) -> dict[int, tuple[tuple[Any, ...], int]]:
        """Return, for each bucket shown, keys of the rows that differ in one way, and how many stay without a name."""
        side, mask = rows.side(kind), rows.mask(kind)
        sought = {place: side.hashes.keys[mask & (side.places == place)][:KEYS_NAMED] for place in shown}
        wanted = np.concatenate([np.zeros(0, np.uint64), *sought.values()])
        found: dict[int, Any] = {}
        labels = [side.labels[place] for place in shown if len(sought[place])]
        for piece in _rows_of(places, labels, wanted):
            keys = piece.table.column(self.then.series.key)
            found |= dict(zip(key_hashes(keys, self.state.salt).tolist(), keys.to_pylist(), strict=True))
        answers = {}
        for place, hashes in sought.items():
            named = {found[value] for value in hashes.tolist() if value in found}
            lost = sum(value not in found for value in hashes.tolist())
            answers[place] = (tuple(sorted(named)), lost)
        return answers

    def _manifest(self, snapshot: Snapshot) -> Manifest:
        return decode_manifest(self.desk.objects.read(snapshot.manifest))

    def _source(self) -> Source:
        return self.opened or open_source(self.then.series.source, self.desk.objects.algorithm)

    def _own_commit(self, snapshot: Snapshot) -> Commit | None:
        """Return a snapshot's commit if it can still be read."""
        with suppress(NotFoundError, DefinitionError):
            source = self._source()
            return source.commit(snapshot.commit.id) if source.travels and readable(source, snapshot.commit) else None
        return None

    def _newest(self) -> Commit | None:
        with suppress(NotFoundError, DefinitionError):
            return self._source().commit()
        return None

    def _places(self, snapshot: Snapshot | None, manifest: Manifest) -> list[_Place]:
        """Return where the rows of a side may be read: at its own commit, then at the newest; None is the source."""
        own = self._own_commit(snapshot) if snapshot is not None else None
        # What is gone now need not be looked for now.
        gone = snapshot is self.then and self.now is None
        commits = dict.fromkeys(commit for commit in (own, None if gone else self._newest()) if commit is not None)
        if not commits:
            return []
        archive = self.desk.archive(self.state, self.then.series.name)
        cut = (snapshot or self.then).cut
        source = self._source()
        return [
            _Place(Reader(self.then.series, cut, source, commit, archive.tombstones), manifest, self.state.salt)
            for commit in commits
        ]


@dataclass(frozen=True, slots=True)
class _Place:
    """Somewhere rows may be read; the manifest tells which of its files need not be."""

    reader: Reader
    manifest: Manifest
    salt: str

    def pieces(self, labels: Sequence[str]) -> Iterator[Piece]:
        """Yield what lies in some buckets; less, or nothing, once the place is gone."""
        width = self.reader.series.bucket
        with suppress(NotFoundError, DefinitionError, ConflictError):
            for window in windows_over([(label, label) for label in labels], width):
                yield from self.reader.pieces(self._names(window, width), window)

    def files(self, label: str) -> list[str]:
        """Return where a Parquet source has rows of a bucket: paths, or URLs."""
        width, place = self.reader.series.bucket, self.reader.series.source
        (window,) = windows_over([(label, label)], width)
        return [place if place.endswith(f"/{name}") else f"{place}/{name}" for name in self._names(window, width)]

    def _names(self, window: Window, width: Bucket) -> list[str]:
        source = self.reader.source
        known = {file.path: file for file in self.manifest.files}
        return [
            name
            for name in source.names(self.reader.commit)
            if name not in known or known[name].stamp != source.stamp(name) or reaches(known[name], window, width)
        ]


def _rows_of(places: Sequence[_Place], labels: Sequence[str], wanted: NDArray[np.uint64]) -> Iterator[Piece]:
    """Yield the rows whose key hashes are wanted, from the first place that has any of each."""
    left = np.unique(wanted)
    for place in places:
        if not len(left) or not labels:
            return
        found: list[NDArray[np.uint64]] = []
        for piece in place.pieces(labels):
            hashes = key_hashes(piece.table.column(place.reader.series.key), place.salt)
            chosen = np.isin(hashes, left)
            if chosen.any():
                found.append(hashes[chosen])
                rows = piece.table.filter(pa.array(chosen))
                yield Piece(piece.file, rows, piece.starts[chosen], piece.members[chosen])
        left = left[~np.isin(left, np.concatenate([np.zeros(0, np.uint64), *found]))]


def _reaches_over(cut: Cut, label: str, width: Bucket, other: Cut) -> bool:
    """Return whether a window covers all of a bucket that another one covers."""
    since, until = max(parse_instant(label), other.since), min(bucket_end(label, width), other.until)
    return since >= until or (cut.since <= since and until <= cut.until)
