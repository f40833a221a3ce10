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
from snapline.lineage.files import HashedFile

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class Series(Value):
    """What every snapshot of one name shares; `source` is an absolute path, `known` is None without such a column."""

    name: Name
    source: str
    time: str
    known: str | None
    key: str
    bucket: Bucket


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


class Manifest(Value):
    """Everything a take measured: per-bucket digests, and the source files they were read from.

    `left_out` counts the rows inside the window that were there already but became known after the as-of instant, so
    that only what arrives later is called late.
    """

    columns: tuple[Column, ...]
    buckets: tuple[BucketDigest, ...]
    files: tuple[HashedFile, ...]
    left_out: tuple[BucketCount, ...] = ()

    @property
    def bytes_read(self) -> dict[str, str]:
        """The hex digest of each source file, by path."""
        return {file.path: file.hexdigest for file in self.files}


class Snapshot(Value):
    """A recorded snapshot; `manifest` is the address of its manifest object."""

    series: Series
    cut: Cut
    digest: Digest
    rows: int
    buckets: int
    manifest: Digest
    taken_at: Instant

    @property
    def id(self) -> str:
        """Identity of this snapshot: what was cut, where from, and what was found.

        Two sources with the same rows share `digest` and differ in `id`.
        """
        described = self.model_dump(mode="json", include={"series", "cut", "digest"})
        return hex_part(document_digest("snapshot", described))


class BucketChange(Value):
    """One bucket in which a source no longer matches a snapshot."""

    label: str
    rows_then: int
    rows_now: int


class Comparison(Value):
    """A snapshot held against its source as it is now.

    Attributes:
        changed: Buckets in which members of the snapshot changed or vanished.
        late: Buckets with more rows inside the window that became known after the cut's as-of instant than the take
            left out; `rows_then` is 0, `rows_now` how many more.
        delta_rows: How many rows differ, counted without pairing: per bucket, the larger of then and now where the
            bucket changed, plus the late rows.
    """

    changed: tuple[BucketChange, ...] = ()
    late: tuple[BucketChange, ...] = ()
    delta_rows: int = 0

    @property
    def restated(self) -> bool:
        """Whether anything inside the cut differs."""
        return bool(self.changed or self.late)
