"""What the ledger said at an earlier instant.

The order of entries is the ledger's; instants come from the clocks of whoever wrote them, which may disagree. An entry
counts as recorded no earlier than those before it, so the past at an instant is always a beginning of the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from snapline.lineage.errors import NotFoundError
from snapline.lineage.ledger import Record
from snapline.lineage.state import State, fold


@dataclass(frozen=True, slots=True)
class Past:
    """A beginning of the history, and what it says.

    Attributes:
        of: How many entries the whole history has.
    """

    records: tuple[Record, ...]
    of: int
    state: State

    @property
    def entry(self) -> int:
        """The last entry that counts; 0 when none does."""
        return self.records[-1].seq if self.records else 0


def at_instant(records: Sequence[Record], instant: datetime) -> Past:
    """Return what was recorded at or before an instant."""
    later = next((place for place, record in enumerate(records) if record.event.at > instant), len(records))
    return _past(records, later)


def at_entry(records: Sequence[Record], entry: int) -> Past:
    """Return what the first `entry` entries say.

    Raises:
        NotFoundError: There is no such entry.
    """
    if not 1 <= entry <= len(records):
        raise NotFoundError(
            f"the ledger has no entry {entry}; it has entries 1 to {len(records)}", hint="Run snapline log."
        )
    return _past(records, entry)


def _past(records: Sequence[Record], length: int) -> Past:
    kept = tuple(records[:length])
    return Past(kept, len(records), fold(record.event for record in kept))
