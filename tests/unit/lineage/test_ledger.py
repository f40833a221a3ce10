from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from snapline.lineage.errors import ConflictError, IntegrityError, NotFoundError, RequirementError
from snapline.lineage.events import LineageEvent, ModelRegistered, Recorded
from snapline.lineage.ledger import ATTEMPTS, GENESIS, Ledger, entry_digest
from snapline.lineage.model import ModelVersion, VersionKey, Weights
from snapline.lineage.signing import SigningKey, TrustedKeys
from snapline.lineage.state import State
from snapline.lineage.stores.memory import MemoryStore
from snapline.lineage.stores.protocol import Entry
from snapline.lineage.witness import Head, Witness

AT = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "blake3-thing-v1:" + "a" * 64


class Place:
    """Where a ledger lives; opened as often as a test likes."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore()
        self.key = SigningKey.create(folder / "key")
        self.trusted = TrustedKeys({self.key.key_id: self.key.public})
        self.witness = folder / "head.json"

    def open(self, *, read_only: bool = False) -> Ledger:
        return Ledger(self.store, None if read_only else self.key, self.trusted, self.witness)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def recorded(name: str) -> Recorded:
    return Recorded(at=AT, what="contract", name=name, digest=DIGEST, object=DIGEST)


def next_version(state: State) -> list[LineageEvent]:
    key = VersionKey(name="model", version=len(state.models.get("model", ())) + 1)
    weights = Weights(digest=DIGEST, path="/weights", manifest=DIGEST, size_bytes=1)
    return [ModelRegistered(at=AT, model=ModelVersion(key=key, weights=weights))]


def test_a_new_ledger_is_empty_and_reading_it_writes_nothing(place: Place) -> None:
    loaded = place.open(read_only=True).load()
    assert (loaded.state, loaded.length, loaded.head) == (State(), 0, GENESIS)
    assert place.open().verify() == 0
    assert not place.witness.exists()


def test_a_commit_is_seen_by_everyone(place: Place) -> None:
    after = place.open().commit(lambda _state: [recorded("one"), recorded("two")])
    loaded = place.open(read_only=True).load()
    assert loaded.state == after
    assert loaded.length == 2
    assert {name for _, name in after.records} == {"one", "two"}
    records = place.open().entries()
    assert [(record.seq, record.event) for record in records] == [(1, recorded("one")), (2, recorded("two"))]
    assert records[-1].digest == loaded.head
    assert place.open().verify() == 2


def test_nothing_decided_appends_nothing_and_needs_no_key(place: Place) -> None:
    assert place.open(read_only=True).commit(lambda _state: []) == State()
    assert place.open().load().length == 0


def test_a_ledger_without_a_key_cannot_commit(place: Place) -> None:
    with pytest.raises(NotFoundError, match="without a signing key"):
        place.open(read_only=True).commit(next_version)
    assert place.open().load().length == 0


def test_a_key_nobody_trusts_cannot_commit_what_nobody_could_read(place: Place, tmp_path: Path) -> None:
    stranger = SigningKey.create(tmp_path / "stranger")
    for committed in (0, 1):
        with pytest.raises(IntegrityError, match="is not among its trusted keys"):
            Ledger(place.store, stranger, place.trusted, place.witness).commit(next_version)
        assert place.open().load().length == committed
        place.open().commit(next_version)


def test_a_conflict_of_the_deciders_own_is_not_retried(place: Place) -> None:
    tries: list[State] = []

    def decide(state: State) -> list[LineageEvent]:
        tries.append(state)
        raise ConflictError("the source changed")

    with pytest.raises(ConflictError, match="the source changed"):
        place.open().commit(decide)
    assert len(tries) == 1


def test_a_lost_race_is_decided_again_on_the_new_state(place: Place) -> None:
    seen: list[int] = []

    def decide(state: State) -> list[LineageEvent]:
        seen.append(len(state.models))
        if len(seen) == 1:
            place.open().commit(next_version)
        return next_version(state)

    after = place.open().commit(decide)
    assert seen == [0, 1]
    assert [version.key.version for version in after.models["model"]] == [1, 2]
    assert place.open().verify() == 2


def test_someone_who_always_loses_gives_up_in_the_end(place: Place) -> None:
    tries = 0

    def decide(state: State) -> list[LineageEvent]:
        nonlocal tries
        tries += 1
        place.open().commit(next_version)
        return next_version(state)

    with pytest.raises(ConflictError, match=f"expected {ATTEMPTS - 1} entries .* found {ATTEMPTS} "):
        place.open().commit(decide)
    assert tries == ATTEMPTS == place.open().verify()


def test_an_expected_head_that_is_not_there_is_final(place: Place) -> None:
    head = place.open().load().head
    place.open().commit(next_version, expected_head=head)
    now = place.open().load().head
    with pytest.raises(ConflictError, match=f"expected head {head}, found head {now}"):
        place.open().commit(next_version, expected_head=head)
    assert place.open().load().length == 1


def test_an_expected_head_lost_while_deciding_is_final(place: Place) -> None:
    def decide(state: State) -> list[LineageEvent]:
        place.open().commit(next_version)
        return next_version(state)

    with pytest.raises(ConflictError, match=r"expected 0 entries .* found 1 "):
        place.open().commit(decide, expected_head=GENESIS)
    assert place.open().load().length == 1


class AtMost:
    """A requirement: no model has more versions than this."""

    def __init__(self, versions: int) -> None:
        self.versions = versions

    def check(self, state: State) -> None:
        if len(state.models.get("model", ())) > self.versions:
            raise RequirementError("too many versions", reasons=("there is no room",))


def test_a_requirement_that_does_not_hold_stops_the_commit(place: Place) -> None:
    place.open().commit(next_version, [AtMost(0)])
    with pytest.raises(RequirementError, match="too many versions"):
        place.open().commit(next_version, [AtMost(5), AtMost(0)])
    assert place.open().load().length == 1


def test_a_requirement_is_asked_again_after_a_lost_race(place: Place) -> None:
    def decide(state: State) -> list[LineageEvent]:
        place.open().commit(next_version)
        return next_version(state)

    with pytest.raises(RequirementError):
        place.open().commit(decide, [AtMost(0)])
    assert place.open().load().length == 1


def test_an_error_while_deciding_appends_nothing(place: Place) -> None:
    with pytest.raises(ZeroDivisionError):
        place.open().commit(lambda _state: [recorded(str(1 // 0))])
    assert place.open().load().length == 0


def test_a_witness_left_behind_by_a_crash_is_fine_and_catches_up(place: Place) -> None:
    place.open().commit(next_version)
    behind = place.witness.read_bytes()
    place.open().commit(next_version)
    ahead = place.witness.read_bytes()
    place.witness.write_bytes(behind)
    assert place.open().load().length == 2
    assert place.open().verify() == 2
    place.open().commit(next_version)
    assert place.witness.read_bytes() not in {behind, ahead}
    assert place.open().verify() == 3


def test_a_crash_between_the_first_witness_and_the_first_entry_is_fine(place: Place) -> None:
    Witness(place.witness, place.trusted).advance(Head(length=0, digest=GENESIS), place.key)
    assert place.open().load().length == 0
    place.open().commit(next_version)
    assert place.open().verify() == 1


def test_the_witness_never_moves_backwards(place: Place) -> None:
    witness = Witness(place.witness, place.trusted)
    for length, known in [(2, 2), (1, 2), (2, 2), (3, 3)]:
        witness.advance(Head(length=length, digest=DIGEST), place.key)
        assert witness.read() == Head(length=known, digest=DIGEST)


def test_the_digest_of_an_entry_is_the_documented_one() -> None:
    framed = b"snapline-ledger-v1" + (7).to_bytes(8, "big") + bytes(32) + b"payload"
    assert entry_digest(7, GENESIS, b"payload") == f"sha256-ledger-v1:{hashlib.sha256(framed).hexdigest()}"


def test_an_event_of_a_newer_version_is_named_with_what_to_do(place: Place) -> None:
    payload = b'{"at":"2030-01-01T00:00:00Z","kind":"teleported"}'
    place.open().commit(next_version)
    head = place.open().load().head
    digest = entry_digest(2, head, payload)
    signature = place.key.sign(Head(length=2, digest=digest).message())
    place.store.append([Entry(2, head, digest, payload, place.key.key_id, signature)], 1, head)
    for read in (place.open().load, place.open().entries, place.open().verify):
        with pytest.raises(IntegrityError, match="entry 2 of the ledger is no event this version") as caught:
            read()
        assert "upgrade" in caught.value.hint
