"""Entries kept in a SQL database, through SQLAlchemy Core: SQLite by default, PostgreSQL for a team.

The database is held to its promise twice. Its own triggers refuse to change or remove an entry, which stops accidents;
the ledger's chain and signatures expose whoever gets around them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import sqlalchemy
from sqlalchemy import URL, BigInteger, Column, Connection, Engine, Integer, LargeBinary, MetaData, Table, Text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from snapline.lineage.errors import ConflictError, DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.stores.protocol import Entry, moved, require_unmoved

BUSY_SECONDS = 30
_METADATA = MetaData()
_TABLE = Table(
    "ledger",
    _METADATA,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("previous", Text, nullable=False),
    Column("digest", Text, nullable=False, unique=True),
    Column("payload", LargeBinary, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("signature", LargeBinary, nullable=False),
)
_INSERT = sqlalchemy.insert(_TABLE)
# Untyped text, because SQLite lets a tampered row hold any type in any column and nothing may convert it on the way.
_SELECT = sqlalchemy.text("SELECT seq, previous, digest, payload, key_id, signature FROM ledger ORDER BY seq")
_SELECT_LAST = sqlalchemy.text("SELECT seq, digest FROM ledger ORDER BY seq DESC LIMIT 1")

_REFUSAL = "the ledger is append-only"
_TRIGGERS = {
    "sqlite": (
        f"CREATE TRIGGER ledger_keeps BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END",
        f"CREATE TRIGGER ledger_keeps_all BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END",
    ),
    "postgresql": (
        "CREATE OR REPLACE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$",
        "CREATE TRIGGER ledger_keeps BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger "
        "FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()",
    ),
}
_RESTORE = "Restore the ledger's database from a copy you trust."
_URLS = "Write sqlite:////path/ledger.db, or postgresql+psycopg://… with snapline[postgres] installed."
# Beginnings of the names SQLite and the SQLSTATEs PostgreSQL give.
_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED", "40", "55P03")
_UNREACHABLE = (
    *("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_FULL"),
    *("08", "28", "3D", "42501", "53", "57P"),
)


class SqlStore:
    """A store in the database at a SQLAlchemy URL, such as `sqlite:////path/ledger.db`; its table is made when missing.

    Every call opens a connection of its own, so that a store may be shared between threads and survives a fork.

    Raises:
        DefinitionError: The URL names no supported database.
        NotFoundError: The database cannot be reached or made.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = sqlalchemy.make_url(url)
            self._dialect = parsed.get_backend_name()
            in_memory = self._dialect == "sqlite" and parsed.database in {None, "", ":memory:"}
            if self._dialect not in _TRIGGERS or in_memory:
                found = "SQLite in memory" if in_memory else self._dialect
                raise DefinitionError(f"expected the URL of a SQLite file or of PostgreSQL, found {found}", hint=_URLS)
            self._engine = _engine(parsed)
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise DefinitionError(f"the URL cannot be used for a ledger: {error}", hint=_URLS) from error
        self._create()

    def load(self) -> Sequence[Entry]:
        """Return every entry in order, as of one moment.

        Raises:
            IntegrityError: What is kept cannot be read as entries.
            NotFoundError: The database cannot be reached.
        """
        with self._connection() as connection:
            rows = connection.execute(_SELECT).all()
        for row in rows:
            if not (isinstance(row.payload, bytes) and isinstance(row.signature, bytes)):
                raise IntegrityError(f"entry {row.seq!r} of the ledger does not hold bytes", hint=_RESTORE)
        return [Entry(*row) for row in rows]

    def append(self, entries: Sequence[Entry], expected_length: int, expected_head: str) -> None:
        """Add all entries durably, or none.

        Raises:
            ConflictError: The store holds other entries by now.
            NotFoundError: The database cannot be reached or written.
        """
        rows = [asdict(entry) for entry in entries]
        with self._connection() as connection:
            if self._dialect == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            last = connection.execute(_SELECT_LAST).one_or_none()
            require_unmoved((expected_length, expected_head), tuple(last) if last else None)
            try:
                connection.execute(_INSERT, rows)
            except sqlalchemy.exc.IntegrityError as error:  # PostgreSQL: another writer won between our two statements
                raise moved(f"entry {expected_length} to be the last", "another after it") from error

    @contextmanager
    def _connection(self, engine: Engine | None = None) -> Iterator[Connection]:
        try:
            with (engine or self._engine).begin() as connection:
                yield connection
        except DBAPIError as error:
            raise _explain(error, self._engine.url.render_as_string(hide_password=True)) from error

    def _create(self) -> None:
        if self._dialect == "sqlite":
            path = Path(str(self._engine.url.database))
            if not path.exists():
                self._create_file(path)
            return
        with self._connection() as connection:
            if not sqlalchemy.inspect(connection).has_table(_TABLE.name):
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('snapline.ledger'))")
                if not sqlalchemy.inspect(connection).has_table(_TABLE.name):  # nobody made it while we waited
                    _define(connection)

    def _create_file(self, path: Path) -> None:
        """Make the database under another name and link it into place, whole, unless somebody else did.

        Turning a database to WAL while others open it fails at once however long they are told to wait.
        """
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with self._connection(_engine(self._engine.url.set(database=str(temporary)))) as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
                _define(connection)
            with suppress(FileExistsError):
                path.hardlink_to(temporary)
        finally:
            temporary.unlink(missing_ok=True)


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return sqlalchemy.create_engine(url, poolclass=NullPool)
    # Without an isolation level the driver opens no transactions of its own: ours begin IMMEDIATE.
    options = {"timeout": BUSY_SECONDS, "isolation_level": None}
    engine = sqlalchemy.create_engine(url, poolclass=NullPool, connect_args=options)
    sqlalchemy.event.listen(engine, "connect", lambda raw, _record: raw.execute("PRAGMA synchronous = FULL"))
    return engine


def _define(connection: Connection) -> None:
    _METADATA.create_all(connection, checkfirst=False)
    for statement in _TRIGGERS[connection.dialect.name]:
        connection.exec_driver_sql(statement)


def _explain(error: DBAPIError, url: str) -> Exception:
    """Return the error a caller can act on: whatever does not tell of reaching the database tells of its content."""
    code = str(getattr(error.orig, "sqlite_errorname", None) or getattr(error.orig, "sqlstate", None) or "")
    if code.startswith(_BUSY):
        return ConflictError(f"the ledger at {url} stayed busy: {error.orig}", hint="Run this again.")
    # PostgreSQL gives no code where there was no connection; SQLite always gives one, but for text that is not UTF-8.
    unconnected = not code and isinstance(error, sqlalchemy.exc.OperationalError) and not url.startswith("sqlite")
    if unconnected or code.startswith(_UNREACHABLE):
        return NotFoundError(
            f"the ledger at {url} cannot be reached or written: {error.orig}",
            hint="Check that the database is there, up, and open to you.",
        )
    return IntegrityError(f"the ledger at {url} cannot be read as one: {error.orig}", hint=_RESTORE)
