"""`half_span`: few prompts have logits that differ much anywhere.

The half span of a position is half the range of the logit difference: the size of the difference once the constant that
softmax ignores is taken out. Every divergence of the two distributions is bounded by it (`snapline.contracts.bounds`).
"""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar

import numpy as np

from snapline.contracts.clauses.protocol import Figures, Measured, RateClause
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import Level, Limit, decimal_text
from snapline.lineage.documents import Value


class HalfSpan(Value, RateClause):
    """The share of prompts whose largest half span exceeds `limit` is at most `1 - quantile`."""

    name: ClassVar[str] = "half_span"
    pair: ClassVar[Pair] = Pair.SERVING
    reads: ClassVar[frozenset[str]] = frozenset({"half_span"})
    gives_up: ClassVar[str] = "anything about the worst prompt: a share of prompts may exceed the limit by any amount"

    quantile: Level
    limit: Limit

    @property
    def allowed(self) -> Decimal:
        """The share of prompts that may exceed the limit."""
        return 1 - self.quantile

    @property
    def figure(self) -> str:
        """The share, with its limit."""
        return f"share of prompts whose largest half span exceeds {decimal_text(self.limit)}"

    @property
    def resolution(self) -> tuple[str, Decimal]:
        """The limit on half span."""
        return "half_span", self.limit

    def units(self, measured: Measured) -> Figures:
        """Return 1 for each prompt with a position above the limit."""
        return measured.any_row(measured.columns["half_span"] > float(self.limit))

    def loudness(self, measured: Measured) -> Figures:
        """Return the half spans above the limit."""
        half_span = measured.columns["half_span"]
        return np.where(half_span > float(self.limit), half_span, -np.inf)
