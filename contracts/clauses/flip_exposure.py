"""`flip_exposure`: few choices are so close that the allowed difference of logits can change them.

The most likely token can change only where the reference's margin is at most twice the half span. So the share of such
positions bounds the share of flips of every serving engine within that half span. It speaks of the traffic and the
reference, and needs no serving engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import ClassVar

import numpy as np

from snapline.contracts.clauses.protocol import Figures, MeanClause, Measured
from snapline.contracts.engines.protocol import Path
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import Limit, Share, decimal_text
from snapline.lineage.documents import Value


class FlipExposure(Value, MeanClause):
    """The expected per-prompt share of positions with a reference margin of at most `2 * half_span` is at most `limit`.

    Attributes:
        half_span: What the serving engine is taken to keep within; `half_span` in the contract makes it a promise.
    """

    name: ClassVar[str] = "flip_exposure"
    pair: ClassVar[Pair] = Pair.SERVING
    reads: ClassVar[frozenset[str]] = frozenset({"margin"})
    gives_up: ClassVar[str] = "anything about a serving engine that exceeds the half span it is taken to keep within"

    half_span: Limit
    limit: Share

    @property
    def allowed(self) -> Decimal:
        """The limit as written."""
        return self.limit

    @property
    def figure(self) -> str:
        """The expected share, with the margin."""
        return f"expected share of positions with a reference margin of at most {decimal_text(2 * self.half_span)}"

    def on(self, paths: Sequence[Path]) -> tuple[str, ...]:
        """Return the first path: the reference scores in the same way for all of them."""
        return tuple(path.value for path in paths[:1])

    def units(self, measured: Measured) -> Figures:
        """Return each prompt's share of exposed positions."""
        return measured.mean(self._slack(measured) >= 0)

    def loudness(self, measured: Measured) -> Figures:
        """Return how far each margin is inside: the nearest to a tie is the loudest."""
        slack = self._slack(measured)
        return np.where(slack >= 0, slack, -np.inf)

    def _slack(self, measured: Measured) -> Figures:
        slack: Figures = float(2 * self.half_span) - measured.columns["margin"]
        return slack
