"""Tables that DuckDB reads: how it is opened, which types pass, and how rows leave it.

Every connection is an in-memory database on two threads that installs nothing, loads nothing by itself, runs in UTC and
reads no Python variable; the table's database is attached to it, read-only. Columns keep the type they have in Arrow
(an ENUM is its text, a UUID its text, JSON its text). Types that Arrow cannot hold in full are refused: HUGEINT and
UHUGEINT (128 bits into 38 digits), BIGNUM, BIT, INTERVAL, UNION, VARIANT and TIME WITH TIME ZONE, whose offset is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.sources.protocol import Window

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from duckdb.sqltypes import DuckDBPyType

ATTACHED = "source"
_ROWS = 122_880  # a row group of DuckDB
_MEMORY = "1GB"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_TICK = 2**63 - 2  # the next one is DuckDB's infinity
_SETTINGS = (
    "SET TimeZone = 'UTC'",
    "SET temp_directory = ''",
    f"SET memory_limit = '{_MEMORY}'",
    "SET python_enable_replacements = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET arrow_large_buffer_size = true",  # Arrow aborts the process when it casts the keys of DuckDB's maps
)
_LOCK = "SET lock_configuration = true"
_NO_OTHER_FILE = "SET enable_external_access = false"
_INTEGERS = frozenset({"tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger", "ubigint"})
_NAIVE = frozenset({"timestamp", "timestamp_s", "timestamp_ms"})
_TIMES = _NAIVE | {"timestamp_ns", "timestamp with time zone", "date"}
_SCALARS = _INTEGERS | _TIMES | {"boolean", "float", "double", "decimal", "varchar", "blob", "uuid", "enum", "time"}
_NESTED = frozenset({"list", "array", "struct", "map"})
_CAST_KEYS = frozenset({"enum", "time"})  # as keys of a map these would have to be cast, see _SETTINGS
_BUSY = ("Could not set lock", "Unique file handle conflict", "database is locked", "different configuration")
_GONE = ("No such file", "does not exist", "No files found", "404")


@dataclass(frozen=True, slots=True)
class Rows:
    """What to select: an SQL table expression of quoted names, a condition on it, and the condition's parameters."""

    table: str
    condition: str = "true"
    parameters: tuple[object, ...] = ()


@contextmanager
def attached(statement: str, what: str, extensions: Sequence[str] = (), *, alone: bool) -> Iterator[DuckDBPyConnection]:
    """Yield a connection on which one ATTACH statement was run; DuckDB's complaints become ours.

    Args:
        statement: The whole statement; it names the database `ATTACHED` and says READ_ONLY.
        what: What messages call the database.
        extensions: Packaged extensions to load first.
        alone: Whether no other file may be opened after the statement.
    """
    import duckdb

    files = [_extension_file(name) for name in extensions]
    checked = bool(files)
    with (
        complaints(what),
        duckdb.connect(":memory:", config={"threads": 2, "allow_unsigned_extensions": checked}) as database,
    ):
        for file in files:
            database.execute(f"LOAD {literal(str(file))}")
        for setting in _SETTINGS:
            database.execute(setting)
        database.execute(statement)
        for setting in (_NO_OTHER_FILE, _LOCK) if alone else (_LOCK,):
            database.execute(setting)
        yield database


@contextmanager
def complaints(what: str) -> Iterator[None]:
    """Turn DuckDB's errors, and Arrow's on the way out of it, into ours."""
    import duckdb
    import pyarrow as pa

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        text = str(error).strip()
        if any(sign in text for sign in _BUSY):
            raise ConflictError(
                f"{what} is being written by another program: {text}",
                hint="Wait until it has closed the database, or read a copy.",
            ) from error
        if any(sign in text for sign in _GONE):
            raise NotFoundError(f"{what} is not all there: {text}", hint="Put it back, or name another.") from error
        raise DefinitionError(f"{what} cannot be read: {text}", hint="Repair the database, or name another.") from error


@cache
def _extension_file(name: str) -> Path:
    """Return the extension that a package brought; loading the file itself writes nothing into the home folder.

    DuckDB hashes all of an extension to check its signature, at each load. That is done here, once for a process.
    """
    import duckdb

    found = find_spec(f"duckdb_extension_{name}")
    for folder in (found.submodule_search_locations or ()) if found else ():
        file = Path(folder, "extensions", f"v{duckdb.__version__}", f"{name}.duckdb_extension")
        if file.is_file():
            with complaints(str(file)), duckdb.connect(":memory:") as database:
                database.execute(f"LOAD {literal(str(file))}")
            return file
    raise DefinitionError(
        f"DuckDB {duckdb.__version__} needs its extension {name}, which is not installed",
        hint=f"pip install 'snapline[{'ducklake' if name == 'ducklake' else 'attach'}]'",
    )


def literal(text: str) -> str:
    """Return text as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def identifier(*parts: str) -> str:
    """Return a name of several parts, quoted, so that nothing in it is read as SQL."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def choose(table: str, tables: set[tuple[str, str]], views: set[tuple[str, str]], default: str) -> tuple[str, str]:
    """Return the schema and name of the table that `NAME` or `SCHEMA.NAME` means.

    Raises:
        NotFoundError: There is none.
        DefinitionError: It is a view, whose rows can change while the file it is in does not.
    """
    schema, _, name = table.partition(".")
    for wanted in ((default, table), (schema, name)):
        if wanted in tables:
            return wanted
        if wanted in views:
            raise DefinitionError(
                f"{table} is a view, and its rows can depend on more than the database it is in",
                hint="Name a table, or write what the view gives into one.",
            )
    present = ", ".join(sorted(name if schema == default else f"{schema}.{name}" for schema, name in tables))
    raise NotFoundError(
        f"no table {table}; the tables are {present or 'none'}", hint="Name one of them, as NAME or SCHEMA.NAME."
    )


def schema_of(database: DuckDBPyConnection, rows: Rows) -> pa.Schema:
    """Return the plain columns of a table.

    Raises:
        DefinitionError: A column has a type that Arrow cannot hold in full.
    """
    from snapline.lineage.rows.encoding import plain

    _typed(database, rows)
    return plain(database.sql(f"SELECT * FROM {rows.table} LIMIT 0").to_arrow_table()).schema


def stream(
    database: DuckDBPyConnection, rows: Rows, time: str, window: Window | None, columns: Sequence[str] | None
) -> Iterator[pa.Table]:
    """Yield rows in plain pieces; see `Source.scan`."""
    import pyarrow as pa

    from snapline.lineage.rows.encoding import plain

    types = _typed(database, rows)
    _refuse_time(time, types)
    chosen = list(types) if columns is None else list(columns)
    _refuse_missing(types, chosen)
    condition, parameters = rows.condition, list(rows.parameters)
    if window is not None:
        inside, bounds = _inside(time, types[time], window)
        condition, parameters = f"({condition}) AND ({inside})", [*parameters, *bounds]
    selected = ", ".join(map(identifier, chosen))
    query = f"SELECT {selected} FROM {rows.table} WHERE {condition}"
    for batch in database.execute(query, parameters).to_arrow_reader(_ROWS):
        yield plain(pa.Table.from_batches([batch]))


def _typed(database: DuckDBPyConnection, rows: Rows) -> dict[str, DuckDBPyType]:
    """Return the type of each column."""
    relation = database.sql(f"SELECT * FROM {rows.table}")
    types = dict(zip(relation.columns, relation.types, strict=True))
    for name, kind in types.items():
        _refuse_type(name, kind)
    return types


def _refuse_type(column: str, kind: DuckDBPyType) -> None:
    if kind.id in _SCALARS:
        return
    children: dict[str, Any] = dict(kind.children) if kind.id in _NESTED else {}
    if not children or (kind.id == "map" and children["key"].id in _CAST_KEYS):
        raise DefinitionError(
            f"column {column!r} has type {kind}, which cannot leave DuckDB unchanged",
            hint="Write the column as another type, such as BIGINT, DECIMAL(38,0), VARCHAR or BLOB.",
        )
    for name, child in children.items():
        if name != "size":
            _refuse_type(column, child)


def _refuse_missing(types: dict[str, DuckDBPyType], wanted: Sequence[str]) -> None:
    missing = [repr(name) for name in dict.fromkeys(wanted) if name not in types]
    if missing:
        raise DefinitionError(
            f"there is no column {', '.join(missing)}; the columns are {', '.join(types)}",
            hint="Name columns of the table.",
        )


def _refuse_time(time: str, types: dict[str, DuckDBPyType]) -> None:
    _refuse_missing(types, [time])
    if types[time].id not in _TIMES:
        raise DefinitionError(
            f"column {time!r} must hold timestamps or dates to order rows in time, found {types[time]}",
            hint=f"Declare {time} as a timestamp where the table is made.",
        )


def _inside(time: str, kind: DuckDBPyType, window: Window) -> tuple[str, tuple[object, ...]]:
    """Return the condition that a time lies in a window or is null, and its bounds; naive times and dates are UTC."""
    column, bound = identifier(time), "?"
    since: object = window.since
    until: object = window.until
    if kind.id == "date":
        since, until = _first_day(window.since), _first_day(window.until)
    elif kind.id == "timestamp_ns":  # a cast to microseconds rounds instants before 1970 up
        since, until, bound = _nanoseconds(window.since), _nanoseconds(window.until), "make_timestamp_ns(?)"
    elif kind.id in _NAIVE:
        since, until = (side.astimezone(UTC).replace(tzinfo=None) for side in (window.since, window.until))
    return f"({column} >= {bound} AND {column} < {bound}) OR {column} IS NULL", (since, until)


def _first_day(instant: datetime) -> date:
    """Return the first day that starts at or after an instant."""
    at = instant.astimezone(UTC)
    whole = at.time() == datetime.min.time()
    return at.date() if whole or at.date() == date.max else at.date() + timedelta(days=1)


def _nanoseconds(instant: datetime) -> int:
    """Return an instant in nanoseconds since the epoch, or the nearest that 64 bits hold."""
    ticks = (instant - _EPOCH) // timedelta(microseconds=1) * 1000
    return max(-_LAST_TICK, min(ticks, _LAST_TICK))
