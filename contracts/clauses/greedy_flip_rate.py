"""`greedy_flip_rate`: the most likely token rarely changes."""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar

import numpy as np
from pydantic import ConfigDict, RootModel

from snapline.contracts.clauses.protocol import Figures, MeanClause, Measured
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import Share


class GreedyFlipRate(RootModel[Share], MeanClause):
    """The expected per-prompt share of scored positions whose most likely token differs is at most this."""

    model_config = ConfigDict(frozen=True)
    name: ClassVar[str] = "greedy_flip_rate"
    pair: ClassVar[Pair] = Pair.SERVING
    reads: ClassVar[frozenset[str]] = frozenset({"flip"})
    gives_up: ClassVar[str] = "anything about what follows a flip: one flipped token may change all after it"

    @property
    def allowed(self) -> Decimal:
        """The limit as written."""
        return self.root

    @property
    def figure(self) -> str:
        """The expected share of flips."""
        return "expected share of positions whose most likely token differs"

    def units(self, measured: Measured) -> Figures:
        """Return each prompt's share of flips."""
        return measured.mean(measured.columns["flip"])

    def loudness(self, measured: Measured) -> Figures:
        """Return the reference's margin where the token flipped: the wider, the less a near-tie explains it."""
        return np.where(measured.columns["flip"], measured.columns["margin"], -np.inf)
