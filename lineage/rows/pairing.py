"""Pair the rows of some buckets then and now by key, and say how each row that differs does.

    corrected  the key was there then, with another content
    deleted    the key is gone
    late       the key is new, and became known after the cut
    appended   the key is new, and claims to have been known at the cut, or lies outside its window

Rows are paired over all buckets at once, so a row whose time was corrected is no deletion in one and an arrival in
another. In a series without a known column, every new row became known after the cut: it was not there at the take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapline.lineage.rows.hashes import Hashes
from snapline.lineage.rows.membership import pair

ROW_KINDS = ("appended", "corrected", "deleted", "late")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of some buckets as hashes, each array of shape (rows,).

    Attributes:
        labels: The buckets.
        places: The position of each row's bucket among the labels.
        late: Which rows became known after the cut they are held against.
        known: When each became known, in seconds since the epoch; 0 where that does not matter.
    """

    labels: Sequence[str]
    hashes: Hashes
    places: NDArray[np.int64]
    late: NDArray[np.bool_]
    known: NDArray[np.int64]

    @classmethod
    def of_index(cls, index: Mapping[str, Hashes], labels: Sequence[str], late: bool = False) -> Rows:
        """Return the rows that a membership index has in some buckets."""
        parts = [(index[label], place) for place, label in enumerate(labels) if label in index]
        hashes = joined([hashes for hashes, _ in parts])
        places = flat([np.full(len(hashes), place) for hashes, place in parts], np.int64)
        return cls(labels, hashes, places, np.full(len(hashes), late), np.zeros(len(hashes), np.int64))

    def count(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return how many of the chosen rows each bucket holds, shape (labels,)."""
        return np.bincount(self.places[chosen], minlength=len(self.labels))


@dataclass(frozen=True, slots=True)
class Differing:
    """The rows that differ between two sides; masks over the rows of `now`, but `deleted` over those of `then`."""

    then: Rows
    now: Rows
    appended: NDArray[np.bool_]
    corrected: NDArray[np.bool_]
    deleted: NDArray[np.bool_]
    late: NDArray[np.bool_]

    def side(self, kind: str) -> Rows:
        """Return the rows that the mask of a kind is over."""
        return self.then if kind == "deleted" else self.now

    def mask(self, kind: str) -> NDArray[np.bool_]:
        """Return which rows differ in one way."""
        found: NDArray[np.bool_] = getattr(self, kind)
        return found

    def counts(self) -> dict[str, NDArray[np.int64]]:
        """Return how many rows of each bucket differ, by kind, each of shape (labels,)."""
        return {kind: self.side(kind).count(self.mask(kind)) for kind in ROW_KINDS}


def differing(then: Rows, now: Rows, left_out: Mapping[str, int]) -> Differing:
    """Return how the rows of two sides differ; both are of the same labels.

    A row known later than the cut was perhaps there at the take, and left out. How many were is known and which were is
    not, so of each bucket those that became known last are taken for the ones that came since; and of these, as many as
    can be are taken for corrections of keys that were members.

    Args:
        then: The members.
        now: What there is in their place.
        left_out: How many rows of each bucket were left out at the take.
    """
    pairing = pair(then.hashes, now.hashes)
    corrected, new = (_mask(rows, len(now.places)) for rows in (pairing.corrected, pairing.new))
    seen = np.isin(now.hashes.keys, then.hashes.keys)
    there = np.array([left_out.get(label, 0) for label in now.labels], np.int64)
    came = np.maximum(now.count(new & now.late) - there, 0)
    again = np.minimum(came, now.count(new & now.late & seen))
    corrected |= _latest(now, new & now.late & seen, again)
    late = _latest(now, new & now.late & ~seen, came - again)
    return Differing(then, now, new & ~now.late, corrected, _mask(pairing.deleted, len(then.places)), late)


def _latest(rows: Rows, candidates: NDArray[np.bool_], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return, of each bucket's candidates, as many as are wanted: those that became known last."""
    chosen = np.flatnonzero(candidates)
    order = chosen[np.lexsort([-rows.known[chosen], rows.places[chosen]])]
    places = rows.places[order]
    rank = np.arange(len(order)) - np.searchsorted(places, places)
    return _mask(order[rank < wanted[places]], len(rows.places))


def joined(parts: Sequence[Hashes]) -> Hashes:
    """Return the hashes of several parts, in their order."""
    return Hashes(flat([part.keys for part in parts], np.uint64), flat([part.contents for part in parts], np.uint32))


def flat(parts: Sequence[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    """Return arrays as one; none of them is an empty array of a kind."""
    return np.concatenate([np.zeros(0, kind), *parts])


def _mask(rows: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    mask = np.zeros(length, np.bool_)
    mask[rows] = True
    return mask
