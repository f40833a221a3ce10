"""Cuts: which rows of a table belong to a snapshot.

A cut has two axes. The event-time window is half open, `[since, until)`: a row stamped exactly `until` belongs to the
next cut. The known-as-of instant, for tables that record when a row became known, is closed: a row known exactly at
`as_of` is in. Naive times and bare dates are read as UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Self

from pydantic import AfterValidator, model_validator

from snapline.lineage.documents import Value
from snapline.lineage.errors import DefinitionError


def _as_utc(value: datetime) -> datetime:
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{value.isoformat()} lies outside the years 1 to 9999 in UTC") from error


Instant = Annotated[datetime, AfterValidator(_as_utc)]


class Bucket(StrEnum):
    """The width of the time buckets a snapshot is digested in. Weeks start on Monday."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"


class Cut(Value):
    """A half-open event-time window and, when the table records known times, a closed known-as-of instant."""

    since: Instant
    until: Instant
    as_of: Instant | None = None

    @model_validator(mode="after")
    def _window_runs_forward(self) -> Self:
        if self.since >= self.until:
            raise ValueError(
                f"the window is empty: it starts at {self.since.isoformat()} and ends at {self.until.isoformat()}"
            )
        return self


@lru_cache(4096)
def parse_instant(text: str) -> datetime:
    """Return an ISO 8601 date or date-time as an instant in UTC; a date means its first instant.

    Raises:
        DefinitionError: The text is neither.
    """
    try:
        return _as_utc(datetime.fromisoformat(text))
    except ValueError as error:
        raise DefinitionError(
            f"expected an ISO date or instant, found {text!r}", hint="Write 2013-07-01 or 2013-07-01T06:00:00Z."
        ) from error


def bucket_label(start: datetime, bucket: Bucket) -> str:
    """Return what messages call the bucket that starts at `start`: an ISO date, or an instant for hours."""
    return start.strftime("%Y-%m-%dT%H:%MZ") if bucket is Bucket.HOUR else start.date().isoformat()


@lru_cache(4096)
def bucket_end(label: str, bucket: Bucket) -> datetime:
    """Return the first instant after the bucket that `bucket_label` named."""
    start = parse_instant(label)
    longest = {Bucket.HOUR: 1 / 24, Bucket.DAY: 1, Bucket.WEEK: 7, Bucket.MONTH: 31, Bucket.YEAR: 366}[bucket]
    return bucket_start(start + timedelta(days=longest), bucket)


def bucket_start(instant: datetime, bucket: Bucket) -> datetime:
    """Return the first instant of the bucket that holds `instant`."""
    day = datetime.combine(instant.date(), datetime.min.time(), UTC)
    match bucket:
        case Bucket.HOUR:
            return instant.replace(minute=0, second=0, microsecond=0)
        case Bucket.DAY:
            return day
        case Bucket.WEEK:
            return day - timedelta(days=day.weekday())
        case Bucket.MONTH:
            return day.replace(day=1)
        case Bucket.YEAR:
            return datetime(instant.year, 1, 1, tzinfo=UTC)
