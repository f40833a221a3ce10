"""Take a snapshot of a source, and read one's rows back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from snapline.lineage.cut import Cut
from snapline.lineage.erasure.tombstones import Tombstones
from snapline.lineage.errors import ConflictError, DefinitionError
from snapline.lineage.files import HashedFile
from snapline.lineage.manifest import encode_manifest
from snapline.lineage.objects import ObjectStore
from snapline.lineage.reading import OnProgress, Reader, hash_files, refuse_change
from snapline.lineage.rows.encoding import plain
from snapline.lineage.rows.fingerprint import fingerprint
from snapline.lineage.rows.hashes import Hashes, row_hashes
from snapline.lineage.rows.membership import IndexWriter
from snapline.lineage.rows.streaming import Layout, OrderedBucket, StreamFingerprint, fingerprint_stream
from snapline.lineage.snapshot import Commit, Manifest, Series, Snapshot
from snapline.lineage.sources.opening import open_source
from snapline.lineage.sources.protocol import Source, readable

_LABELS_NAMED = 10
_HASHED_TOGETHER = 1 << 16


@dataclass(frozen=True, slots=True)
class Archive:
    """What taking and reading back need besides the series: where objects go, and the home's salt.

    Attributes:
        objects: The object store; its algorithm is the snapshot's.
        salt: Keys the hashes in membership indices.
        tombstones: The keys erased from the series; None when there are none.
        on_progress: Receives (what, files read, files).
    """

    objects: ObjectStore
    salt: str
    tombstones: Tombstones | None = None
    on_progress: OnProgress | None = None


def pinned(series: Series, cut: Cut, source: Source, version: str | None, now: datetime) -> tuple[Commit, Cut]:
    """Return the commit a cut means, and the cut with its as-of instant.

    Without an as-of instant the newest commit is read, and a series with a known column is cut as of now, or as of the
    version's own instant.

    Raises:
        DefinitionError: An as-of instant or a version was given, and nothing can be cut by it.
        NotFoundError: The source is gone, or no longer has that commit.
    """
    if cut.as_of is not None and series.known is None and not source.travels:
        raise DefinitionError(
            f"nothing of snapshot {series.name!r} can be cut as of {cut.as_of.isoformat()}: "
            "it has no known column, and its source keeps no history",
            hint="Leave out the as-of instant, or start a series with a known column.",
        )
    if cut.as_of is not None and series.known is None and version is not None:
        raise DefinitionError(
            f"expected a version or an as-of instant, found both, {version} and {cut.as_of.isoformat()}: "
            f"snapshot {series.name!r} has no known column, so each alone says what to read",
            hint="Leave one of them out.",
        )
    travelling = cut.as_of if source.travels and version is None else None
    commit = source.commit(version, travelling)
    if series.known is not None and cut.as_of is None:
        as_of = commit.at if version is not None and commit.at is not None else now
        cut = Cut(since=cut.since, until=cut.until, as_of=as_of)
    return commit, cut


def take(
    series: Series,
    cut: Cut,
    archive: Archive,
    now: datetime,
    version: str | None = None,
    known: Sequence[HashedFile] = (),
) -> Snapshot:
    """Read a cut of a series' source, store its manifest and membership index, and return the snapshot.

    Args:
        series: What to read.
        cut: Which rows.
        archive: Where objects go.
        now: The instant of the take.
        version: The source's own name of the commit to read; None for the newest, or that of the as-of instant.
        known: Files of the source hashed earlier; used where commits never change a file.

    Raises:
        DefinitionError: The source cannot be cut this way: a column is missing, has nulls or the wrong type, or an
            as-of instant or version was given and nothing can be cut by it.
        NotFoundError: The source or the commit is gone.
        ConflictError: The source changed while it was read.
    """
    source = open_source(series.source, archive.objects.algorithm)
    commit, cut = pinned(series, cut, source, version, now)
    reader = Reader(series, cut, source, commit, archive.tombstones)
    hashed = hash_files(source, commit, known if source.travels else ())
    found, membership = _digested(reader, [file.path for file in hashed], archive)
    files = tuple(reader.place(file) for file in hashed)
    refuse_change(source, commit, hashed, series.source)
    manifest = Manifest(
        columns=found.columns,
        buckets=found.buckets,
        files=files,
        left_out=reader.left_out,
        erasures=archive.tombstones.erasures if archive.tombstones else (),
        erased=reader.erased,
    )
    return Snapshot(
        series=series,
        cut=cut,
        digest=found.digest,
        rows=found.rows,
        buckets=len(found.buckets),
        manifest=archive.objects.put(encode_manifest(manifest)),
        taken_at=now,
        commit=commit,
        membership=membership,
    )


def _digested(reader: Reader, names: Sequence[str], archive: Archive) -> tuple[StreamFingerprint, str]:
    """Return the digests of a cut's rows, and the address of their membership index."""
    series, objects = reader.series, archive.objects
    layout = Layout(plain(reader.schema().empty_table()).schema, series.time, series.key, series.bucket)
    with objects.workspace() as folder:
        index = folder / "membership.parquet"
        with IndexWriter(index) as writer:
            remember = _Remember(writer, series.key, archive.salt)
            pieces = (piece.member_rows for piece in reader.pieces(names, on_progress=archive.on_progress))
            found = fingerprint_stream(pieces, layout, objects.algorithm, folder, remember)
            remember.flush()
        return found, objects.put_file(index)


class _Remember:
    """Writes buckets into a membership index; small ones are hashed together, for each call has a price."""

    def __init__(self, writer: IndexWriter, key: str, salt: str) -> None:
        self._writer = writer
        self._key = key
        self._salt = salt
        self._held: list[OrderedBucket] = []
        self._rows = 0

    def __call__(self, bucket: OrderedBucket) -> None:
        self._held.append(bucket)
        self._rows += bucket.rows
        if self._rows >= _HASHED_TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if self._held:
            tables = [bucket.table for bucket in self._held]
            hashes = row_hashes(pa.concat_tables(tables), self._key, self._salt)
            start = 0
            for bucket in self._held:
                stop = start + bucket.rows
                self._writer.add(bucket.label, Hashes(hashes.keys[start:stop], hashes.contents[start:stop]))
                start = stop
        self._held, self._rows = [], 0


def rows(snapshot: Snapshot, manifest: Manifest, archive: Archive) -> pa.Table:
    """Return a snapshot's rows, verified against its digest, in key order within its buckets.

    They are read at the snapshot's own commit where the source still has it, or else at the newest.

    Args:
        snapshot: Whose rows.
        manifest: Its manifest.
        archive: With the tombstones of `manifest.erasures`, and of no later erasure.

    Raises:
        ConflictError: The source no longer holds them; the message names the buckets that differ.
        DefinitionError: The source can no longer be cut this way.
        NotFoundError: The source is gone.
    """
    series, algorithm = snapshot.series, archive.objects.algorithm
    source = open_source(series.source, algorithm)
    commit = _still_there(source, snapshot.commit)
    reader = Reader(series, snapshot.cut, source, commit, archive.tombstones)
    tables = [plain(reader.schema().empty_table())]
    tables += [p.member_rows for p in reader.pieces(source.names(commit), on_progress=archive.on_progress)]
    whole = pa.concat_tables(tables, promote_options="permissive")
    found = fingerprint(whole, time=series.time, key=series.key, bucket=series.bucket, algorithm=algorithm)
    if found.digest != snapshot.digest:
        then, now = set(manifest.buckets), set(found.buckets)
        labels = sorted({bucket.label for bucket in then ^ now}) or ["its columns"]
        more = f" and {len(labels) - _LABELS_NAMED} more" if len(labels) > _LABELS_NAMED else ""
        raise ConflictError(
            f"the source no longer holds the rows of snapshot {series.name}@{snapshot.id[:12]}; "
            f"these differ: {', '.join(labels[:_LABELS_NAMED])}{more}",
            hint=f"Put {series.source} back as it was, or take the snapshot anew.",
        )
    return found.table


def _still_there(source: Source, commit: Commit) -> Commit:
    """Return the commit if its source still has it, or else the newest."""
    return source.commit(commit.id) if source.travels and readable(source, commit) else source.commit()
