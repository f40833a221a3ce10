"""`greedy_divergence`: greedy answers stay together for some tokens.

Written `{within: 16, at_most: "0.3"}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from snapline.contracts.clauses.protocol import GIVEN, Figures, Measured, RateClause
from snapline.contracts.engines.protocol import Path
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import Share
from snapline.lineage.documents import Value


class GreedyDivergence(Value, RateClause):
    """The share of prompts whose greedy choices differ within the answer's first `within` tokens is at most `at_most`.

    Both engines choose after the same tokens, those of the given answer. Where that is the reference's own greedy
    answer, the first difference is exactly where the serving engine's greedy answer leaves it. Elsewhere it is the
    first disagreement along the given answer, which does not say where two free greedy answers part.
    """

    name: ClassVar[str] = "greedy_divergence"
    pair: ClassVar[Pair] = Pair.SERVING
    reads: ClassVar[frozenset[str]] = frozenset({"position", "flip"})
    whole_answers: ClassVar[bool] = True
    gives_up: ClassVar[str] = "anything about how far answers drift once they part, or about later tokens"

    within: Annotated[int, Field(ge=1, le=1 << 20)]
    at_most: Share

    @property
    def allowed(self) -> Decimal:
        """The share of prompts that may part so early."""
        return self.at_most

    @property
    def figure(self) -> str:
        """The share, with the number of tokens."""
        return f"share of prompts whose greedy choices differ within the first {self.within} tokens"

    def on(self, paths: Sequence[Path]) -> tuple[str, ...]:
        """Return the paths that score a given answer."""
        return tuple(path.value for path in paths if path in GIVEN)

    def units(self, measured: Measured) -> Figures:
        """Return 1 for each prompt with a flip among the first tokens."""
        return measured.any_row(self._early(measured))

    def loudness(self, measured: Measured) -> Figures:
        """Return the reference's margin at each early flip: the wider, the less a near-tie explains it."""
        return np.where(self._early(measured), measured.columns["margin"], -np.inf)

    def _early(self, measured: Measured) -> NDArray[np.bool_]:
        early: NDArray[np.bool_] = measured.columns["flip"] & (measured.columns["position"] < self.within)
        return early
