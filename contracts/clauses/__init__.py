"""The clauses of the contract language: one file for each, and its line here.

The three groups are the ones a contract is written in. A word without a clause behind it is declared too, so that a
contract which uses it is refused by name.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from snapline.contracts.clauses.batch_invariance import BatchInvariance
from snapline.contracts.clauses.greedy_flip_rate import GreedyFlipRate
from snapline.contracts.clauses.half_span import HalfSpan
from snapline.contracts.clauses.protocol import NotYetSupported
from snapline.contracts.clauses.tv_token import TvToken
from snapline.contracts.figures import Share
from snapline.lineage.documents import Value


class Numerical(Value):
    """Promises about logits."""

    half_span: HalfSpan | None = None


class Statistical(Value):
    """Promises about distributions and choices."""

    tv_token: TvToken | None = None
    greedy_flip_rate: GreedyFlipRate | None = None
    tv_answer: NotYetSupported = None
    reward_drift: NotYetSupported = None


class Runtime(Value):
    """Promises about an engine held against itself; `at_most` may stand beside `batch_invariance` or inside it."""

    at_most: Share | None = Field(default=None, exclude=True)
    batch_invariance: BatchInvariance | None = None
    prefix_cache: NotYetSupported = None
    repeat: NotYetSupported = None
    throughput_ratio: NotYetSupported = None

    @field_validator("batch_invariance")
    @classmethod
    def _take_the_share_beside_it(cls, clause: BatchInvariance | None, info: ValidationInfo) -> BatchInvariance | None:
        """Keep the share in one place, so that both spellings are the same contract."""
        share = info.data.get("at_most")
        if clause is None or share is None:
            return clause
        if "at_most" in clause.model_fields_set:
            raise ValueError("at_most is written twice: beside batch_invariance and inside it")
        return clause.model_copy(update={"at_most": share})

    @model_validator(mode="after")
    def _share_has_a_clause(self) -> Self:
        if self.at_most is not None and self.batch_invariance is None:
            raise ValueError("at_most limits batch_invariance, which is not written")
        return self
