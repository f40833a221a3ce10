"""DuckLake tables, through DuckDB's packaged extension.

A commit is a snapshot of the lake at which this table changed. A name is a data file with what decides which of its
rows are seen, `data/main/t/a.parquet#data/main/t/a-delete.parquet`; a path below the catalogue's folder is written from
there. Two things a name can hold are no files, because DuckLake keeps small changes in the catalogue itself:

    ducklake_inlined_data_1_1@7          the rows in that table of the catalogue, as snapshot 7 left them
    ...#ducklake_inlined_delete_1/0@8    the rows of file 0 deleted by that table, up to snapshot 8

A file into which the rows of several snapshots were merged is followed by `@` and the snapshot where that hides some.

The catalogue is a DuckDB or SQLite file, and the data lie in files on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from snapline.lineage.digest import BulkAlgorithm, hasher
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.files import FileStamp, hash_file, stamp_of
from snapline.lineage.snapshot import Commit
from snapline.lineage.sources.attach import SqliteFile
from snapline.lineage.sources.bundle import bundle_hex, bundle_stamp
from snapline.lineage.sources.database import ATTACHED, Rows, attached, identifier, literal, schema_of, stream
from snapline.lineage.sources.duckdb_file import DuckDBFile
from snapline.lineage.sources.protocol import Window

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

_AND = "#"
_SQLITE_HEADER = b"SQLite format 3\0"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORMAT = "1."
_INLINED_ROWS = re.compile(r"(ducklake_inlined_data_\d+_\d+)@(\d+)")
_INLINED_DELETES = re.compile(r"(ducklake_inlined_delete_\d+)/(\d+)@(\d+)")
_UP_TO = re.compile(r"@\d+$")

_SEEN = "{0}.begin_snapshot <= $at AND ({0}.end_snapshot IS NULL OR {0}.end_snapshot > $at)"
# The snapshots at which a table of this name was there, and whether each changed it. Changes are written as text, such
# as `inserted_into_table:1,altered_table:1`.
_SNAPSHOTS = """SELECT s.snapshot_id, epoch_us(s.snapshot_time::TIMESTAMPTZ), t.table_id,
        coalesce(regexp_matches(c.changes_made, '(^|,)[a-z_]+:' || t.table_id || '(,|$)'), false)
    FROM source.ducklake_snapshot s
    LEFT JOIN source.ducklake_snapshot_changes c USING (snapshot_id)
    JOIN source.ducklake_table t
        ON t.begin_snapshot <= s.snapshot_id AND (t.end_snapshot IS NULL OR t.end_snapshot > s.snapshot_id)
    JOIN source.ducklake_schema h ON h.schema_id = t.schema_id
        AND h.begin_snapshot <= s.snapshot_id AND (h.end_snapshot IS NULL OR h.end_snapshot > s.snapshot_id)
    WHERE h.schema_name = $schema AND t.table_name = $table
    ORDER BY 1"""
_NEWEST = "SELECT max(snapshot_id) FROM source.ducklake_snapshot"
_FOLDERS = f"""SELECT (SELECT value FROM source.ducklake_metadata WHERE key = 'data_path' AND scope IS NULL),
        h.path, h.path_is_relative, t.path, t.path_is_relative
    FROM source.ducklake_table t JOIN source.ducklake_schema h ON h.schema_id = t.schema_id AND {_SEEN.format("h")}
    WHERE t.table_id = $id AND {_SEEN.format("t")}"""
_FILES = f"""SELECT f.data_file_id, f.path, f.path_is_relative, f.partial_max, d.path, d.path_is_relative, d.partial_max
    FROM source.ducklake_data_file f
    LEFT JOIN source.ducklake_delete_file d ON d.data_file_id = f.data_file_id AND {_SEEN.format("d")}
    WHERE f.table_id = $id AND {_SEEN.format("f")}
    ORDER BY f.data_file_id, d.delete_file_id"""
_INLINED_TABLES = """SELECT table_name FROM duckdb_tables() WHERE database_name = 'source'
    AND (table_name = $deletes OR starts_with(table_name, $rows)) ORDER BY table_name"""
_LAST_DELETE = "SELECT file_id, max(begin_snapshot) FROM {0} WHERE begin_snapshot <= $at GROUP BY file_id"
_LAST_CHANGE = """SELECT count(*) FILTER (end_snapshot IS NULL OR end_snapshot > $at),
        greatest(max(begin_snapshot), max(end_snapshot) FILTER (end_snapshot <= $at))
    FROM {0} WHERE begin_snapshot <= $at"""
_ROWS = """SELECT * EXCLUDE (begin_snapshot, end_snapshot) FROM {0}
    WHERE begin_snapshot <= $at AND (end_snapshot IS NULL OR end_snapshot > $at) ORDER BY row_id"""
_DELETES = "SELECT row_id FROM {0} WHERE file_id = $file AND begin_snapshot <= $at ORDER BY row_id"


@dataclass(frozen=True, slots=True)
class _State:
    """A snapshot at which the table is there: which table that is, and whether it differs from the one before."""

    snapshot: int
    at: datetime
    table: int
    starts: bool

    @property
    def commit(self) -> Commit:
        return Commit(id=str(self.snapshot), at=self.at)


@dataclass(frozen=True, slots=True)
class _Listing:
    """What the catalogue said while it had this stamp: the states of the table, and what was located of each."""

    stamp: FileStamp
    states: tuple[_State, ...]
    located: dict[int, dict[str, str]]


class DuckLakeSource:
    """A DuckLake table, as a snapshot reads it.

    Args:
        catalog: The path of the lake's catalogue.
        table: `NAME` in the schema main, or `SCHEMA.NAME`.
        algorithm: The hash for the bytes of its files.
    """

    travels: ClassVar[bool] = True

    def __init__(self, catalog: str, table: str, algorithm: BulkAlgorithm) -> None:
        schema, _, name = table.rpartition(".")
        self.path = Path(catalog)
        self.table = table
        self.algorithm = algorithm
        self._named = (schema or "main", name)
        self._kept: _Listing | None = None

    def commit(self, version: str | None = None, as_of: datetime | None = None) -> Commit:
        """Return the newest commit, the one a snapshot of the lake shows, or the last one at or before an instant.

        Raises:
            NotFoundError: The table or the snapshot is gone, or was expired.
        """
        states = self._listing().states
        if version is not None:
            self._refuse_unlisted(version, states)
        chosen = None
        for state in states:
            if (version is not None and state.snapshot > int(version)) or (as_of is not None and state.at > as_of):
                break
            chosen = state.commit if state.starts else chosen
        if chosen is None:
            raise NotFoundError(
                f"{self.table} has no listed snapshot at or before {as_of}; its oldest is of {states[0].at}",
                hint="Ask for a later instant; older snapshots were expired, or never were.",
            )
        return chosen

    def commits(self) -> tuple[Commit, ...]:
        """Return the listed snapshots at which the table changed, oldest first.

        Where the snapshot that made a state was expired, the first one that still shows the state stands for it.
        """
        return tuple(state.commit for state in self._listing().states if state.starts)

    def names(self, commit: Commit) -> tuple[str, ...]:
        """Return the data files of a commit, each with what deletes rows of it; see `Source.names`."""
        return tuple(sorted(self._located(commit)))

    def stamp(self, name: str) -> FileStamp:
        """Return the stamp of a name's files; where part of it lies in the catalogue, with the catalogue's."""
        files, inlined = self._parts(name)
        stamps = [stamp_of(path) for path in files]
        return bundle_stamp([*stamps, self._place().stamp()] if inlined else stamps)

    def hexdigest(self, name: str) -> str:
        """Return the digest of a name's files, and of what lies in the catalogue: the rows and deletes themselves."""
        files, inlined = self._parts(name)
        found = [hash_file(path.parent, path.name, self.algorithm).hexdigest for path in files]
        if inlined:
            with self._catalogue() as database:
                found += [self._inlined_hex(database, part) for part in inlined]
        return bundle_hex(found, self.algorithm)

    def schema(self, commit: Commit) -> pa.Schema:
        """Return the columns of a commit."""
        self._refuse_unlisted(commit.id, self._listing().states)
        with self._lake() as database:
            return schema_of(database, Rows(self._at(commit)))

    def scan(
        self, commit: Commit, name: str, time: str, window: Window | None, columns: Sequence[str] | None
    ) -> Iterator[pa.Table]:
        """Yield the rows of one data file that are seen at a commit; see `Source.scan`."""
        file = self._located(commit).get(name)
        if file is None:
            raise NotFoundError(
                f"snapshot {commit.id} of {self.table} has no file {name}", hint="Read a commit that lists it."
            )
        files = self._parts(name)[0]
        before = [stamp_of(path) for path in files]
        with self._lake() as database:
            if "filename" in schema_of(database, Rows(self._at(commit))).names:
                raise DefinitionError(
                    f"{self.table} has a column 'filename', by which DuckLake would tell its files apart",
                    hint="Rename the column.",
                )
            yield from stream(database, Rows(self._at(commit), "filename = ?", (file,)), time, window, columns)
        # Upkeep of the lake puts old rows into other files; asked for the file it had, DuckLake then gives no rows.
        if [stamp_of(path) for path in files] != before or self._located(commit).get(name) != file:
            raise ConflictError(f"{name} changed while it was read", hint="Run this again.")

    def _place(self) -> DuckDBFile | SqliteFile:
        """Return the catalogue's file.

        Raises:
            NotFoundError: It is gone.
        """
        stamp_of(self.path)
        with self.path.open("rb") as stream:
            sqlite = stream.read(len(_SQLITE_HEADER)) == _SQLITE_HEADER
        return SqliteFile(self.path) if sqlite else DuckDBFile(self.path)

    def _catalogue(self) -> AbstractContextManager[DuckDBPyConnection]:
        """Attach the catalogue alone, as a database like any other."""
        return self._place().open()

    def _lake(self) -> AbstractContextManager[DuckDBPyConnection]:
        """Attach the lake."""
        sqlite = isinstance(self._place(), SqliteFile)
        where = literal(f"ducklake:{'sqlite:' if sqlite else ''}{self.path}")
        extensions = ["ducklake", "sqlite_scanner"] if sqlite else ["ducklake"]
        return attached(f"ATTACH {where} AS {ATTACHED} (READ_ONLY)", str(self.path), extensions, alone=False)

    def _at(self, commit: Commit) -> str:
        return f"{identifier(ATTACHED, *self._named)} AT (VERSION => {int(commit.id)})"

    def _listing(self) -> _Listing:
        """Read the states of the table, unless the catalogue is as it was."""
        stamp = self._place().stamp()
        if self._kept is None or self._kept.stamp != stamp:
            with self._catalogue() as database:
                self._kept = _Listing(stamp, self._states(database), {})
        return self._kept

    def _states(self, database: DuckDBPyConnection) -> tuple[_State, ...]:
        self._refuse_format(database)
        schema, table = self._named
        rows = database.execute(_SNAPSHOTS, {"schema": schema, "table": table}).fetchall()
        newest = database.execute(_NEWEST).fetchone()
        if not rows or not newest or rows[-1][0] != newest[0]:
            raise NotFoundError(f"the lake {self.path} has no table {self.table}", hint="Name it as SCHEMA.NAME.")
        before = None
        states = []
        for snapshot, microseconds, identity, changed in rows:
            at = _EPOCH + timedelta(microseconds=microseconds)
            states.append(_State(snapshot, at, identity, changed or identity != before))
            before = identity
        return tuple(states)

    def _refuse_format(self, database: DuckDBPyConnection) -> None:
        found = database.execute("SELECT value FROM source.ducklake_metadata WHERE key = 'version'").fetchone()
        if found is None or not str(found[0]).startswith(_FORMAT):
            raise DefinitionError(
                f"{self.path} is a lake of format {found[0] if found else 'unknown'}; expected {_FORMAT}x",
                hint="Open it with DuckLake 1, which migrates it.",
            )

    def _located(self, commit: Commit) -> dict[str, str]:
        """Return for each name of a commit what DuckLake calls the file in its column `filename`."""
        listing = self._listing()
        self._refuse_unlisted(commit.id, listing.states)
        snapshot = int(commit.id)
        if snapshot not in listing.located:
            state = next(state for state in listing.states if state.snapshot == snapshot)
            with self._catalogue() as database:
                listing.located[snapshot] = self._locate(database, state)
        return listing.located[snapshot]

    def _refuse_unlisted(self, version: str, states: Sequence[_State]) -> None:
        if not version.isdecimal() or int(version) not in {state.snapshot for state in states}:
            raise NotFoundError(
                f"{self.table} is at no listed snapshot {version}; it was expired, or never was",
                hint=f"The lake lists it from snapshot {states[0].snapshot} to {states[-1].snapshot}.",
            )

    def _locate(self, database: DuckDBPyConnection, state: _State) -> dict[str, str]:
        """Return the files of a state by their names."""
        bound = {"id": state.table, "at": state.snapshot}
        folder = self._folder(database, bound)
        rows = f"ducklake_inlined_data_{state.table}_"
        deletes = f"ducklake_inlined_delete_{state.table}"
        tables = [name for (name,) in database.execute(_INLINED_TABLES, {"deletes": deletes, "rows": rows}).fetchall()]
        at = {"at": state.snapshot}
        deleted: dict[int, int] = {}
        if deletes in tables:
            deleted = dict(database.execute(_LAST_DELETE.format(_inside(deletes)), at).fetchall())
        parts: dict[int, list[str]] = {}
        files: dict[int, str] = {}
        for number, *data_and_delete in database.execute(_FILES, bound).fetchall():
            data, delete = data_and_delete[:3], data_and_delete[3:]
            if number not in parts:
                files[number] = _join(folder, data[0], data[1])
                parts[number] = [self._written(folder, data, state.snapshot)]
            if delete[0] is not None:
                parts[number].append(self._written(folder, delete, state.snapshot))
        for number in parts.keys() & deleted.keys():
            parts[number].append(f"{deletes}/{number}@{deleted[number]}")
        located = {_AND.join(parts[number]): files[number] for number in parts}
        for table in tables:
            if table != deletes:
                visible, last = database.execute(_LAST_CHANGE.format(_inside(table)), at).fetchall()[0]
                located |= {f"{table}@{last}": table} if visible else {}
        return located

    def _folder(self, database: DuckDBPyConnection, bound: dict[str, int]) -> str:
        """Return the folder of the table's files, with a slash at its end."""
        data, schema, below_data, table, below_schema = database.execute(_FOLDERS, bound).fetchall()[0]
        folder = _join(_join(data, schema, below_data), table, below_schema)
        if not folder.startswith("/"):
            raise DefinitionError(
                f"the data of the lake {self.path} lie in {folder!r}; expected an absolute path on this machine",
                hint="Attach the lake with DATA_PATH as an absolute path and OVERRIDE_DATA_PATH, once, to write.",
            )
        return folder

    def _written(self, folder: str, file: Sequence[object], snapshot: int) -> str:
        """Return how a name writes a file: its path, and a snapshot if that hides rows which were merged into it."""
        path, relative, last = file
        below = f"{self.path.parent}/"
        written = _join(folder, str(path), bool(relative)).removeprefix(below)
        if _AND in written:
            raise DefinitionError(f"the path {written} has a {_AND}", hint="Put the lake into another folder.")
        return f"{written}@{snapshot}" if last is not None and snapshot < int(str(last)) else written

    def _parts(self, name: str) -> tuple[list[Path], list[str]]:
        """Take a name apart: its files, and what of it lies in the catalogue."""
        parts = name.split(_AND)
        inlined = [part for part in parts if _INLINED_ROWS.fullmatch(part) or _INLINED_DELETES.fullmatch(part)]
        files = [self.path.parent / _UP_TO.sub("", part) for part in parts if part not in inlined]
        return files, inlined

    def _inlined_hex(self, database: DuckDBPyConnection, part: str) -> str:
        from snapline.lineage.rows.encoding import encode, plain

        bound: dict[str, int] = {}
        if found := _INLINED_ROWS.fullmatch(part):
            query, bound["at"] = _ROWS.format(_inside(found[1])), int(found[2])
        elif found := _INLINED_DELETES.fullmatch(part):
            query = _DELETES.format(_inside(found[1]))
            bound |= {"file": int(found[2]), "at": int(found[3])}
        rows = plain(database.execute(query, bound).to_arrow_table()).combine_chunks()
        state = hasher(self.algorithm)
        state.update(f"{rows.schema} {rows.num_rows}\n".encode())
        for column in rows.columns if rows.num_rows else ():
            for piece in encode(column.chunk(0)).parts(0, rows.num_rows):
                state.update(piece)
        return state.hexdigest()


def _inside(table: str) -> str:
    return identifier(ATTACHED, table)


def _join(folder: str, path: str, relative: bool) -> str:
    return folder + path if relative else path
