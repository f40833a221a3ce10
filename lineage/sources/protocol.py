"""What a snapshot asks of the place its rows lie in.

A source is a table with one or more commits, each made of files. The file is the unit of change: a file that two
commits share has the same rows in both, so what changed between commits is the rows of the files they do not share.
Checking whether a source moved (`commit`, `names`, `stamp`, `hexdigest`) parses no rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from snapline.lineage.errors import NotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

    from snapline.lineage.files import FileStamp
    from snapline.lineage.snapshot import Commit


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open window of event time, in instants with a zone."""

    since: datetime
    until: datetime


class Source(Protocol):
    """A table that can be read consistently, commit by commit and file by file.

    Methods raise NotFoundError when the table, a commit or a file is gone, DefinitionError when it cannot be read as
    one table, and ConflictError when it changed while it was read.
    """

    @property
    def travels(self) -> bool:
        """Whether commits before the newest can be read."""

    def commit(self, version: str | None = None, as_of: datetime | None = None) -> Commit:
        """Return the newest commit, the one a version names, or the last one at or before an instant.

        Where a source does not travel, the id of its commit is another as soon as any of its files has another stamp.

        Raises:
            NotFoundError: There is no such commit, or it was expired.
            DefinitionError: The source does not travel, and another commit than the newest was asked for.
        """

    def commits(self) -> tuple[Commit, ...]:
        """Return the commits the source still lists, oldest first; only the newest when it does not travel."""

    def names(self, commit: Commit) -> tuple[str, ...]:
        """Return the files of a commit, sorted.

        A name stands for the rows of a data file *as this commit sees them*: where a format deletes rows by a second
        file, the name covers both.
        """

    def stamp(self, name: str) -> FileStamp:
        """Return what a file's stat says now; for a remote file its size and modification time alone."""

    def hexdigest(self, name: str) -> str:
        """Return the hex digest of all bytes that `name` stands for."""

    def schema(self, commit: Commit) -> pa.Schema:
        """Return the columns of a commit."""

    def scan(
        self, commit: Commit, name: str, time: str, window: Window | None, columns: Sequence[str] | None
    ) -> Iterator[pa.Table]:
        """Yield the rows of one file in pieces, of plain types (see `encoding.plain`).

        Args:
            commit: A commit of this source.
            name: One of its files.
            time: The event-time column.
            window: Yield only rows with a time inside, and those whose time is null; None for every row.
            columns: Read only these; None for all.
        """


def readable(source: Source, commit: Commit) -> bool:
    """Return whether a source that travels still has a commit: one may be listed whose files were vacuumed."""
    try:
        for name in source.names(source.commit(commit.id)):
            source.stamp(name)
    except NotFoundError:
        return False
    return True
