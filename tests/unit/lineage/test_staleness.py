from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from lineage_home import DAY, NOW, SCHEMA, START, VIEW, LineageHome

from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.documents import parse
from snapline.lineage.errors import DefinitionError
from snapline.lineage.invalidation import Change, ModelState, Why, effect, worst_state
from snapline.lineage.model import ModelVersion
from snapline.lineage.observe import Depth, Observation, policy_of
from snapline.lineage.register import Origin
from snapline.lineage.snapshot import BucketChange, Commit, Comparison, Series, Snapshot
from snapline.lineage.staleness import (
    Delta,
    SourceSeen,
    causes_of,
    commits_after,
    differing,
    document,
    staleness,
    tree,
)
from snapline.lineage.view import RefreshPolicy, ViewDefinition

ROWS = Depth(rows=True)
DIGEST = "blake3-rows-v2:" + "0" * 64
THEN, LATER = Commit(id="1"), Commit(id="2")
FIXED, SLIDING = RefreshPolicy(), RefreshPolicy(slide=3 * DAY)
CORRECTED = BucketChange(label="2013-01-24", rows_then=9, rows_now=9, corrected=1)
LATE = BucketChange(label="2013-01-02", rows_then=9, rows_now=9, late=3)


def snapshot(name: str = "trips") -> Snapshot:
    return Snapshot(
        series=Series(name=name, source="/trips", time="at", known=None, key="id", bucket=Bucket.DAY),
        cut=Cut(since=START, until=START + 3 * DAY),
        digest=DIGEST,
        rows=6,
        buckets=3,
        manifest=DIGEST,
        taken_at=NOW,
        commit=THEN,
        membership=DIGEST,
    )


def seen(*changed: BucketChange, newer: int = 0, lag: int | None = None, name: str = "trips") -> SourceSeen:
    comparison = Comparison(changed=changed, commit=LATER, lag=lag, newer=newer)
    return SourceSeen(snapshot(name), lag, comparison, keeps_history=lag is not None)


def found(policy: RefreshPolicy, *sources: SourceSeen, now: datetime = NOW) -> list[Change]:
    return [cause.change for cause in causes_of("delays/1", sources, policy, now)]


def test_the_three_numbers_are_told_apart() -> None:
    numbers = staleness([seen(CORRECTED, LATE, newer=5, lag=2)], START + 4 * DAY)
    assert document(numbers) == {
        "age_seconds": 86_400,
        "lag": 2,
        "delta": {"appended": 0, "corrected": 1, "deleted": 0, "late": 3, "newer": 5},
    }


def test_of_several_sources_the_oldest_the_longest_and_the_sum_count() -> None:
    numbers = staleness([seen(CORRECTED, lag=2), seen(LATE, name="other")], NOW)
    assert (numbers.lag, numbers.delta) == (2, Delta(corrected=1, late=3))
    assert staleness([seen(CORRECTED), SourceSeen(snapshot("other"))], NOW).delta is None


def test_what_is_not_known_is_not_zero() -> None:
    nothing = {"age_seconds": None, "lag": None, "delta": None}
    assert document(staleness([], NOW)) == nothing
    unread = document(staleness([SourceSeen(snapshot(), lag=3)], NOW))
    assert (unread["lag"], unread["delta"]) == (3, None)
    drifted = Comparison(columns=("column 'x' was int64, is string",), commit=LATER)
    assert staleness([SourceSeen(snapshot(), comparison=drifted)], NOW).delta is None


def test_messages_name_counts_by_kind() -> None:
    assert differing([CORRECTED, LATE]) == ("2013-01-24: 1 corrected", "2013-01-02: 3 late")
    moved = BucketChange(label="2013-01-01", rows_then=2, rows_now=1)
    assert differing([moved]) == ("2013-01-01: 2 rows then, 1 now",)


def test_newer_rows_are_news_only_to_a_window_that_slides() -> None:
    assert found(FIXED, seen(newer=9)) == [Change.APPENDED_OUTSIDE]
    assert found(SLIDING, seen(newer=9)) == [Change.APPENDED_OUTSIDE, Change.NEWER_ROWS]
    assert found(SLIDING, seen()) == [Change.APPENDED_OUTSIDE]


def test_rows_of_the_bucket_that_is_not_over_yet_are_no_news() -> None:
    end = START + 3 * DAY
    assert Change.NEWER_ROWS not in found(SLIDING, seen(newer=9), now=end + DAY - timedelta(seconds=1))
    assert Change.NEWER_ROWS in found(SLIDING, seen(newer=9), now=end + DAY)


def test_newer_rows_count_into_the_limit_of_a_window_that_slides() -> None:
    limit = {"max_delta_rows": 9}
    both = seen(CORRECTED, newer=9)
    assert Change.DELTA_EXCEEDED not in found(FIXED.model_copy(update=limit), both)
    causes = causes_of("delays/1", [both], SLIDING.model_copy(update=limit), NOW)
    assert causes[-1].change is Change.DELTA_EXCEEDED
    assert causes[-1].message == "10 rows changed (1 corrected, 9 newer); the policy allows 9"


def test_the_limit_is_on_the_rows_of_all_sources_together() -> None:
    policy = RefreshPolicy(max_delta_rows=3)
    assert Change.DELTA_EXCEEDED not in found(policy, seen(LATE))
    assert Change.DELTA_EXCEEDED in found(policy, seen(LATE), seen(CORRECTED, name="other"))


def test_lag_counts_until_the_commits_are_found_not_to_touch_the_rows() -> None:
    policy = RefreshPolicy(max_lag=2)
    unread = SourceSeen(snapshot(), lag=3, keeps_history=True)
    assert found(policy, unread) == [Change.LAG_EXCEEDED]
    assert found(policy, SourceSeen(snapshot(), lag=2, keeps_history=True)) == []
    assert Change.LAG_EXCEEDED in found(policy, seen(CORRECTED, lag=3))
    assert Change.LAG_EXCEEDED not in found(policy, seen(lag=3))
    sliding = policy.model_copy(update={"slide": 3 * DAY})
    assert Change.LAG_EXCEEDED in found(sliding, seen(newer=1, lag=3))


def test_an_expired_commit_counts_as_before_all_that_are_listed() -> None:
    listed = [Commit(id=str(number)) for number in range(3, 7)]
    assert [commits_after(listed, Commit(id=name)) for name in ("3", "6", "1")] == [3, 0, 4]


def test_the_tree_puts_each_cause_where_it_belongs() -> None:
    one = seen(CORRECTED, LATE, lag=1)
    causes = causes_of("delays/1", [one], RefreshPolicy(max_delta_rows=0), NOW)
    told = tree("delays/1", [one], causes, NOW)
    assert json.loads(json.dumps(told)) == told
    assert [change["kind"] for change in told["changes"]] == ["more rows changed than the policy allows"]
    (below,) = told["snapshots"]
    assert [change["kind"] for change in below["changes"]] == ["rows inside the cut changed"]
    assert [(bucket["label"], bucket["corrected"], bucket["late"]) for bucket in below["buckets"]] == [
        ("2013-01-24", 1, 0),
        ("2013-01-02", 0, 3),
    ]


def test_the_length_of_a_sliding_window_is_written_in_the_view() -> None:
    read = parse(VIEW.replace("36500d", "36500d, slide: 180d"), ViewDefinition, name="view.yaml")
    assert read.refresh.slide == timedelta(days=180)
    assert parse(VIEW, ViewDefinition, name="view.yaml").refresh.slide is None
    with pytest.raises(DefinitionError, match=r"refresh\.slide"):
        parse(VIEW.replace("36500d", "36500d, slide: 0d"), ViewDefinition, name="view.yaml")


class Lake:
    """A model made from a Delta table, which a test then writes to."""

    def __init__(self, folder: Path) -> None:
        self.delta = pytest.importorskip("deltalake")
        self.home = LineageHome(folder)
        self.place = str(folder / "trips")
        self.write(self.home.rows)
        self.home.take("trips", self.home.options(source=f"delta:{self.place}", known=None))
        self.home.define()
        self.model: ModelVersion = self.home.register("delays", 1, Origin("delays", ("trips",)))

    def write(self, rows: list[dict]) -> None:
        self.delta.write_deltalake(self.place, pa.Table.from_pylist(rows, schema=SCHEMA), mode="append")

    def look(self, depth: Depth = ROWS) -> Observation:
        return self.home.observe(self.model, depth)

    def state(self) -> ModelState:
        return worst_state(self.look().causes, policy_of(self.model, self.home.state))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def outside(key: int) -> dict:
    return {"at": START + 9 * DAY, "seen": NOW, "id": key, "delay": 0}


def test_lag_is_how_many_commits_the_table_made_since(lake: Lake) -> None:
    assert staleness(lake.look(Depth()).seen, NOW).lag == 0
    lake.write([outside(60)])
    lake.write([outside(61)])
    unread = staleness(lake.look(Depth()).seen, NOW)
    assert (unread.lag, unread.delta) == (2, None)
    read = staleness(lake.look().seen, NOW)
    assert (read.lag, read.delta) == (2, Delta(newer=4))
    assert lake.state() is ModelState.FRESH


def test_too_many_commits_shut_until_they_are_found_to_leave_the_rows_alone(lake: Lake) -> None:
    policy = RefreshPolicy(max_lag=1)

    def about(depth: Depth) -> list[Change]:
        return [cause.change for cause in causes_of("delays/1", lake.look(depth).seen, policy, NOW)]

    lake.write([outside(60)])
    lake.write([outside(61)])
    assert about(Depth()) == [Change.LAG_EXCEEDED]
    assert about(ROWS) == [Change.APPENDED_OUTSIDE]
    lake.write([{"at": START + DAY, "seen": NOW, "id": 62, "delay": 0}])
    assert about(ROWS) == [Change.RESTATED, Change.LAG_EXCEEDED]
    assert effect(Change.LAG_EXCEEDED, policy).shuts is Why.NO


def test_a_past_that_can_still_be_read_is_restated_and_an_expired_one_is_orphaned(lake: Lake) -> None:
    lake.delta.DeltaTable(lake.place).update(updates={"delay": "99"}, predicate="id = 2")
    assert lake.state() is ModelState.RESTATED
    assert "orphaned" not in next(c for c in lake.look().causes if c.change is Change.RESTATED).message
    table = lake.delta.DeltaTable(lake.place)
    table.create_checkpoint()
    (Path(lake.place) / "_delta_log" / f"{0:020d}.json").unlink()
    found = [cause.change for cause in lake.look().causes]
    assert found == [Change.RESTATED, Change.COMMIT_GONE]
    assert lake.state() is ModelState.ORPHANED


def test_an_expired_commit_whose_rows_the_newest_still_has_is_no_loss(lake: Lake) -> None:
    lake.write([outside(60)])
    lake.delta.DeltaTable(lake.place).create_checkpoint()
    (Path(lake.place) / "_delta_log" / f"{0:020d}.json").unlink()
    assert lake.state() is ModelState.FRESH


def test_a_model_is_stale_by_age_alone_without_any_source_moving(tmp_path: Path) -> None:
    home = LineageHome(tmp_path)
    home.take()
    home.define(VIEW.replace("36500d", "1d"))
    model = home.register("delays", 1, Origin("delays", ("trips",)))
    late = home.observe(model, now=START + 4 * DAY + timedelta(seconds=1))
    assert worst_state(late.causes, policy_of(model, home.state)) is ModelState.STALE_AGE
    early = home.observe(model, now=datetime(2013, 1, 4, 12, tzinfo=UTC))
    assert worst_state(early.causes, policy_of(model, home.state)) is ModelState.FRESH
