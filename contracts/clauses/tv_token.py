"""`tv_token`: next-token distributions are close on average.

The total variation distance bounds the change of any reward's expectation, per token and per unit of reward range.
"""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar

import numpy as np
from pydantic import ConfigDict, RootModel

from snapline.contracts.clauses.protocol import Figures, MeanClause, Measured
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import Share


class TvToken(RootModel[Share], MeanClause):
    """The expected per-prompt mean of the total variation distance over scored positions is at most this."""

    model_config = ConfigDict(frozen=True)
    name: ClassVar[str] = "tv_token"
    pair: ClassVar[Pair] = Pair.SERVING
    reads: ClassVar[frozenset[str]] = frozenset({"tv"})
    gives_up: ClassVar[str] = "anything about whole answers, which drift further with every token: see tv_answer"

    @property
    def allowed(self) -> Decimal:
        """The limit as written."""
        return self.root

    @property
    def figure(self) -> str:
        """The expected mean distance."""
        return "expected total variation distance per token"

    @property
    def resolution(self) -> tuple[str, Decimal]:
        """The limit on TV."""
        return "tv", self.root

    def units(self, measured: Measured) -> Figures:
        """Return each prompt's mean distance."""
        return measured.mean(measured.columns["tv"])

    def loudness(self, measured: Measured) -> Figures:
        """Return the distance itself, where there is one."""
        tv = measured.columns["tv"]
        return np.where(tv > 0, tv, -np.inf)
