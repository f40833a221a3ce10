"""Performance: latency, throughput and memory of the serving engine, as paired ratios to the reference's.

What is limited is the share of paired runs with a ratio on the wrong side, so with `quantile: "0.5"` the median ratio.
Both engines answer the same prompts, and what makes one run slower than another cancels. The unit is the run.

Written `{at_most: "1.5", quantile: "0.5", runs: 30}`, and `{at_least: "1", ...}` for throughput.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from snapline.contracts.clauses.protocol import Figures, Measured, RateClause
from snapline.contracts.engines.protocol import Path
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import DecimalText, Level, decimal_text
from snapline.contracts.verdict import TIMED
from snapline.lineage.documents import Value

Ratio = Annotated[DecimalText, Field(gt=0)]


class PerformanceClause(Value, RateClause):
    """The share of paired runs whose ratio is on the wrong side is at most `1 - quantile`.

    Attributes:
        batched: Whether runs are batches of prompts, or one prompt alone.
        runs: How many paired runs are timed.
    """

    pair: ClassVar[Pair] = Pair.TIMING
    batched: ClassVar[bool]

    quantile: Level = Decimal("0.5")
    runs: Annotated[int, Field(ge=1, le=100_000)] = 30

    @property
    def allowed(self) -> Decimal:
        """The share of runs that may be on the wrong side."""
        return 1 - self.quantile

    @property
    def sampled(self) -> int:
        """The runs."""
        return self.runs

    def on(self, paths: Sequence[Path]) -> tuple[str, ...]:  # noqa: ARG002
        """Return what is timed, whatever the paths."""
        return (TIMED,)

    def relevant(self, measured: Measured) -> Measured:
        """Return the runs of one prompt alone, or those of batches."""
        return measured.where(measured.columns["batched"] == self.batched)

    @abstractmethod
    def excess(self, measured: Measured) -> Figures:
        """Return how many times worse than the limit each run's ratio is: above 1 is on the wrong side."""

    def units(self, measured: Measured) -> Figures:
        """Return 1 for each run on the wrong side."""
        return measured.any_row(self.excess(measured) > 1)

    def loudness(self, measured: Measured) -> Figures:
        """Return the excess of each run on the wrong side."""
        excess = self.excess(measured)
        return np.where(excess > 1, excess, -np.inf)


class LatencyRatio(PerformanceClause):
    """Runs of one prompt alone take at most `at_most` times the reference's seconds, but for `1 - quantile` of them."""

    name: ClassVar[str] = "latency_ratio"
    reads: ClassVar[frozenset[str]] = frozenset({"batched", "seconds_reference", "seconds_serving"})
    batched: ClassVar[bool] = False
    gives_up: ClassVar[str] = "anything about latency under load, or on other machines than the one measured"

    at_most: Ratio

    @property
    def figure(self) -> str:
        """The share, with its limit."""
        return f"share of answers alone that take over {decimal_text(self.at_most)} times the reference's seconds"

    def excess(self, measured: Measured) -> Figures:
        """Return the ratio of seconds over the limit."""
        return _ratio(measured, "seconds") / float(self.at_most)


class ThroughputRatio(PerformanceClause):
    """Batches give at least `at_least` times the reference's tokens a second, but for `1 - quantile` of them."""

    name: ClassVar[str] = "throughput_ratio"
    reads: ClassVar[frozenset[str]] = frozenset({"batched", "seconds_reference", "seconds_serving"})
    batched: ClassVar[bool] = True
    gives_up: ClassVar[str] = "anything about other batch sizes, or other machines than the one measured"

    at_least: Ratio
    runs: Annotated[int, Field(ge=1, le=100_000)] = 20

    @property
    def figure(self) -> str:
        """The share, with its limit."""
        return f"share of batches under {decimal_text(self.at_least)} times the reference's tokens a second"

    def excess(self, measured: Measured) -> Figures:
        """Return the limit over the ratio of tokens a second; both engines give as many tokens."""
        return _ratio(measured, "seconds") * float(self.at_least)


class PeakMemoryRatio(PerformanceClause):
    """Batches take at most `at_most` times the reference's peak memory, but for `1 - quantile` of them."""

    name: ClassVar[str] = "peak_memory_ratio"
    reads: ClassVar[frozenset[str]] = frozenset({"batched", "peak_reference", "peak_serving"})
    batched: ClassVar[bool] = True
    gives_up: ClassVar[str] = (
        "anything about single batches on a CPU, where a peak is that of the process so far, its start included"
    )

    at_most: Ratio
    runs: Annotated[int, Field(ge=1, le=100_000)] = 20

    @property
    def figure(self) -> str:
        """The share, with its limit."""
        return f"share of batches that take over {decimal_text(self.at_most)} times the reference's peak memory"

    def excess(self, measured: Measured) -> Figures:
        """Return the ratio of peaks over the limit."""
        return _ratio(measured, "peak") / float(self.at_most)


def _ratio(measured: Measured, what: str) -> Figures:
    ratio: Figures = measured.columns[f"{what}_serving"] / measured.columns[f"{what}_reference"]
    return ratio
