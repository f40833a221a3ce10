"""What somebody with write access to a home, but without a trusted key, might do to its ledger. Each is noticed."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from snapline.lineage import events
from snapline.lineage.errors import IntegrityError
from snapline.lineage.events import Recorded
from snapline.lineage.ledger import GENESIS, Ledger, entry_digest
from snapline.lineage.signing import SigningKey, TrustedKeys, open_envelope, seal
from snapline.lineage.stores.sql import SqlStore
from snapline.lineage.witness import Head, Witness

AT = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "sha256-contract-v1:" + "0" * 64
Row = tuple[int, str, str, bytes, str, bytes]


def recorded(name: str) -> Recorded:
    return Recorded(at=AT, what="contract", name=name, digest=DIGEST, object=DIGEST)


class Home:
    """A home with five entries, its owner's key, and the means to break into its database."""

    def __init__(self, root: Path) -> None:
        self.root, self.database, self.witness = root, root / "ledger.db", root / "head.json"
        self.key = SigningKey.create(root / "key")
        self.trusted = TrustedKeys({self.key.key_id: self.key.public})
        self.open().commit(lambda _state: [recorded(name) for name in "abcde"])

    def open(self) -> Ledger:
        return Ledger(SqlStore(f"sqlite:///{self.database}"), self.key, self.trusted, self.witness)

    def break_in(self, *statements: str, rows: list[Row] | None = None) -> None:
        """Remove the triggers, run statements, and, given rows, put those in the place of what is there."""
        with closing(sqlite3.connect(self.database, isolation_level=None)) as connection:
            connection.execute("DROP TRIGGER ledger_keeps")
            connection.execute("DROP TRIGGER ledger_keeps_all")
            for statement in statements:
                connection.execute(statement)
            if rows is not None:
                connection.execute("DELETE FROM ledger")
                connection.executemany("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?)", rows)

    def rows(self) -> list[Row]:
        with closing(sqlite3.connect(self.database)) as connection:
            return connection.execute("SELECT * FROM ledger ORDER BY seq").fetchall()

    def assert_noticed(self, message: str) -> None:
        """Every way of reading refuses, and nothing more can be committed."""
        before = self.rows() if self.database.exists() else []
        for read in (self.open().load, self.open().entries, self.open().verify):
            with pytest.raises(IntegrityError, match=message) as caught:
                read()
            assert caught.value.hint
        with pytest.raises(IntegrityError, match=message):
            self.open().commit(lambda _state: [recorded("next")])
        assert self.rows() == before


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def forged(row: Row, previous: str, payload: bytes) -> Row:
    """The row with another payload and digests that fit it; only the signature is what it was."""
    return (row[0], previous, entry_digest(row[0], previous, payload), payload, row[4], row[5])


def test_the_last_row_is_deleted(home: Home) -> None:
    home.break_in("DELETE FROM ledger WHERE seq = 5")
    home.assert_noticed("cut short: 4 entries, but 5 were signed")


def test_every_row_is_deleted(home: Home) -> None:
    home.break_in("DELETE FROM ledger")
    home.assert_noticed("cut short: 0 entries, but 5 were signed")


def test_the_first_row_is_deleted(home: Home) -> None:
    home.break_in("DELETE FROM ledger WHERE seq = 1")
    home.assert_noticed("entry 1 of the ledger breaks the chain")


def test_the_database_is_deleted(home: Home) -> None:
    home.database.unlink()
    home.assert_noticed("cut short: 0 entries, but 5 were signed")


def test_the_database_is_an_older_copy(home: Home) -> None:
    shutil.copy(home.database, home.root / "copy")
    home.open().commit(lambda _state: [recorded("f")])
    shutil.copy(home.root / "copy", home.database)
    home.assert_noticed("cut short: 5 entries, but 6 were signed")


def test_the_database_is_deleted_and_refilled_by_a_trusted_key(home: Home, tmp_path: Path) -> None:
    home.database.unlink()
    other = Ledger(SqlStore(f"sqlite:///{home.database}"), home.key, home.trusted, tmp_path / "other.json")
    other.commit(lambda _state: [recorded(name) for name in "abcdxy"])
    home.assert_noticed("rewritten: entry 5 was signed as")


def test_the_database_is_another_homes(home: Home, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    shutil.copy(Home(tmp_path / "other").database, home.database)
    home.assert_noticed("signed by a key nobody trusts here")


def test_the_database_is_emptied_to_no_bytes(home: Home) -> None:
    home.database.write_bytes(b"")
    for read in (home.open().load, home.open().entries, home.open().verify):
        with pytest.raises(IntegrityError, match="cannot be read as one: no such table"):
            read()


def test_the_database_is_cut_or_damaged_anywhere(home: Home) -> None:
    """Damage in a page nobody reads may go unnoticed; what may not happen is that it tells another history."""
    data, head, ledger, noticed = home.database.read_bytes(), home.open().load().head, home.open(), 0
    places = range(0, len(data), 53)
    damaged = [data[:place] for place in places]
    damaged += [data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :] for place in places]
    for content in damaged:
        home.database.write_bytes(content)
        try:
            assert ledger.load().head == head
        except IntegrityError:
            noticed += 1
    assert noticed > len(places) / 2


def test_a_payload_is_edited(home: Home) -> None:
    home.break_in("UPDATE ledger SET payload = CAST(replace(payload, 'contract', 'probes') AS BLOB) WHERE seq = 3")
    home.assert_noticed("entry 3 of the ledger breaks the chain")


@pytest.mark.parametrize("seq", [1, 3, 5])
def test_a_payload_is_edited_and_every_digest_made_to_fit(home: Home, seq: int) -> None:
    rows, previous = home.rows(), GENESIS
    for place, row in enumerate(rows):
        payload = events.encode(recorded("evil")) if row[0] == seq else row[3]
        rows[place] = forged(row, previous, payload)
        previous = rows[place][2]
    home.break_in(rows=rows)
    home.assert_noticed("the ledger was rewritten: entry 5")


def test_a_row_is_appended_without_a_key(home: Home) -> None:
    rows = home.rows()
    last = rows[-1]
    home.break_in(rows=[*rows, forged((6, *last[1:]), last[2], events.encode(recorded("evil")))])
    home.assert_noticed("entry 6 of the ledger: bad signature")


def test_a_row_is_appended_with_a_strangers_key(home: Home) -> None:
    rows, stranger = home.rows(), SigningKey.create(home.root / "stranger")
    row = forged((6, *rows[-1][1:]), rows[-1][2], events.encode(recorded("evil")))
    signature = stranger.sign(Head(length=6, digest=row[2]).message())
    home.break_in(rows=[*rows, (*row[:4], stranger.key_id, signature)])
    home.assert_noticed("entry 6 of the ledger: signed by a key nobody trusts here")


def test_a_strangers_key_id_is_written_over_the_owners(home: Home) -> None:
    stranger = SigningKey.create(home.root / "stranger")
    home.break_in(f"UPDATE ledger SET key_id = '{stranger.key_id}' WHERE seq = 5")
    home.assert_noticed("entry 5 of the ledger: signed by a key nobody trusts here")


def test_two_rows_are_swapped(home: Home) -> None:
    rows = home.rows()
    rows[1], rows[2] = (2, *rows[2][1:]), (3, *rows[1][1:])
    home.break_in(rows=rows)
    home.assert_noticed("entry 2 of the ledger breaks the chain")


def test_a_row_is_repeated(home: Home) -> None:
    rows = home.rows()
    home.break_in("DROP TABLE ledger", "CREATE TABLE ledger (seq, previous, digest, payload, key_id, signature)")
    with closing(sqlite3.connect(home.database, isolation_level=None)) as connection:
        connection.executemany("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?)", [*rows, rows[-1]])
    home.assert_noticed("entry 6 of the ledger breaks the chain")


def test_an_early_signature_is_exchanged(home: Home) -> None:
    """Only the full check reads it; the chain's digests and the last signature still hold the history itself."""
    home.break_in("UPDATE ledger SET signature = (SELECT signature FROM ledger WHERE seq = 1) WHERE seq = 2")
    assert home.open().load().length == 5
    with pytest.raises(IntegrityError, match="entry 2 of the ledger: bad signature"):
        home.open().verify()


@pytest.mark.parametrize("column", ["payload", "signature"])
@pytest.mark.parametrize("value", ["'text'", "7", "1.5", "x''", "99999999999999"])
def test_a_column_holds_another_type(home: Home, column: str, value: str) -> None:
    home.break_in(f"UPDATE ledger SET {column} = {value} WHERE seq = 5")
    home.assert_noticed("does not hold bytes|breaks the chain|bad signature")


@pytest.mark.parametrize("column", ["previous", "digest", "key_id"])
@pytest.mark.parametrize("value", ["x'ff'", "''", "7", "CAST(x'ff' AS TEXT)"])
def test_a_text_column_holds_something_else(home: Home, column: str, value: str) -> None:
    home.break_in(f"UPDATE ledger SET {column} = {value} WHERE seq = 5")
    for read in (home.open().load, home.open().verify):
        with pytest.raises(IntegrityError):
            read()


def test_the_witness_is_deleted(home: Home) -> None:
    home.witness.unlink()
    home.assert_noticed("there are 5 ledger entries, but no witness of them")


def test_the_witness_is_a_strangers(home: Home) -> None:
    (home.root / "other").mkdir()
    shutil.copy(Home(home.root / "other").witness, home.witness)
    home.assert_noticed(r"head\.json: signed by a key nobody trusts here")


def test_the_witness_is_another_document_its_owner_signed(home: Home) -> None:
    home.witness.write_bytes(seal(Head(length=1, digest=GENESIS).document(), "application/other", home.key))
    home.assert_noticed("expected an envelope of")


def test_the_witness_is_an_older_one_which_alone_does_no_harm(home: Home) -> None:
    older = home.witness.read_bytes()
    home.open().commit(lambda _state: [recorded("f")])
    home.witness.write_bytes(older)
    assert home.open().verify() == 6


def test_an_older_witness_does_not_excuse_a_forged_row(home: Home) -> None:
    older = home.witness.read_bytes()
    home.open().commit(lambda _state: [recorded("f")])
    home.witness.write_bytes(older)
    rows = home.rows()
    home.break_in(rows=[*rows[:5], forged(rows[5], rows[4][2], events.encode(recorded("evil")))])
    home.assert_noticed("entry 6 of the ledger: bad signature")


def test_any_byte_of_the_witness_is_changed(home: Home) -> None:
    data, witness = home.witness.read_bytes(), Witness(home.witness, home.trusted)
    for place in range(len(data)):
        home.witness.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with pytest.raises(IntegrityError):
            witness.read()


def test_any_byte_of_an_envelope_is_changed(home: Home) -> None:
    sealed = seal(b'{"verdict":"REFUTED"}', "application/vnd.in-toto+json", home.key)
    assert open_envelope(sealed, "application/vnd.in-toto+json", home.trusted)
    for place in range(len(sealed)):
        for mask in range(1, 256):
            with pytest.raises(IntegrityError):
                open_envelope(
                    sealed[:place] + bytes([sealed[place] ^ mask]) + sealed[place + 1 :],
                    "application/vnd.in-toto+json",
                    home.trusted,
                )


def test_an_envelope_is_cut_or_extended_anywhere(home: Home) -> None:
    sealed = seal(b"{}", "t", home.key)
    for place in range(len(sealed)):
        for changed in (sealed[:place], sealed[place + 1 :], sealed[:place] + b" " + sealed[place:]):
            with pytest.raises(IntegrityError):
                open_envelope(changed, "t", home.trusted)
