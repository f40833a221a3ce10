"""What a ledger asks of the place that keeps its entries: give them back, and append if nobody else has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from snapline.lineage.errors import ConflictError


@dataclass(frozen=True, slots=True)
class Entry:
    """One link of the chain, as it is kept.

    Attributes:
        seq: Its place, counted from 1.
        previous: Digest of the entry before it.
        digest: Digest of `seq`, `previous` and `payload`; the ledger's head while this is the last entry.
        payload: The exact bytes of the event.
        key_id: Who signed.
        signature: Over the ledger's length and head, up to and including this entry.
    """

    seq: int
    previous: str
    digest: str
    payload: bytes
    key_id: str
    signature: bytes


class Store(Protocol):
    """An append-only list of entries. A store only keeps; whether its entries can be believed is the ledger's call."""

    def load(self) -> Sequence[Entry]:
        """Return every entry in order, as of one moment.

        Raises:
            IntegrityError: What is kept cannot be read as entries.
            NotFoundError: The store cannot be reached.
        """

    def append(self, entries: Sequence[Entry], expected_length: int, expected_head: str) -> None:
        """Add all entries durably, or none.

        Args:
            entries: What to add, in order.
            expected_length: How many entries there must be.
            expected_head: The digest the last of them must have; of no consequence when there must be none.

        Raises:
            ConflictError: The store holds other entries by now.
        """


def moved(expected: str, found: str) -> ConflictError:
    """Return the error of a lost race, with what was expected and what was found."""
    return ConflictError(
        f"the ledger moved: expected {expected}, found {found}",
        hint="Somebody committed meanwhile; look at the new state and run this again.",
    )


def require_unmoved(expected: tuple[int, str], last: tuple[int, str] | None) -> None:
    """Raise unless the last entry's place and digest are the expected ones; before the first entry there is no digest.

    Raises:
        ConflictError: Another entry is last.
    """
    length, head = last or (0, expected[1])
    if (length, head) != expected:
        raise moved(f"{expected[0]} entries with head {expected[1]}", f"{length} with head {head}")
