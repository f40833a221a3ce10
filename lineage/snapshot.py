"""Snapshots: the rows of a table inside one cut, identified by a digest of their full content.

A snapshot name is a series: its first take fixes the source, the time, known and key columns and the bucket width, and
later takes only move the cut. A snapshot stores digests, never rows.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

from snapline.lineage.cut import Bucket, Cut, Instant
from snapline.lineage.digest import Digest, document_digest, hex_part
from snapline.lineage.documents import Value
from snapline.lineage.files import SourceFile

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class Series(Value):
    """What every snapshot of one name shares.

    Attributes:
        source: Where the rows lie, as `sources.opening.normalise` writes it.
        time: The column with each row's event time.
        known: The column with the instant a row became known; None without such a column.
        known_until: The column with the instant a row stopped being true, null while it is; None without one.
        key: The column that identifies a row and orders rows inside a bucket.
    """

    name: Name
    source: str
    time: str
    known: str | None
    key: str
    bucket: Bucket
    known_until: str | None = None

    @property
    def repeatable(self) -> bool:
        """Whether the rows say themselves when each became known and when it stopped being true."""
        return self.known is not None and self.known_until is not None


class Column(Value):
    """A column's name and its logical type, as the content digest sees it."""

    name: str
    type: str


class BucketDigest(Value):
    """One time bucket of a snapshot: its label, its row count, and the hex digest of its rows."""

    label: str
    rows: int
    hexdigest: str


class BucketCount(Value):
    """How many rows a time bucket holds of some kind."""

    label: str
    rows: int


class Commit(Value):
    """One state of a source.

    Attributes:
        id: The source's own name for it (a Delta version, an Iceberg snapshot id), or a digest of its file manifest
            where the source keeps no history.
        at: When the source says it was committed; None where it does not say.
    """

    id: str
    at: Instant | None = None


class Manifest(Value):
    """Everything a take measured: per-bucket digests, and the source files they were read from.

    Attributes:
        left_out: How many rows inside the window were there already but became known after the as-of instant, so that
            only what arrives later is called late.
        erasures: Erasure requests whose keys were left out.
        erased: How many rows inside the cut that were, though the source still held them.
    """

    columns: tuple[Column, ...]
    buckets: tuple[BucketDigest, ...]
    files: tuple[SourceFile, ...]
    left_out: tuple[BucketCount, ...] = ()
    erasures: tuple[str, ...] = ()
    erased: int = 0

    @property
    def bytes_read(self) -> dict[str, str]:
        """The hex digest of each source file, by path."""
        return {file.path: file.hexdigest for file in self.files}


class Snapshot(Value):
    """A recorded snapshot.

    Attributes:
        manifest: Address of the manifest object.
        membership: Address of the membership index: a keyed hash of each row's key, and one of its content.
        commit: The state of the source that was read.
    """

    series: Series
    cut: Cut
    digest: Digest
    rows: int
    buckets: int
    manifest: Digest
    taken_at: Instant
    commit: Commit
    membership: Digest

    @property
    def id(self) -> str:
        """Identity of this snapshot: what was cut, where from, and what was found.

        Two sources with the same rows share `digest` and differ in `id`. Which commit they were read at is no part of
        it: the same rows at two commits are the same snapshot.
        """
        described = self.model_dump(mode="json", include={"series", "cut", "digest"})
        return hex_part(document_digest("snapshot", described))


class BucketChange(Value):
    """One bucket in which a source no longer matches a snapshot, its rows paired by key.

    Attributes:
        corrected: Rows whose key was there then, with another content now.
        deleted: Rows that are gone.
        late: Rows that became known after the cut: their key is new.
        appended: Rows whose key is new though they claim to have been known at the cut.
    """

    label: str
    rows_then: int
    rows_now: int
    appended: int = 0
    corrected: int = 0
    deleted: int = 0
    late: int = 0

    @property
    def delta(self) -> int:
        """How many rows differ."""
        return self.appended + self.corrected + self.deleted + self.late


class Comparison(Value):
    """A snapshot held against its source as it is now.

    Attributes:
        changed: Buckets inside the window that differ; empty when every row of the cut is as it was and none is new.
        columns: What differs in the columns; rows are then not paired, and of `changed` only deletions are known.
        commit: The state of the source that was compared.
        lag: How many commits the source made since the snapshot's; None where it keeps no history.
        newer: How many rows lie at or after the window's end.
    """

    changed: tuple[BucketChange, ...] = ()
    columns: tuple[str, ...] = ()
    commit: Commit
    lag: int | None = None
    newer: int = 0

    @property
    def restated(self) -> bool:
        """Whether anything inside the cut differs."""
        return bool(self.changed or self.columns)

    @property
    def delta_rows(self) -> int:
        """How many rows of the window differ, of every kind."""
        return sum(change.delta for change in self.changed)

    def total(self, kind: str) -> int:
        """Return how many rows differ in one way: `appended`, `corrected`, `deleted` or `late`."""
        return sum(int(getattr(change, kind)) for change in self.changed)
