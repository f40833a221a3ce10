"""Laws of the ledger, over arbitrary histories."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from snapline.lineage.errors import IntegrityError
from snapline.lineage.events import LineageEvent, Recorded
from snapline.lineage.ledger import GENESIS, Ledger, entry_digest
from snapline.lineage.signing import SigningKey, TrustedKeys
from snapline.lineage.state import fold
from snapline.lineage.stores.memory import MemoryStore
from snapline.lineage.stores.protocol import Entry

DIGEST = "sha256-contract-v1:" + "0" * 64
EVENTS = st.builds(
    Recorded,
    at=st.datetimes(timezones=st.just(UTC)),
    what=st.sampled_from(["contract", "probes"]),
    name=st.from_regex(r"\A[a-z]{1,8}\Z"),
    digest=st.just(DIGEST),
    object=st.just(DIGEST),
    path=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    count=st.none() | st.integers(0, 2**53 - 1),
)
BATCHES = st.lists(st.lists(EVENTS, max_size=3), max_size=5)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return SigningKey.create(tmp_path_factory.mktemp("keys") / "key")


def ledger_in(store: MemoryStore, key: SigningKey, folder: str) -> Ledger:
    return Ledger(store, key, TrustedKeys({key.key_id: key.public}), Path(folder) / "head.json")


def write(store: MemoryStore, key: SigningKey, folder: str, batches: list[list[LineageEvent]]) -> Ledger:
    ledger = ledger_in(store, key, folder)
    for batch in batches:
        ledger.commit(lambda _state, batch=batch: batch)
    return ledger


@settings(max_examples=40, deadline=None)
@given(batches=BATCHES)
def test_the_ledger_is_the_fold_of_what_was_committed(key: SigningKey, batches: list[list[LineageEvent]]) -> None:
    history = [event for batch in batches for event in batch]
    with TemporaryDirectory() as folder:
        ledger = write(MemoryStore(), key, folder, batches)
        loaded = ledger.load()
        assert loaded.state == fold(history)
        assert [record.event for record in ledger.entries()] == history
        assert ledger.verify() == loaded.length == len(history)


@settings(max_examples=40, deadline=None)
@given(batches=BATCHES)
def test_the_head_depends_on_the_events_not_on_how_they_were_batched(
    key: SigningKey, batches: list[list[LineageEvent]]
) -> None:
    history = [event for batch in batches for event in batch]
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        batched = write(MemoryStore(), key, one, batches).load()
        at_once = write(MemoryStore(), key, other, [history]).load()
    assert batched == at_once


@settings(max_examples=100, deadline=None)
@given(
    left=st.tuples(st.integers(1, 2**63), st.binary(min_size=32, max_size=32), st.binary(max_size=80)),
    right=st.tuples(st.integers(1, 2**63), st.binary(min_size=32, max_size=32), st.binary(max_size=80)),
)
def test_entries_that_differ_in_anything_differ_in_digest(
    left: tuple[int, bytes, bytes], right: tuple[int, bytes, bytes]
) -> None:
    assume(left != right)
    assert entry_digest(left[0], f"x:{left[1].hex()}", left[2]) != entry_digest(
        right[0], f"x:{right[1].hex()}", right[2]
    )


@settings(max_examples=100, deadline=None)
@given(batch=st.lists(EVENTS, min_size=1, max_size=4), data=st.data())
def test_no_other_list_of_entries_passes_for_the_one_committed(
    key: SigningKey, batch: list[LineageEvent], data: st.DataObject
) -> None:
    """Drop, repeat, reorder or edit entries, in any combination: only the very same list verifies."""
    with TemporaryDirectory() as folder:
        store = MemoryStore()
        write(store, key, folder, [batch])
        entries = list(store.load())
        shuffled = data.draw(st.lists(st.sampled_from(entries), max_size=6))
        other = [data.draw(_edits(entry)) for entry in shuffled]
        assume(other != entries)
        tampered = MemoryStore()
        tampered.append(other, 0, GENESIS)
        with pytest.raises(IntegrityError):
            ledger_in(tampered, key, folder).verify()


def _edits(entry: Entry) -> st.SearchStrategy[Entry]:
    def flip(field: bytes) -> st.SearchStrategy[bytes]:
        return st.integers(0, len(field) - 1).map(lambda at: field[:at] + bytes([field[at] ^ 1]) + field[at + 1 :])

    return st.one_of(
        st.just(entry),
        st.integers(1, 6).map(lambda seq: replace(entry, seq=seq)),
        flip(entry.payload).map(lambda payload: replace(entry, payload=payload)),
        flip(entry.signature).map(lambda signature: replace(entry, signature=signature)),
        flip(entry.digest.encode()).map(lambda digest: replace(entry, digest=digest.decode())),
        flip(entry.previous.encode()).map(lambda previous: replace(entry, previous=previous.decode())),
        flip(entry.key_id.encode()).map(lambda key_id: replace(entry, key_id=key_id.decode())),
        flip(entry.payload).map(
            lambda payload: replace(entry, payload=payload, digest=entry_digest(entry.seq, entry.previous, payload))
        ),
    )
