from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from snapline.lineage.cut import Bucket, Cut, bucket_label, bucket_start, parse_instant
from snapline.lineage.errors import DefinitionError

INSTANTS = st.datetimes(timezones=st.just(UTC))
WIDTHS = {
    Bucket.HOUR: timedelta(hours=1),
    Bucket.DAY: timedelta(days=1),
    Bucket.WEEK: timedelta(weeks=1),
    Bucket.MONTH: timedelta(days=31),
    Bucket.YEAR: timedelta(days=366),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2013-07-01", datetime(2013, 7, 1, tzinfo=UTC)),
        ("2013-07-01T06:00:00", datetime(2013, 7, 1, 6, tzinfo=UTC)),
        ("2013-07-01T06:00:00Z", datetime(2013, 7, 1, 6, tzinfo=UTC)),
        ("2013-07-01T06:00:00+02:00", datetime(2013, 7, 1, 4, tzinfo=UTC)),
    ],
)
def test_naive_times_and_bare_dates_are_utc(text: str, expected: datetime) -> None:
    assert parse_instant(text) == expected
    assert parse_instant(text).tzinfo is UTC


@pytest.mark.parametrize("text", ["", "yesterday", "2013-02-30", "0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError, match="expected an ISO date or instant"):
        parse_instant(text)


@pytest.mark.parametrize("until", ["2013-01-01", "2012-12-31", "2013-01-01T01:00:00+02:00"])
def test_a_window_that_holds_nothing_is_refused(until: str) -> None:
    with pytest.raises(ValidationError, match="the window is empty"):
        Cut(since=parse_instant("2013-01-01"), until=parse_instant(until))


def test_a_cut_is_the_same_however_its_instants_are_written() -> None:
    written = Cut.model_validate({"since": "2013-01-01", "until": "2013-07-01T02:00:00+02:00"})
    assert written == Cut(since=parse_instant("2013-01-01"), until=parse_instant("2013-07-01"))
    assert written.model_dump(mode="json")["until"] == "2013-07-01T00:00:00Z"


def test_an_instant_outside_the_calendar_is_a_malformed_document() -> None:
    with pytest.raises(ValidationError, match="outside the years"):
        Cut.model_validate({"since": "0001-01-01T00:00:00+14:00", "until": "2013-07-01"})


@pytest.mark.parametrize(
    ("bucket", "start", "label"),
    [
        (Bucket.HOUR, datetime(2013, 7, 4, 15, tzinfo=UTC), "2013-07-04T15:00Z"),
        (Bucket.DAY, datetime(2013, 7, 4, tzinfo=UTC), "2013-07-04"),
        (Bucket.WEEK, datetime(2013, 7, 1, tzinfo=UTC), "2013-07-01"),
        (Bucket.MONTH, datetime(2013, 7, 1, tzinfo=UTC), "2013-07-01"),
        (Bucket.YEAR, datetime(2013, 1, 1, tzinfo=UTC), "2013-01-01"),
    ],
)
def test_the_bucket_of_a_thursday_afternoon(bucket: Bucket, start: datetime, label: str) -> None:
    assert bucket_start(datetime(2013, 7, 4, 15, 59, 59, 999_999, tzinfo=UTC), bucket) == start
    assert bucket_label(start, bucket) == label


@given(instant=INSTANTS.filter(lambda instant: instant.year > 1), bucket=st.sampled_from(Bucket))
def test_a_bucket_holds_its_instants_and_starts_itself(instant: datetime, bucket: Bucket) -> None:
    start = bucket_start(instant, bucket)
    assert start <= instant < start + WIDTHS[bucket]
    assert bucket_start(start, bucket) == start


@given(one=INSTANTS, other=INSTANTS, bucket=st.sampled_from(Bucket))
def test_buckets_keep_the_order_of_time(one: datetime, other: datetime, bucket: Bucket) -> None:
    first, second = sorted((one, other))
    if first.year > 1:
        assert bucket_start(first, bucket) <= bucket_start(second, bucket)
