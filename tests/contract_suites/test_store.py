"""What every store must do, asked of each of them."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapline.lineage.errors import ConflictError, DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.ledger import GENESIS, Ledger
from snapline.lineage.signing import SigningKey, TrustedKeys
from snapline.lineage.stores.memory import MemoryStore
from snapline.lineage.stores.protocol import Entry, Store
from snapline.lineage.stores.sql import SqlStore

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)
Opener = Callable[[], Store]


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        created: str = request.getfixturevalue("postgres_url")
        return created
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture(params=["memory", "sqlite", POSTGRES])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """A function that opens the same, at first empty, store again and again."""
    if request.param == "memory":
        store = MemoryStore()
        return lambda: store
    place = (
        request.getfixturevalue("postgres_url")
        if request.param == "postgres"
        else f"sqlite:///{tmp_path}/{os.urandom(8).hex()}.db"
    )
    return lambda: SqlStore(place)


def chain(*payloads: bytes, after: int = 0) -> list[Entry]:
    """Entries as a store sees them: it never looks at what a digest or a signature means."""
    return [
        Entry(seq, f"d{seq - 1}", f"d{seq}", payload, "key", bytes([seq % 256]) * 64)
        for seq, payload in enumerate(payloads, start=after + 1)
    ]


def test_a_new_store_is_empty(open_store: Opener) -> None:
    assert list(open_store().load()) == []


def test_what_was_appended_is_loaded_in_order_by_everyone(open_store: Opener) -> None:
    first, second = chain(b"a", b"b"), chain(b"c", after=2)
    open_store().append(first, 0, GENESIS)
    open_store().append(second, 2, "d2")
    assert list(open_store().load()) == [*first, *second]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(payload=st.binary(max_size=300))
def test_any_bytes_come_back_as_they_were(open_store: Opener, payload: bytes) -> None:
    store = open_store()
    length = len(store.load())
    store.append(chain(payload, after=length), length, f"d{length}")
    assert store.load()[-1].payload == payload


@pytest.mark.parametrize(
    ("length", "head"), [(0, GENESIS), (1, "d1"), (3, "d3"), (2, "another")], ids=["start", "behind", "ahead", "fork"]
)
def test_a_stale_expectation_loses_and_adds_nothing(open_store: Opener, length: int, head: str) -> None:
    store = open_store()
    store.append(chain(b"a", b"b"), 0, GENESIS)
    with pytest.raises(ConflictError, match=rf"expected {length} entries with head {head}, found 2 with head d2"):
        store.append(chain(b"c", b"d", after=length), length, head)
    assert list(store.load()) == chain(b"a", b"b")


def test_an_empty_store_refuses_who_expects_entries(open_store: Opener) -> None:
    with pytest.raises(ConflictError, match="expected 1 entries with head d1, found 0"):
        open_store().append(chain(b"b", after=1), 1, "d1")


def test_of_eight_writers_on_one_head_exactly_one_wins(open_store: Opener) -> None:
    open_store().append(chain(b"a"), 0, GENESIS)

    def write(writer: int) -> bool:
        try:
            open_store().append(chain(bytes([writer]), b"also", after=1), 1, "d1")
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(write, range(8)))
    assert won.count(True) == 1
    assert [entry.payload for entry in open_store().load()] == [b"a", bytes([won.index(True)]), b"also"]


@pytest.mark.parametrize("clash", [{"seq": 1, "digest": "new"}, {"seq": 3, "digest": "d1"}], ids=["place", "digest"])
def test_entries_that_clash_with_one_that_is_there_are_not_kept(url: str, clash: dict[str, Any]) -> None:
    store, good = SqlStore(url), chain(b"b", after=1)
    store.append(chain(b"a"), 0, GENESIS)
    with pytest.raises(ConflictError, match="the ledger moved"):
        store.append([*good, replace(good[0], **clash)], 1, "d1")
    assert list(store.load()) == chain(b"a")


def test_a_writer_waits_for_another(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/ledger.db")
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = Timer(0.3, other.execute, ["ROLLBACK"])
        timer.start()
        store.append(chain(b"a"), 0, GENESIS)
        timer.join()
    assert list(store.load()) == chain(b"a")


@pytest.mark.parametrize("statement", ["UPDATE ledger SET payload = ''", "DELETE FROM ledger WHERE seq = 2"])
def test_the_database_itself_refuses_to_forget(url: str, statement: str) -> None:
    store = SqlStore(url)
    store.append(chain(b"a", b"b"), 0, GENESIS)
    with (
        pytest.raises(sqlalchemy.exc.DBAPIError, match="append-only"),
        sqlalchemy.create_engine(url).begin() as connection,
    ):
        connection.exec_driver_sql(statement)
    assert list(store.load()) == chain(b"a", b"b")


@pytest.mark.postgres
def test_postgres_refuses_to_truncate(postgres_url: str) -> None:
    SqlStore(postgres_url).append(chain(b"a"), 0, GENESIS)
    with (
        pytest.raises(sqlalchemy.exc.DBAPIError, match="append-only"),
        sqlalchemy.create_engine(postgres_url).begin() as connection,
    ):
        connection.exec_driver_sql("TRUNCATE ledger")


@pytest.mark.postgres
def test_a_postgres_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="cannot be reached"):
        SqlStore(f"postgresql+psycopg://postgres@/nothing?host={tmp_path}")


@pytest.mark.parametrize(
    "wrong", ["mysql://me:secret@host/db", "sqlite://", "sqlite:///:memory:", "secret", "oracle+nothing://secret@x"]
)
def test_a_url_that_cannot_hold_a_ledger_is_refused(wrong: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        SqlStore(wrong)
    assert "sqlite:////path/ledger.db" in caught.value.hint
    assert "secret" not in caught.value.message


def test_a_folder_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="cannot be reached or written"):
        SqlStore(f"sqlite:///{tmp_path}/nowhere/ledger.db")


def test_a_file_that_is_no_database_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database, but long enough to be taken for one" * 100)
    with pytest.raises(IntegrityError, match="cannot be read as one"):
        SqlStore(f"sqlite:///{tmp_path}/ledger.db").load()


def test_sqlite_is_durable_and_leaves_nothing_but_the_database(tmp_path: Path) -> None:
    SqlStore(f"sqlite:///{tmp_path}/ledger.db").append(chain(b"a"), 0, GENESIS)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.db"]
    with sqlalchemy.create_engine(f"sqlite:///{tmp_path}/ledger.db").connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


WRITER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from snapline.lineage.events import Recorded
from snapline.lineage.ledger import Ledger
from snapline.lineage.signing import SigningKey, TrustedKeys
from snapline.lineage.stores.sql import SqlStore

url, home, name, count = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
sys.stdin.readline()
ledger = Ledger(SqlStore(url), SigningKey.load(home / "key"), TrustedKeys.load(home / "trusted"), home / "head.json")
digest = "sha256-contract-v1:" + "0" * 64
for number in range(count):
    event = Recorded(
        at=datetime(2026, 1, 1, tzinfo=UTC), what="contract", name=f"{name}-{number}", digest=digest, object=digest
    )
    ledger.commit(lambda _state: [event])
    print(number, flush=True)
"""


def begin(writer: subprocess.Popen[str]) -> None:
    assert writer.stdin is not None
    writer.stdin.write("\n")
    writer.stdin.flush()


def start_writer(url: str, home: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, url, str(home), name, str(count)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "trusted").mkdir()
    SigningKey.create(tmp_path / "key").publish(tmp_path / "trusted")
    return tmp_path


def ledger_of(url: str, home: Path) -> Ledger:
    key, trusted = SigningKey.load(home / "key"), TrustedKeys.load(home / "trusted")
    return Ledger(SqlStore(url), key, trusted, home / "head.json")


def names(ledger: Ledger) -> Sequence[str]:
    return [record.event.name for record in ledger.entries() if record.event.kind == "recorded"]


def test_eight_processes_make_one_ledger_and_lose_nothing(url: str, home: Path) -> None:
    commits = 25 if url.startswith("sqlite") else 10
    writers = [start_writer(url, home, f"w{number}", commits) for number in range(8)]
    for writer in writers:
        begin(writer)
    for writer in writers:
        writer.communicate(timeout=120)
    assert [writer.returncode for writer in writers] == [0] * 8
    ledger = ledger_of(url, home)
    assert ledger.verify() == 8 * commits
    assert sorted(names(ledger)) == sorted(f"w{writer}-{number}" for writer in range(8) for number in range(commits))


def test_a_writer_killed_at_any_point_leaves_the_ledger_whole(tmp_path: Path, home: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    confirmed: list[str] = []
    for attempt in range(10):
        writer = start_writer(url, home, f"k{attempt}", 100_000)
        begin(writer)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(attempt * 0.0137)
        writer.kill()
        printed = [0, *(int(line) for line in writer.communicate()[0].split())]
        confirmed += [f"k{attempt}-{number}" for number in printed]
        ledger = ledger_of(url, home)
        assert ledger.verify() == len(names(ledger))
        assert set(confirmed) <= set(names(ledger))
