"""The ledger: one append-only, hash-chained, signed history, and the only way to add to it.

Each entry's digest covers its place, the digest before it and its event, so the last digest, the *head*, stands for the
whole history. Whoever commits signs the new length and head twice: inside the entry, in the same transaction as the
event, so that no row can be added without a trusted key; and in a *witness* file beside the database, so that a
history cut short or rewritten is noticed. The laws:

    digest(n) = SHA-256("snapline-ledger-v1" ‖ n ‖ digest(n-1) ‖ payload(n)), with the fixed digest(0) = `GENESIS`
    signature(n) is a trusted key's, over n and digest(n)
    with the witness at length w: length ≥ w, and digest(w) is the witness's

The witness only moves forward. It may lag, when a writer dies between the two; it may not be missing, since it is
first written before the first entry is. Someone who can replace database and witness together by an older pair goes
unnoticed here: keep a copy of the witness elsewhere if that matters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from snapline.lineage import events
from snapline.lineage.digest import hex_part
from snapline.lineage.errors import ConflictError, IntegrityError, NotFoundError
from snapline.lineage.events import LineageEvent
from snapline.lineage.signing import SigningKey, TrustedKeys
from snapline.lineage.state import State, fold
from snapline.lineage.stores.protocol import Entry, Store, moved
from snapline.lineage.witness import Head, Witness

GENESIS = "sha256-ledger-v1:" + "0" * 64
ATTEMPTS = 100
_TAMPERED = "The history was changed after it was signed. Restore the database and head.json from a copy you trust."


class Requirement(Protocol):
    """A condition on the state a change is made in; floors above implement it."""

    def check(self, state: State) -> None:
        """Return if the condition holds.

        Raises:
            RequirementError: It does not.
        """


@dataclass(frozen=True, slots=True)
class Loaded:
    """The state at one head."""

    state: State
    length: int
    head: str


@dataclass(frozen=True, slots=True)
class Record:
    """One event of the history, with its place and its digest."""

    seq: int
    digest: str
    event: LineageEvent


def entry_digest(seq: int, previous: str, payload: bytes) -> str:
    """Return the digest of an entry; every part but the last has a fixed length, so no two entries frame alike."""
    framed = b"snapline-ledger-v1" + seq.to_bytes(8, "big") + bytes.fromhex(hex_part(previous)) + payload
    return f"sha256-ledger-v1:{hashlib.sha256(framed).hexdigest()}"


class Ledger:
    """The history in a store, as far as it can be believed.

    Args:
        store: Where the entries are kept.
        key: Signs commits; None for a ledger that is only read.
        trusted: Whose signatures are believed.
        witness: The file that remembers the longest head seen here.
    """

    def __init__(self, store: Store, key: SigningKey | None, trusted: TrustedKeys, witness: Path) -> None:
        self._store = store
        self._key = key
        self._trusted = trusted
        self._witness = Witness(witness, trusted)

    def load(self) -> Loaded:
        """Return the state now, with the length and head it was read at.

        Checks every digest, the witness, and the last signature: whoever made that one checked those before it.

        Raises:
            IntegrityError: The history was changed, cut short or forged, or this version cannot read it.
            NotFoundError: The store cannot be reached.
        """
        chain = self._chain()
        self._check_signatures(chain[-1:])
        return Loaded(fold(_decode(entry) for entry in chain), len(chain), _head_digest(chain))

    def state(self) -> State:
        """Return the state now; see `load`."""
        return self.load().state

    def entries(self) -> tuple[Record, ...]:
        """Return every event in order, with its place and digest.

        Raises:
            IntegrityError: As for `load`.
        """
        chain = self._chain()
        self._check_signatures(chain[-1:])
        return tuple(Record(entry.seq, entry.digest, _decode(entry)) for entry in chain)

    def verify(self) -> int:
        """Return the number of entries, once the chain, the witness, every signature and every event are checked.

        Raises:
            IntegrityError: As for `load`; the message names the first entry that does not hold.
        """
        chain = self._chain()
        self._check_signatures(chain)
        for entry in chain:
            _decode(entry)
        return len(chain)

    def commit(
        self,
        decide: Callable[[State], Sequence[LineageEvent]],
        requires: Sequence[Requirement] = (),
        expected_head: str | None = None,
    ) -> State:
        """Append what `decide` makes of the state and return the state after it.

        When somebody else commits in between, the requirements and `decide` are asked again about the new state, so
        neither may have effects. Nothing decided appends nothing.

        Args:
            decide: Returns the events to add, given the state they are added to.
            requires: Conditions on that state.
            expected_head: The only head to commit on; a lost race is then final.

        Raises:
            RequirementError: A requirement does not hold.
            ConflictError: The head is not the expected one, or other writers were faster every time.
            IntegrityError: As for `load`; or this ledger's own key is not trusted, so nobody could read the result.
            NotFoundError: There is no signing key, or the store cannot be reached.
        """
        attempts = 1 if expected_head is not None else ATTEMPTS
        while True:
            before = self.load()
            if expected_head not in {None, before.head}:
                raise moved(f"head {expected_head}", f"head {before.head} after {before.length} entries")
            for requirement in requires:
                requirement.check(before.state)
            decided = decide(before.state)
            try:
                return self._append(decided, before)
            except ConflictError:
                attempts -= 1
                if not attempts:
                    raise

    def _append(self, decided: Sequence[LineageEvent], before: Loaded) -> State:
        if not decided:
            return before.state
        if self._key is None:
            raise NotFoundError("this ledger was opened without a signing key", hint="Make one: snapline init.")
        if self._key.key_id not in self._trusted:
            raise IntegrityError(
                f"this home's signing key {self._key.key_id} is not among its trusted keys",
                hint="Run snapline init, which publishes the key into keys/trusted/.",
            )
        after = fold(decided, before.state)
        entries = []
        length, head = before.length, before.head
        for event in decided:
            entries.append(_sign(events.encode(event), length, head, self._key))
            length, head = length + 1, entries[-1].digest
        if before.length == 0:
            # So that a history can never be there without its witness, not even if this process dies in between.
            self._witness.advance(Head(length=0, digest=GENESIS), self._key)
        self._store.append(entries, before.length, before.head)
        self._witness.advance(Head(length=length, digest=head), self._key)
        return after

    def _chain(self) -> Sequence[Entry]:
        """Return the entries, once their digests and the witness are checked."""
        # The witness is read first: read last, it could be ahead of entries loaded before somebody's commit.
        known, entries = self._witness.read(), self._store.load()
        if known is None and entries:
            # Unless the first commit ever came between the two, which reading both again tells, somebody removed it.
            known, entries = self._witness.read(), self._store.load()
        if known is None and entries:
            raise IntegrityError(f"there are {len(entries)} ledger entries, but no witness of them", hint=_TAMPERED)
        previous = GENESIS
        for place, entry in enumerate(entries, start=1):
            digest = entry_digest(place, previous, entry.payload)
            if (entry.seq, entry.previous, entry.digest) != (place, previous, digest):
                raise IntegrityError(
                    f"entry {place} of the ledger breaks the chain: expected {digest} after {previous}, "
                    f"found entry {entry.seq} with {entry.digest} after {entry.previous}",
                    hint=_TAMPERED,
                )
            previous = digest
        if known is not None:
            _check_witness(known, entries)
        return entries

    def _check_signatures(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            try:
                message = Head(length=entry.seq, digest=entry.digest).message()
                self._trusted.verify(entry.key_id, message, entry.signature)
            except IntegrityError as error:
                raise IntegrityError(f"entry {entry.seq} of the ledger: {error.message}", hint=error.hint) from error


def _sign(payload: bytes, length: int, head: str, key: SigningKey) -> Entry:
    digest = entry_digest(length + 1, head, payload)
    signature = key.sign(Head(length=length + 1, digest=digest).message())
    return Entry(length + 1, head, digest, payload, key.key_id, signature)


def _head_digest(entries: Sequence[Entry]) -> str:
    return entries[-1].digest if entries else GENESIS


def _check_witness(known: Head, entries: Sequence[Entry]) -> None:
    if len(entries) < known.length:
        raise IntegrityError(
            f"the ledger was cut short: {len(entries)} entries, but {known.length} were signed", hint=_TAMPERED
        )
    found = _head_digest(entries[: known.length])
    if found != known.digest:
        raise IntegrityError(
            f"the ledger was rewritten: entry {known.length} was signed as {known.digest}, found {found}",
            hint=_TAMPERED,
        )


def _decode(entry: Entry) -> LineageEvent:
    try:
        return events.decode(entry.payload)
    except ValidationError as error:
        raise IntegrityError(
            f"entry {entry.seq} of the ledger is no event this version of Snapline knows",
            hint="A newer version wrote it: upgrade Snapline here.",
        ) from error
