"""`policy_gradient_bias`: training on tokens that the serving engine drew follows nearly the reference's gradient.

A token's term of a policy gradient is A(y) s(y), with an advantage |A| <= `advantage` and a score, the gradient of
log p(y), of norm at most `score`. Drawing y from Q instead of P moves its expectation by the norm of
sum (q - p) A s, at most 2 A G TV(P, Q).

Written `{advantage: "1", score: "2", limit: "0.1"}`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from snapline.contracts.clauses.protocol import Figures, MeanClause, Measured
from snapline.contracts.clauses.reward_drift import part_of
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import DecimalText, Limit, decimal_text
from snapline.lineage.documents import Value

Magnitude = Annotated[DecimalText, Field(gt=0)]


class PolicyGradientBias(Value, MeanClause):
    """The expected per-prompt mean, over positions, of the largest bias of a token's gradient is at most `limit`.

    Its figures are total variation distances: the bias is twice `advantage` times `score` as much.
    """

    name: ClassVar[str] = "policy_gradient_bias"
    pair: ClassVar[Pair] = Pair.SERVING
    reads: ClassVar[frozenset[str]] = frozenset({"tv"})
    gives_up: ClassVar[str] = (
        "anything about the gradient of whole answers, whose earlier tokens were drawn elsewhere too"
    )

    advantage: Magnitude
    score: Magnitude
    limit: Limit

    @model_validator(mode="after")
    def _can_be_broken(self) -> Self:
        part_of(self.limit, self._most)
        return self

    @property
    def _most(self) -> Decimal:
        return 2 * self.advantage * self.score

    @property
    def allowed(self) -> Decimal:
        """The distance that the limit leaves room for."""
        return part_of(self.limit, self._most)

    @property
    def figure(self) -> str:
        """The distance, with what it means for a gradient."""
        return (
            f"expected total variation distance per token (at {decimal_text(self.allowed)}, "
            f"the policy gradient's bias is at most {decimal_text(self.limit)} a token)"
        )

    @property
    def resolution(self) -> tuple[str, Decimal]:
        """The limit on TV."""
        return "tv", self.allowed

    def units(self, measured: Measured) -> Figures:
        """Return each prompt's mean distance."""
        return measured.mean(measured.columns["tv"])

    def loudness(self, measured: Measured) -> Figures:
        """Return the distance itself, where there is one."""
        tv = measured.columns["tv"]
        return np.where(tv > 0, tv, -np.inf)
