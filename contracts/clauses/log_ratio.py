"""`log_ratio`: the log-probability of the tokens that are scored stays close.

Less than `half_span`, which bounds it at every token by twice its limit, but it needs no logits: a served answer and
its log-probabilities are enough, so monitors can hold it. A ratio outside a clip range is what trips a clip.
"""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar

import numpy as np

from snapline.contracts.clauses.protocol import Figures, Measured, RateClause
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import Level, Limit, decimal_text
from snapline.lineage.documents import Value


class LogRatio(Value, RateClause):
    """The share of prompts with a scored token y whose |log q(y)/p(y)| exceeds `limit` is at most `1 - quantile`."""

    name: ClassVar[str] = "log_ratio"
    pair: ClassVar[Pair] = Pair.SERVING
    reads: ClassVar[frozenset[str]] = frozenset({"position", "token", "logp_reference", "logp_serving"})
    gives_up: ClassVar[str] = "anything about tokens that were not scored: unlikely ones may move by any amount"

    quantile: Level
    limit: Limit

    @property
    def allowed(self) -> Decimal:
        """The share of prompts that may exceed the limit."""
        return 1 - self.quantile

    @property
    def figure(self) -> str:
        """The share, with its limit."""
        return f"share of prompts with a scored token whose |log q/p| exceeds {decimal_text(self.limit)}"

    def units(self, measured: Measured) -> Figures:
        """Return 1 for each prompt with a token above the limit."""
        return measured.any_row(self._distance(measured) > float(self.limit))

    def loudness(self, measured: Measured) -> Figures:
        """Return the distances above the limit."""
        distance = self._distance(measured)
        return np.where(distance > float(self.limit), distance, -np.inf)

    def _distance(self, measured: Measured) -> Figures:
        """Return |log q/p| per row: infinite where one side masks the token, 0 where both do."""
        p, q = measured.columns["logp_reference"], measured.columns["logp_serving"]
        distance: Figures = np.abs(np.subtract(q, p, out=np.zeros(len(p)), where=q != p))
        return distance
