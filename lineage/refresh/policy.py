"""The document that says what could be refreshed, what for, and what may be spent; and the change rates history tells.

The unit of time is the day: a change rate is in changes a day, the budget in cost a day, an interval in days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, field_validator, model_validator

from snapline.lineage.documents import Value
from snapline.lineage.errors import DefinitionError
from snapline.lineage.events import LineageEvent, SnapshotTaken, SourceCompared
from snapline.lineage.refresh.solver import Segments, estimated_rate
from snapline.lineage.snapshot import Comparison, Name

DAY = timedelta(days=1)
SMALLEST, LARGEST = 1e-30, 1e30


def _inside_the_range(number: float) -> float:
    if number != 0 and not SMALLEST <= number <= LARGEST:
        raise ValueError(f"expected 0 or a number from {SMALLEST:g} to {LARGEST:g}, found {number:g}")
    return number


Figure = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_inside_the_range)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_inside_the_range)]


class SegmentDefinition(Value):
    """One part of the population that can be refreshed by itself, as a person writes it.

    Attributes:
        weight: What being stale all the time would cost; or `traffic` times `sensitivity`.
        change_rate: Changes of its source a day; or the `snapshot` series whose history tells it.
        cost: What one refresh takes of the budget.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    weight: Figure | None = None
    traffic: Figure | None = None
    sensitivity: Figure | None = None
    change_rate: Figure | None = None
    snapshot: Name | None = None
    cost: Positive = 1.0

    @model_validator(mode="after")
    def _say_everything_once(self) -> Self:
        factors = self.traffic is not None, self.sensitivity is not None
        if self.weight is not None and any(factors):
            raise ValueError("expected weight, or traffic and sensitivity, found both")
        if self.weight is None and not all(factors):
            raise ValueError("expected weight, or both traffic and sensitivity")
        _inside_the_range(self.importance)
        if (self.change_rate is None) == (self.snapshot is None):
            found = "neither" if self.snapshot is None else "both"
            raise ValueError(f"expected change_rate or snapshot, found {found}")
        return self

    @property
    def importance(self) -> float:
        """The weight, given or multiplied."""
        return self.weight if self.weight is not None else (self.traffic or 0.0) * (self.sensitivity or 0.0)


class RefreshPolicyDocument(Value):
    """The document `kind: RefreshPolicy`: segments, and what may be spent on refreshing them a day."""

    apiVersion: Literal["snapline/v1"]  # noqa: N815 - the document's spelling
    kind: Literal["RefreshPolicy"]
    budget: Positive
    segments: tuple[SegmentDefinition, ...]

    @field_validator("segments")
    @classmethod
    def _some_and_each_once(cls, segments: tuple[SegmentDefinition, ...]) -> tuple[SegmentDefinition, ...]:
        if not segments:
            raise ValueError("expected at least one segment, found none")
        seen: set[str] = set()
        for segment in segments:
            if segment.name in seen:
                raise ValueError(f"expected a name for each segment, found {segment.name!r} twice")
            seen.add(segment.name)
        return segments


@dataclass(frozen=True, slots=True)
class Poll:
    """One look at a series: when, and what was there; two looks at the same rows found equal things."""

    at: datetime
    found: tuple[str, Comparison | None]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A change rate told by history.

    Attributes:
        polls: Intervals between two consecutive looks.
        unchanged: How many of them ended with what they began with.
        mean_interval: Their mean length, in days.
        change_rate: Changes a day.
    """

    polls: int
    unchanged: int
    mean_interval: float
    change_rate: float


def polls_of(series: str, events: Iterable[LineageEvent]) -> list[Poll]:
    """Return every look at a series that the ledger holds, in its order: takes, and comparisons with the source.

    A take finds the digest of its rows, so moving the window onto other rows counts as a change. A comparison that
    agrees finds the rows of its snapshot. What a look did not record, because it found nothing new, is not here.
    """
    digests: dict[str, str] = {}
    polls = []
    for event in events:
        if isinstance(event, SnapshotTaken) and event.snapshot.series.name == series:
            digests[event.snapshot.id] = event.snapshot.digest
            polls.append(Poll(event.at, (event.snapshot.digest, None)))
        elif isinstance(event, SourceCompared) and event.snapshot in digests:
            differs = event.comparison if event.comparison.restated else None
            polls.append(Poll(event.at, (digests[event.snapshot], differs)))
    return polls


def estimate(polls: Sequence[Poll]) -> Estimate | None:
    """Return the change rate that polls tell, or None when no time passed between any two."""
    count = len(polls) - 1
    if count < 1 or polls[-1].at <= polls[0].at:
        return None
    unchanged = sum(now.found == before.found for before, now in pairwise(polls))
    interval = (polls[-1].at - polls[0].at) / count / DAY
    return Estimate(count, unchanged, interval, estimated_rate(count, unchanged, interval))


def estimates(policy: RefreshPolicyDocument, polls: Callable[[str], Sequence[Poll]]) -> dict[str, Estimate]:
    """Return the estimate of each series that the policy's segments name; `polls` looks one up by name.

    Raises:
        DefinitionError: A series was not looked at twice, or not at two instants.
    """
    found = {}
    for series in dict.fromkeys(segment.snapshot for segment in policy.segments):
        if series is None:
            continue
        looks = polls(series)
        told = estimate(looks)
        if told is None:
            raise DefinitionError(
                f"snapshot {series!r}: a change rate takes two looks at two instants; the ledger has {len(looks)}",
                hint="Take it again later, or verify a model made from it; or give change_rate.",
            )
        found[series] = told
    return found


def segments_of(policy: RefreshPolicyDocument, estimated: dict[str, Estimate]) -> Segments:
    """Return the policy's segments as arrays, in its order; change rates a day."""
    rates = [
        segment.change_rate if segment.snapshot is None else estimated[segment.snapshot].change_rate
        for segment in policy.segments
    ]
    return Segments(
        weight=np.array([segment.importance for segment in policy.segments], np.float64),
        change_rate=np.array(rates, np.float64),
        cost=np.array([segment.cost for segment in policy.segments], np.float64),
    )
