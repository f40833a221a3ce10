"""When each view is to be materialized again, by the intervals that a refresh policy works out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from snapline.lineage.errors import NotFoundError
from snapline.lineage.events import LineageEvent, ModelRegistered
from snapline.lineage.refresh.policy import RefreshPolicyDocument
from snapline.lineage.refresh.solver import Segments, optimal_rates
from snapline.lineage.state import State


@dataclass(frozen=True, slots=True)
class Appointment:
    """When a view is next due.

    Attributes:
        interval: Time between two materializations; None when it is not worth refreshing at this budget.
        last: When its newest version was recorded; None when it has none.
        news: Whether there is anything for a new version to take in: rows that differ, or a window that slides on.
    """

    view: str
    interval: timedelta | None
    last: datetime | None
    news: bool

    def due(self, now: datetime) -> bool:
        """Return whether its time has come; a view without a version is due if it is worth refreshing at all."""
        if self.interval is None:
            return False
        return self.last is None or (self.news and now - self.last >= self.interval)


def appointments(
    policy: RefreshPolicyDocument, segments: Segments, state: State, events: Iterable[LineageEvent]
) -> tuple[Appointment, ...]:
    """Return when each segment's view is next due; a segment that is to be scheduled has the name of a view.

    Args:
        policy: The policy.
        segments: Its segments as arrays, in its order.
        state: What the ledger says.
        events: Everything it holds, oldest first.

    Raises:
        NotFoundError: A segment has the name of no view.
    """
    unknown = [segment.name for segment in policy.segments if segment.name not in state.views]
    if unknown:
        known = ", ".join(sorted(state.views)) or "none yet"
        raise NotFoundError(
            f"no view {', '.join(map(repr, unknown))}; there are: {known}",
            hint="Name segments after the views they are to materialize.",
        )
    made = {
        event.model.view_name: event.at for event in events if isinstance(event, ModelRegistered) and event.model.view
    }
    rates = optimal_rates(segments, policy.budget).tolist()
    return tuple(
        Appointment(segment.name, _interval(rate), made.get(segment.name), _news(segment.name, state))
        for segment, rate in zip(policy.segments, rates, strict=True)
    )


def _news(view: str, state: State) -> bool:
    """Return whether the newest version of a view is behind its sources, by the newest comparisons."""
    if state.views[view].definition.refresh.slide is not None:
        return True
    made = [version for version in state.models.get(view, ()) if version.view_name == view]
    compared = (state.comparisons.get(identifier) for version in made[-1:] for identifier in version.snapshots)
    return any(found is not None and found.comparison.restated for found in compared)


def _interval(rate: float) -> timedelta | None:
    """Return the time between refreshes at a rate a day; None for never, be it by the rate or by the calendar."""
    return timedelta(days=1 / rate) if rate * timedelta.max.days > 1 else None
