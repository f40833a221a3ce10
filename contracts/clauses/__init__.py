"""The clauses of the contract language: one file for each family, and one line here for each clause.

The three groups are the ones a contract is written in.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from snapline.contracts.clauses.calibration_drift import CalibrationDrift
from snapline.contracts.clauses.diagnostics import DIAGNOSTICS, Diagnostics
from snapline.contracts.clauses.flip_exposure import FlipExposure
from snapline.contracts.clauses.greedy_divergence import GreedyDivergence
from snapline.contracts.clauses.greedy_flip_rate import GreedyFlipRate
from snapline.contracts.clauses.half_span import HalfSpan
from snapline.contracts.clauses.invariance import (
    BatchInvariance,
    ChunkedPrefill,
    CudaGraphs,
    Order,
    PrefixCache,
    Repeat,
    TensorParallel,
    Threads,
)
from snapline.contracts.clauses.log_ratio import LogRatio
from snapline.contracts.clauses.performance import LatencyRatio, PeakMemoryRatio, ThroughputRatio
from snapline.contracts.clauses.policy_gradient_bias import PolicyGradientBias
from snapline.contracts.clauses.reward_drift import MeasuredDrift, RewardDrift
from snapline.contracts.clauses.sampler_drift import SamplerDrift
from snapline.contracts.clauses.tv_answer import TvAnswer
from snapline.contracts.clauses.tv_token import TvToken
from snapline.contracts.figures import Share
from snapline.lineage.documents import Value

__all__ = ["DIAGNOSTICS", "Diagnostics", "Numerical", "Runtime", "Statistical"]


class Numerical(Value):
    """Promises about logits."""

    half_span: HalfSpan | None = None
    log_ratio: LogRatio | None = None


class Statistical(Value):
    """Promises about distributions and choices."""

    tv_token: TvToken | None = None
    tv_answer: TvAnswer | None = None
    sampler_drift: SamplerDrift | None = None
    reward_drift: RewardDrift | None = None
    measured_drift: MeasuredDrift | None = None
    policy_gradient_bias: PolicyGradientBias | None = None
    greedy_flip_rate: GreedyFlipRate | None = None
    flip_exposure: FlipExposure | None = None
    greedy_divergence: GreedyDivergence | None = None
    calibration_drift: CalibrationDrift | None = None


class Runtime(Value):
    """Promises about an engine held against itself, and about what it costs.

    `at_most` may stand beside `batch_invariance` or inside it.
    """

    at_most: Share | None = Field(default=None, exclude=True)
    batch_invariance: BatchInvariance | None = None
    order: Order | None = None
    repeat: Repeat | None = None
    prefix_cache: PrefixCache | None = None
    chunked_prefill: ChunkedPrefill | None = None
    threads: Threads | None = None
    tensor_parallel: TensorParallel | None = None
    cuda_graphs: CudaGraphs | None = None
    latency_ratio: LatencyRatio | None = None
    throughput_ratio: ThroughputRatio | None = None
    peak_memory_ratio: PeakMemoryRatio | None = None

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
