"""Read a cut of a source: which rows are members, which are known too late, and which files they lie in.

A row is a member of a cut when `since <= time < until`, `known <= as_of < known_until` in a series with those columns,
and its key was not erased. A row inside the window that became known later is no member, and not forgotten. Among
members `known_until` is always null: when a row stops being true is not known while it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from snapline.lineage.cut import Cut
from snapline.lineage.erasure.tombstones import Tombstones
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.files import FileStamp, HashedFile, SourceFile
from snapline.lineage.rows.fingerprint import instants, refuse_nulls, start_label
from snapline.lineage.snapshot import BucketCount, Commit, Series
from snapline.lineage.sources.protocol import Source, Window

LAST_INSTANT = datetime(9999, 12, 31, tzinfo=UTC)
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one file that lie inside the window.

    Attributes:
        starts: Where each row's bucket starts, seconds since the epoch, shape (rows,).
        members: Which rows are members of the cut, shape (rows,); the others became known too late.
    """

    file: str
    table: pa.Table
    starts: NDArray[np.int64]
    members: NDArray[np.bool_]

    @property
    def member_rows(self) -> pa.Table:
        """The members alone."""
        return self.table if self.members.all() else self.table.filter(pa.array(self.members))


class Reader:
    """Reads one series at one commit, and remembers what it passed on the way.

    Args:
        series: What to read, and by which columns.
        cut: Which rows; with an as-of instant if the series has a known column.
        source: Where the rows lie.
        commit: The state of the source to read.
        tombstones: Keys that were erased; None when there are none.
    """

    def __init__(
        self, series: Series, cut: Cut, source: Source, commit: Commit, tombstones: Tombstones | None = None
    ) -> None:
        self.series = series
        self.cut = cut
        self.source = source
        self.commit = commit
        self.tombstones = tombstones
        self.erased = 0
        self._left_out: Counter[int] = Counter()
        control = (series.time, series.key, series.known)
        self._control = tuple(dict.fromkeys(name for name in control if name))
        self._nulls: Counter[str] = Counter()

    def schema(self) -> pa.Schema:
        """Return the columns of the commit, once the series' own are among them.

        Raises:
            DefinitionError: One is missing.
        """
        schema = self.source.schema(self.commit)
        wanted = (*self._control, *([self.series.known_until] if self.series.known_until else ()))
        missing = [repr(name) for name in wanted if name not in schema.names]
        if missing:
            raise DefinitionError(
                f"{self.series.source} has no column {', '.join(missing)}; its columns are {', '.join(schema.names)}",
                hint="Name columns of the source for time, known time and key.",
            )
        return schema

    def pieces(
        self, names: Sequence[str], window: Window | None = None, on_progress: OnProgress | None = None
    ) -> Iterator[Piece]:
        """Yield what lies inside the window, file by file.

        Args:
            names: The files to read.
            window: Only what lies inside this window too; None for all of the cut's.
            on_progress: Receives (what, files read, files).

        Raises:
            DefinitionError: A time, known or key column holds nulls; raised at the end, with the count of each.
        """
        window = window or Window(self.cut.since, self.cut.until)
        window = Window(max(window.since, self.cut.since), min(window.until, self.cut.until))
        for index, name in enumerate(names):
            if on_progress:
                on_progress(f"reading {self.series.name}", index, len(names))
            for table in self.source.scan(self.commit, name, self.series.time, window, None):
                piece = self._piece(name, table)
                if piece is not None and piece.table.num_rows:
                    yield piece
        refuse_nulls(self._nulls)

    def place(self, file: HashedFile) -> SourceFile:
        """Return a hashed file with the buckets it reaches over and its rows after the window, reading times alone."""
        time, bucket = self.series.time, self.series.bucket
        first = last = None
        later = 0
        window = Window(self.cut.since, LAST_INSTANT)
        for table in self.source.scan(self.commit, file.path, time, window, [time]):
            times = instants(table.filter(pc.is_valid(table.column(time))), time)
            inside = times.before(self.cut.until)
            later += int(np.count_nonzero(~inside))
            starts = times.bucket_starts(bucket)[inside]
            if len(starts):
                low, high = int(starts.min()), int(starts.max())
                first, last = min(low, low if first is None else first), max(high, high if last is None else last)
        labels = [None if start is None else start_label(start, bucket) for start in (first, last)]
        hashed = {"path": file.path, "stamp": file.stamp, "hexdigest": file.hexdigest}
        return SourceFile(**hashed, first=labels[0], last=labels[1], later=later)

    @property
    def left_out(self) -> tuple[BucketCount, ...]:
        """How many rows of each bucket became known too late, of what was read."""
        return tuple(
            BucketCount(label=start_label(start, self.series.bucket), rows=count)
            for start, count in sorted(self._left_out.items())
        )

    def _piece(self, name: str, table: pa.Table) -> Piece | None:
        """Return the rows inside the window; None once there were nulls, for then there is no snapshot."""
        self._nulls.update({column: table.column(column).null_count for column in self._control})
        if self._nulls.total():
            return None
        starts = instants(table, self.series.time).bucket_starts(self.series.bucket)
        known = self._known(table)
        table, starts, known = self._without_ended(table, starts, known)
        table, starts, known = self._without_erased(table, starts, known)
        if not known.all():
            late, counts = np.unique(starts[~known], return_counts=True)
            self._left_out.update(dict(zip(late.tolist(), counts.tolist(), strict=True)))
        return Piece(name, table, starts, known)

    def _known(self, table: pa.Table) -> NDArray[np.bool_]:
        if self.series.known is None or self.cut.as_of is None:
            return np.ones(table.num_rows, np.bool_)
        return instants(table, self.series.known).not_after(self.cut.as_of)

    def _without_ended(
        self, table: pa.Table, starts: NDArray[np.int64], known: NDArray[np.bool_]
    ) -> tuple[pa.Table, NDArray[np.int64], NDArray[np.bool_]]:
        """Leave out what had stopped being true, and forget of the rest when it will."""
        column = self.series.known_until
        if column is None or self.cut.as_of is None:
            return table, starts, known
        ended = table.column(column).is_valid().to_numpy()
        ended[ended] = instants(table.filter(pa.array(ended)), column).not_after(self.cut.as_of)
        current = ~ended | ~known
        at = table.column_names.index(column)
        unknown = pa.nulls(table.num_rows, table.schema.field(at).type)
        return table.set_column(at, column, unknown).filter(pa.array(current)), starts[current], known[current]

    def _without_erased(
        self, table: pa.Table, starts: NDArray[np.int64], known: NDArray[np.bool_]
    ) -> tuple[pa.Table, NDArray[np.int64], NDArray[np.bool_]]:
        if self.tombstones is None:
            return table, starts, known
        erased = self.tombstones.erased_rows(table.column(self.series.key))
        if not erased.any():
            return table, starts, known
        self.erased += int(np.count_nonzero(erased & known))
        return table.filter(pa.array(~erased)), starts[~erased], known[~erased]


def hash_files(source: Source, commit: Commit, known: Sequence[HashedFile] = ()) -> tuple[HashedFile, ...]:
    """Return every file of a commit with its stamp and the digest of its bytes.

    Args:
        source: Where the files lie.
        commit: Whose files.
        known: Files hashed earlier; one whose stamp is unchanged is not read again, but returned as it is.
    """
    then = {file.path: file for file in known}
    found = []
    for name in source.names(commit):
        stamp, earlier = source.stamp(name), then.get(name)
        if earlier is not None and earlier.stamp == stamp:
            found.append(earlier)
        else:
            found.append(HashedFile(path=name, stamp=stamp, hexdigest=source.hexdigest(name)))
    return tuple(found)


def refuse_change(source: Source, commit: Commit, hashed: Sequence[HashedFile], where: str) -> None:
    """Pass when the files of a commit are stamped as they were when they were hashed.

    Raises:
        ConflictError: Some are not, were removed, or new ones came.
    """
    now = commit if source.travels else source.commit()
    if not source.travels and now == commit:
        return
    changed = {file.path for file in hashed if _stamp(source, file.path) != file.stamp}
    changed |= {file.path for file in hashed} ^ set(source.names(now))
    if changed:
        raise ConflictError(
            f"{where} changed while it was read: {', '.join(sorted(changed))}",
            hint="Wait until nothing writes to it and run this again.",
        )


def _stamp(source: Source, name: str) -> FileStamp | None:
    try:
        return source.stamp(name)
    except NotFoundError:
        return None
