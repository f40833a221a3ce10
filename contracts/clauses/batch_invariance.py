"""`batch_invariance`: an answer does not depend on what else is in the batch.

Written `bitwise`, `{bitwise: true, at_most: SHARE}` or `{half_span: LIMIT, at_most: SHARE}`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from snapline.contracts.clauses.protocol import Figures, Measured, RateClause
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import Limit, Share, decimal_text
from snapline.lineage.documents import Value


class BatchInvariance(Value, RateClause):
    """The share of prompts that differ anywhere between running alone and in a batch is at most `at_most`.

    Attributes:
        bitwise: One differing bit of a logit is a difference.
        half_span: A half span above this is a difference; the one or the other is written.
    """

    name: ClassVar[str] = "batch_invariance"
    pair: ClassVar[Pair] = Pair.BATCHING

    bitwise: bool = False
    half_span: Limit | None = None
    at_most: Share = Decimal("0.05")

    @model_validator(mode="before")
    @classmethod
    def _spelt_as_one_word(cls, written: Any) -> Any:
        if isinstance(written, str) and written != "bitwise":
            raise ValueError(f"expected bitwise or {{half_span: LIMIT}}, found {written!r}")
        return {"bitwise": True} if isinstance(written, str) else written

    @model_validator(mode="after")
    def _one_measure(self) -> Self:
        if self.bitwise == (self.half_span is not None):
            raise ValueError("expected one of bitwise and half_span")
        return self

    @property
    def allowed(self) -> Decimal:
        """The share of prompts that may differ."""
        return self.at_most

    @property
    def figure(self) -> str:
        """The share, with what counts as a difference."""
        if self.half_span is None:
            return "share of prompts that are not bitwise equal alone and in a batch"
        return f"share of prompts with half spans over {decimal_text(self.half_span)} between alone and in a batch"

    @property
    def resolution(self) -> tuple[str, Decimal] | None:
        """The limit on half span, if that is what is written."""
        return None if self.half_span is None else ("half_span", self.half_span)

    def units(self, measured: Measured) -> Figures:
        """Return 1 for each prompt with a difference at some position."""
        return measured.any_row(self._differs(measured))

    def loudness(self, measured: Measured) -> Figures:
        """Return the half span of each difference."""
        return np.where(self._differs(measured), measured.columns["half_span"], -np.inf)

    def _differs(self, measured: Measured) -> NDArray[np.bool_]:
        differs: NDArray[np.bool_]
        if self.half_span is None:
            differs = ~measured.columns["identical"]
        else:
            differs = measured.columns["half_span"] > float(self.half_span)
        return differs
