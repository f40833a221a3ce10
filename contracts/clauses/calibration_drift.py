"""`calibration_drift`: how sure the engine is of its greedy token stays as right as it was.

Confidence is the probability of the greedy token; it is correct when the given answer has that token. With
u_b the mean over a prompt's positions of 1[confidence in bin b] (correct - confidence), the expected calibration error
of a program is ECE = sum over b of |E u_b|. For the two programs

    |ECE_q - ECE_p| <= sum_b |E u_b^q - E u_b^p| <= E sum_b |u_b^q - u_b^p|,

by the triangle inequality and Jensen's, and the last is the mean of a figure per prompt within 0 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from snapline.contracts.clauses.protocol import GIVEN, Figures, MeanClause, Measured
from snapline.contracts.engines.protocol import Path
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import Share, decimal_text
from snapline.lineage.documents import Value

DEFAULT_BINS = 10


def calibration_gaps(measured: Measured, side: str, bins: int) -> Figures:
    """Return u_b of each prompt, of shape (bins, prompts); `side` is `reference` or `serving`."""
    gap, place = _gaps(measured, side, bins)
    totals = [measured.total(np.where(place == number, gap, 0.0)) for number in range(bins)]
    gaps: Figures = np.stack(totals) / np.maximum(measured.counts, 1)
    return gaps


def calibration_error(measured: Measured, side: str, bins: int = DEFAULT_BINS) -> float:
    """Return the ECE over these prompts, each weighing the same; NaN for none."""
    if not measured.prompts:
        return float("nan")
    return float(np.abs(calibration_gaps(measured, side, bins).mean(axis=1)).sum())


def _gaps(measured: Measured, side: str, bins: int) -> tuple[Figures, Figures]:
    """Return correct - confidence of each row, and its bin: equal parts of [0, 1], the last with both its ends."""
    confidence = np.exp(np.minimum(measured.columns[f"top_{side}"], 0.0))
    correct = measured.columns[f"greedy_{side}"] == measured.columns["token"]
    return correct - confidence, np.minimum(np.floor(confidence * bins), bins - 1)


class CalibrationDrift(Value, MeanClause):
    """The binned calibration error changes by at most `limit`, for the expected change prompt by prompt is.

    Its figures are halves of that change, so that they lie within 0 and 1.
    """

    name: ClassVar[str] = "calibration_drift"
    pair: ClassVar[Pair] = Pair.SERVING
    reads: ClassVar[frozenset[str]] = frozenset(
        {"token", "top_reference", "top_serving", "greedy_reference", "greedy_serving"}
    )
    gives_up: ClassVar[str] = (
        "whether the error moved at all when this is refuted: changes that cancel over prompts count too"
    )

    bins: Annotated[int, Field(ge=1, le=1000)] = DEFAULT_BINS
    limit: Share

    @property
    def allowed(self) -> Decimal:
        """Half of the limit."""
        return self.limit / 2

    @property
    def figure(self) -> str:
        """The expected half change, with what it means for the error."""
        return (
            f"half the expected change of calibration in {self.bins} bins "
            f"(at {decimal_text(self.allowed)}, the calibration error drifts by at most {decimal_text(self.limit)})"
        )

    def on(self, paths: Sequence[Path]) -> tuple[str, ...]:
        """Return the paths that score a given answer: only that can be right or wrong."""
        return tuple(path.value for path in paths if path in GIVEN)

    def units(self, measured: Measured) -> Figures:
        """Return half of sum_b |u_b^q - u_b^p| for each prompt."""
        reference, serving = (calibration_gaps(measured, side, self.bins) for side in ("reference", "serving"))
        units: Figures = np.clip(np.abs(serving - reference).sum(axis=0) / 2, 0.0, 1.0)
        return units

    def loudness(self, measured: Measured) -> Figures:
        """Return what each position alone contributes to the change."""
        (p_gap, p_bin), (q_gap, q_bin) = (_gaps(measured, side, self.bins) for side in ("reference", "serving"))
        change = np.where(p_bin == q_bin, np.abs(q_gap - p_gap), np.abs(q_gap) + np.abs(p_gap))
        return np.where(change > 0, change, -np.inf)
