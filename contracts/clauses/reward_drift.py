"""`reward_drift` and `measured_drift`: the mean reward stays what it was.

`reward_drift` speaks of every reward within a range, and needs none: |E_Q r - E_P r| is at most the range times the
total variation distance of answers, and some reward attains it. `measured_drift` speaks of one reward, whose grades of
both engines' answers are columns of the probe table; its limit may be far smaller.

    reward_drift:   {range: ["0", "1"], limit: "0.05", horizon: 32}
    measured_drift: {range: ["0", "1"], limit: "0.02", rewards: {reference: graded_a, serving: graded_b}}
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_DOWN, Context, Decimal
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from snapline.contracts.clauses.protocol import DrawnAnswerClause, Figures, Measured, TwoSidedClause
from snapline.contracts.clauses.tv_answer import Horizon
from snapline.contracts.engines.protocol import Path
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import DecimalText, Limit, decimal_text
from snapline.lineage.documents import Value

_DIGITS = Context(prec=9, rounding=ROUND_DOWN)
Column = Annotated[str, Field(min_length=1)]


def part_of(limit: Decimal, whole: Decimal) -> Decimal:
    """Return a limit as a part of the most there can be, rounded down to nine digits so that it never allows more.

    Raises:
        ValueError: The limit is all there can be or more: nothing could break it.
    """
    if limit >= whole:
        raise ValueError(f"expected a limit below {decimal_text(whole)}, the most there can be, found {limit}")
    return _DIGITS.divide(limit, whole)


def _ascending(ends: tuple[Decimal, Decimal]) -> tuple[Decimal, Decimal]:
    if not ends[0] < ends[1]:
        raise ValueError(f"expected the least and the greatest reward, found {ends[0]} and {ends[1]}")
    return ends


Range = Annotated[tuple[DecimalText, DecimalText], AfterValidator(_ascending)]


class _Drift(Value):
    """A limit on the change of a mean reward.

    Attributes:
        range: The least and the greatest reward there is.
        limit: In the reward's own unit.
    """

    range: Range
    limit: Limit

    @model_validator(mode="after")
    def _can_be_broken(self) -> Self:
        part_of(self.limit, self.range[1] - self.range[0])
        return self

    @property
    def allowed(self) -> Decimal:
        """The limit as a part of the range."""
        return part_of(self.limit, self.range[1] - self.range[0])

    @property
    def _within(self) -> str:
        return f"{decimal_text(self.limit)} in the range {decimal_text(self.range[0])} to {decimal_text(self.range[1])}"


class RewardDrift(_Drift, DrawnAnswerClause):
    """The mean of any reward of answers of up to `horizon` tokens changes by at most `limit`.

    Its figures are parts of the range: the expected total variation distance between answers, which is the largest
    change over all rewards.
    """

    name: ClassVar[str] = "reward_drift"
    gives_up: ClassVar[str] = "anything about rewards outside the range, or of tokens after the horizon"

    horizon: Horizon = 32

    @property
    def figure(self) -> str:
        """The distance, with what it means for a reward."""
        return (
            f"expected total variation distance between answers of up to {self.horizon} tokens "
            f"(at {decimal_text(self.allowed)}, no reward drifts by more than {self._within})"
        )


class Rewards(Value):
    """The columns of the probe table that hold the rewards of either engine's answer to the prompt."""

    reference: Column
    serving: Column


class MeasuredDrift(_Drift, TwoSidedClause):
    """The mean of a graded reward changes by at most `limit`, up or down.

    Its figures are parts of the range. A prompt with a grade missing or outside the range is a missing prompt.

    Attributes:
        rewards: Each engine's answers must have been graded in the same way, independently of the other's grade.
    """

    name: ClassVar[str] = "measured_drift"
    pair: ClassVar[Pair] = Pair.SERVING
    reads: ClassVar[frozenset[str]] = frozenset()
    whole_answers: ClassVar[bool] = True
    gives_up: ClassVar[str] = (
        "anything about another reward, or that the grades are of answers this serving engine gave: the table says so"
    )

    rewards: Rewards

    @property
    def figure(self) -> str:
        """The change, with the limit in the reward's unit."""
        return f"change of the mean reward as a part of its range ({decimal_text(self.allowed)} is {self._within})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The two columns of grades."""
        return self.rewards.reference, self.rewards.serving

    def on(self, paths: Sequence[Path]) -> tuple[str, ...]:
        """Return the first path: the grades are the same on all of them."""
        return tuple(path.value for path in paths[:1])

    def units(self, measured: Measured) -> Figures:
        """Return (1 + d) / 2, d the change of the prompt's reward as a part of the range; NaN without both grades."""
        low, high = (float(end) for end in self.range)
        grades = [np.asarray(measured.given[column], np.float64) for column in self.columns]
        reference, serving = (np.where((g >= low) & (g <= high), (g - low) / (high - low), np.nan) for g in grades)
        units: Figures = np.clip((1 + (serving - reference)) / 2, 0.0, 1.0)
        return units

    def loudness(self, measured: Measured) -> Figures:
        """Return the change of its prompt's reward, on every row."""
        change = np.repeat(np.abs(2 * self.units(measured) - 1), measured.counts)
        return np.where(change > 0, change, -np.inf)
