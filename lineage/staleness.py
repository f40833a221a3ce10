"""How stale a model is: three numbers, never one score, and the causes down to the buckets they come from.

    age    now minus the end of the cut's window
    lag    commits that the source lists after the cut's; none where it keeps no history
    delta  rows that differ in the source as it is, by kind

Everything here is pure: what was seen of each source comes in as values. Age needs a clock and nothing else; lag and
delta are observed, so they say more than any timer. A source that moved and was not read since has no known delta,
which is not a delta of zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

from snapline.lineage.cut import bucket_start
from snapline.lineage.invalidation import Cause, Change
from snapline.lineage.model import UseKind
from snapline.lineage.snapshot import BucketChange, Commit, Comparison, Snapshot
from snapline.lineage.view import RefreshPolicy


@dataclass(frozen=True, slots=True)
class Delta:
    """How many rows differ, by kind.

    Attributes:
        newer: Rows at or after the window's end; no part of the cut, and news only to a window that slides.
    """

    appended: int = 0
    corrected: int = 0
    deleted: int = 0
    late: int = 0
    newer: int = 0

    def __add__(self, other: Delta) -> Delta:
        return Delta(*(getattr(self, kind) + getattr(other, kind) for kind in KINDS))

    @property
    def inside(self) -> int:
        """Rows of the window that differ."""
        return self.appended + self.corrected + self.deleted + self.late

    def __str__(self) -> str:
        return ", ".join(f"{count} {kind}" for kind in KINDS if (count := getattr(self, kind))) or "0"


KINDS = tuple(field.name for field in fields(Delta))


def delta_of(changes: Iterable[BucketChange], newer: int = 0) -> Delta:
    """Return the rows that differ in some buckets, and after the window's end."""
    total = Delta(newer=newer)
    for change in changes:
        total += Delta(change.appended, change.corrected, change.deleted, change.late)
    return total


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """What is known of one snapshot's source as it is now.

    Attributes:
        lag: Commits the source lists after the snapshot's; None where it keeps no history or could not be asked.
        comparison: How the rows differ; None when the source moved and was not read since.
        orphaned: Whether the snapshot's own commit can no longer be read from a source that keeps history.
        keeps_history: Whether the source can be read as it was.
    """

    snapshot: Snapshot
    lag: int | None = None
    comparison: Comparison | None = None
    orphaned: bool = False
    keeps_history: bool = False

    @property
    def subject(self) -> str:
        """What causes call the snapshot."""
        return subject_of(self.snapshot)

    @property
    def delta(self) -> Delta | None:
        """The rows that differ; None when that is not known: the source was not read, or its columns differ."""
        if self.comparison is None or self.comparison.columns:
            return None
        return delta_of(self.comparison.changed, self.comparison.newer)

    def age(self, now: datetime) -> timedelta:
        """How long ago the cut's window ended."""
        return now - self.snapshot.cut.until

    def later_window(self, policy: RefreshPolicy, now: datetime) -> bool:
        """Whether the window slides, and would end later if it were cut now."""
        return policy.slide is not None and bucket_start(now, self.snapshot.series.bucket) > self.snapshot.cut.until


@dataclass(frozen=True, slots=True)
class Staleness:
    """The three numbers of one model: its oldest cut's age, its longest lag, and the rows that differ in all.

    Attributes:
        age: None for a model without a cut.
        lag: None where no source keeps history.
        delta: None where it is not known of every source.
    """

    age: timedelta | None = None
    lag: int | None = None
    delta: Delta | None = None


def subject_of(snapshot: Snapshot) -> str:
    """Return what causes call a snapshot."""
    return f"snapshot {snapshot.series.name}@{snapshot.id[:12]}"


def commits_after(listed: Sequence[Commit], commit: Commit) -> int:
    """Return how many commits a source lists, oldest first, after one; an expired one counts as before them all."""
    identifiers = [found.id for found in listed]
    return len(identifiers) - 1 - (identifiers.index(commit.id) if commit.id in identifiers else -1)


def staleness(seen: Sequence[SourceSeen], now: datetime) -> Staleness:
    """Return the three numbers of a model from what was seen of its sources."""
    deltas = [one.delta for one in seen]
    known = [delta for delta in deltas if delta is not None]
    return Staleness(
        age=max((one.age(now) for one in seen), default=None),
        lag=max((one.lag for one in seen if one.lag is not None), default=None),
        delta=sum(known, Delta()) if seen and len(known) == len(deltas) else None,
    )


def causes_of(model: str, seen: Sequence[SourceSeen], policy: RefreshPolicy, now: datetime) -> list[Cause]:
    """Return what is stale about a model's data under a refresh policy.

    Args:
        model: What messages call the model.
        seen: What was seen of each of its sources.
        policy: The limits.
        now: The instant that counts as now.
    """
    causes = []
    for one in seen:
        causes += [
            *difference_causes(one),
            *_newer(one, policy, now),
            *_aged(one, policy, now),
            *_lagging(one, policy, now),
        ]
    return [*causes, *_exceeded(model, seen, policy, now)]


def differing(changes: Sequence[BucketChange]) -> tuple[str, ...]:
    """Return one phrase for each bucket: its label, and how many of its rows differ in which way."""
    return tuple(f"{change.label}: {_counts(change)}" for change in changes)


def _counts(change: BucketChange) -> str:
    return str(delta_of([change])) if change.delta else f"{change.rows_then} rows then, {change.rows_now} now"


def difference_causes(one: SourceSeen) -> list[Cause]:
    """Return what a comparison found: nothing when the source is the very one that was cut."""
    comparison = one.comparison
    if comparison is None:
        return []
    if not comparison.restated:
        moved = comparison.commit != one.snapshot.commit
        message = "the source changed outside the cut only"
        return [Cause(Change.APPENDED_OUTSIDE, one.subject, message)] if moved else []
    past = "" if one.keeps_history else "; it keeps no history, so what it no longer holds of the cut is orphaned"
    if comparison.columns:
        message = f"its columns changed: {'; '.join(comparison.columns)}{past}"
        causes = [Cause(Change.RESTATED, one.subject, message)]
    else:
        buckets = f"{len(comparison.changed)} bucket{'s' if len(comparison.changed) > 1 else ''}"
        message = f"rows inside the cut changed: {delta_of(comparison.changed)} in {buckets}{past}"
        causes = [Cause(Change.RESTATED, one.subject, message, differing(comparison.changed))]
    deleted = comparison.total("deleted")
    if deleted:
        message = f"{deleted} of the rows it was made from were deleted at the source"
        causes.append(Cause(Change.MEMBERS_DELETED, one.subject, message))
    if one.orphaned:
        message = f"its commit {one.snapshot.commit.id} was expired, and the newest no longer holds its rows"
        causes.append(Cause(Change.COMMIT_GONE, one.subject, f"{message}: it cannot be made again"))
    return causes


def as_used(kind: UseKind, causes: Iterable[Cause]) -> list[Cause]:
    """Return what causes about a snapshot mean for a version that used it in some way besides its view.

    Rows it was evaluated or calibrated on are none it could be made without by materializing it again.
    """
    if kind is UseKind.TRAINED_ON:
        return list(causes)
    verb = {UseKind.EVALUATED_ON: "evaluate", UseKind.CALIBRATED_ON: "calibrate"}[kind]
    before = f"the model was {kind.value.replace('_', ' ')} this snapshot: "
    after = f"; {verb} it on a new take of the window, and link that"
    return [
        replace(cause, change=Change.EVALUATION_RESTATED, message=f"{before}{cause.message}{after}")
        if cause.change is Change.RESTATED
        else cause
        for cause in causes
        if cause.change is not Change.MEMBERS_DELETED
    ]


def _newer(one: SourceSeen, policy: RefreshPolicy, now: datetime) -> list[Cause]:
    newer = one.comparison.newer if one.comparison else 0
    if not newer or not one.later_window(policy, now):
        return []
    message = f"its window slides, and {newer} rows lie after {one.snapshot.cut.until.isoformat()}, where it ends"
    return [Cause(Change.NEWER_ROWS, one.subject, message)]


def _aged(one: SourceSeen, policy: RefreshPolicy, now: datetime) -> list[Cause]:
    if policy.max_age is None or one.age(now) <= policy.max_age:
        return []
    ends = one.snapshot.cut.until.isoformat()
    message = f"its cut ends {ends}, more than the policy's max_age of {policy.max_age} ago"
    return [Cause(Change.AGED, one.subject, message)]


def _lagging(one: SourceSeen, policy: RefreshPolicy, now: datetime) -> list[Cause]:
    """Return whether too many commits were made that may have touched what the model reads."""
    if policy.max_lag is None or one.lag is None or one.lag <= policy.max_lag or _untouched(one, policy, now):
        return []
    message = f"its source made {one.lag} commits since; the policy allows {policy.max_lag}"
    return [Cause(Change.LAG_EXCEEDED, one.subject, message)]


def _untouched(one: SourceSeen, policy: RefreshPolicy, now: datetime) -> bool:
    if one.comparison is None or one.comparison.restated:
        return False
    return not (one.comparison.newer and one.later_window(policy, now))


def _exceeded(model: str, seen: Sequence[SourceSeen], policy: RefreshPolicy, now: datetime) -> list[Cause]:
    if policy.max_delta_rows is None:
        return []
    counted = Delta()
    for one in seen:
        if one.comparison is not None:
            newer = one.comparison.newer if one.later_window(policy, now) else 0
            counted += delta_of(one.comparison.changed, newer)
    rows = counted.inside + counted.newer
    if rows <= policy.max_delta_rows:
        return []
    message = f"{rows} rows changed ({counted}); the policy allows {policy.max_delta_rows}"
    return [Cause(Change.DELTA_EXCEEDED, model, message)]


def document(found: Staleness) -> dict[str, Any]:
    """Return the three numbers as plain JSON values; null where one is not known."""
    return {
        "age_seconds": None if found.age is None else int(found.age.total_seconds()),
        "lag": found.lag,
        "delta": None if found.delta is None else asdict(found.delta),
    }


def tree(model: str, seen: Sequence[SourceSeen], causes: Sequence[Cause], now: datetime) -> dict[str, Any]:
    """Return the causes as plain JSON values: the model, its snapshots, their buckets, the counts of each.

    Each cause stands where it belongs: below the snapshot it is about, or else below the model.
    """
    subjects = {one.subject for one in seen}
    return {
        "model": model,
        "changes": [_change(cause) for cause in causes if cause.subject not in subjects],
        "snapshots": [
            {
                "snapshot": f"{one.snapshot.series.name}@{one.snapshot.id[:12]}",
                **document(staleness([one], now)),
                "changes": [_change(cause) for cause in causes if cause.subject == one.subject],
                "columns": list(one.comparison.columns) if one.comparison else [],
                "buckets": [change.model_dump() for change in one.comparison.changed] if one.comparison else [],
            }
            for one in seen
        ],
    }


def _change(cause: Cause) -> dict[str, Any]:
    return {"kind": cause.change.value, "message": cause.message, "details": list(cause.details)}
