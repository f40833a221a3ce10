"""Laws of staleness: age only grows, deltas of disjoint buckets add up, and real edits give the matrix's states."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from lineage_home import DAY, NOW, START, LineageHome

from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.invalidation import Change, ModelState, effect, worst_state
from snapline.lineage.observe import Depth, policy_of
from snapline.lineage.register import Origin
from snapline.lineage.snapshot import BucketChange, Commit, Comparison, Series, Snapshot
from snapline.lineage.staleness import KINDS, Delta, SourceSeen, causes_of, delta_of, staleness
from snapline.lineage.view import OnRestatement, RefreshPolicy

DIGEST = "blake3-rows-v2:" + "0" * 64
FEW = st.integers(0, 50)
CHANGES = st.lists(
    st.builds(
        BucketChange,
        label=st.dates().map(str),
        rows_then=FEW,
        rows_now=FEW,
        appended=FEW,
        corrected=FEW,
        deleted=FEW,
        late=FEW,
    ),
    max_size=6,
    unique_by=lambda change: change.label,
)
INSTANTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
SPANS = st.integers(1, 10**6).map(lambda hours: timedelta(hours=hours))
POLICIES = st.builds(
    RefreshPolicy,
    slide=st.none() | SPANS,
    max_age=st.none() | SPANS,
    max_delta_rows=st.none() | FEW,
    max_lag=st.none() | FEW,
    on_restatement=st.sampled_from(OnRestatement),
)


@st.composite
def sources(draw: st.DrawFn) -> SourceSeen:
    since = draw(INSTANTS)
    snapshot = Snapshot(
        series=Series(name="s", source="/s", time="t", known=None, key="k", bucket=draw(st.sampled_from(Bucket))),
        cut=Cut(since=since, until=since + draw(SPANS)),
        digest=DIGEST,
        rows=0,
        buckets=0,
        manifest=DIGEST,
        taken_at=since,
        commit=Commit(id="1"),
        membership=DIGEST,
    )
    lag = draw(st.none() | FEW)
    comparison = Comparison(changed=draw(CHANGES), commit=Commit(id="2"), lag=lag, newer=draw(FEW))
    return SourceSeen(snapshot, lag, draw(st.sampled_from([comparison, None])), keeps_history=lag is not None)


def state(seen: list[SourceSeen], policy: RefreshPolicy, now: datetime) -> ModelState:
    return worst_state(tuple(causes_of("m/1", seen, policy, now)), policy)


@given(seen=st.lists(sources(), min_size=1, max_size=3), policy=POLICIES, now=INSTANTS, later=SPANS)
def test_time_alone_never_makes_a_model_fresher(
    seen: list[SourceSeen], policy: RefreshPolicy, now: datetime, later: timedelta
) -> None:
    before, after = staleness(seen, now), staleness(seen, now + later)
    assert before.age is not None
    assert after.age == before.age + later
    assert (after.lag, after.delta) == (before.lag, before.delta)
    order = list(ModelState)
    assert order.index(state(seen, policy, now + later)) >= order.index(state(seen, policy, now))
    changes = [{cause.change for cause in causes_of("m/1", seen, policy, at)} for at in (now, now + later)]
    assert changes[0] <= changes[1]


@given(changes=CHANGES, cut=st.integers(0, 6))
def test_the_delta_of_disjoint_buckets_is_the_sum_of_theirs(changes: list[BucketChange], cut: int) -> None:
    whole = delta_of(changes)
    assert whole == delta_of(changes[:cut]) + delta_of(changes[cut:])
    assert whole == delta_of(reversed(changes))
    assert whole.inside == sum(change.delta for change in changes)
    assert whole + Delta() == whole


@given(one=st.lists(FEW, min_size=5, max_size=5), other=st.lists(FEW, min_size=5, max_size=5))
def test_deltas_add_kind_by_kind_in_any_order(one: list[int], other: list[int]) -> None:
    total = Delta(*one) + Delta(*other)
    assert [getattr(total, kind) for kind in KINDS] == [a + b for a, b in zip(one, other, strict=True)]
    assert total == Delta(*other) + Delta(*one)


@given(seen=sources(), policy=POLICIES, now=INSTANTS)
def test_a_window_that_stays_is_never_stale_for_rows_after_it(
    seen: SourceSeen, policy: RefreshPolicy, now: datetime
) -> None:
    fixed = policy.model_copy(update={"slide": None})
    assert Change.NEWER_ROWS not in {cause.change for cause in causes_of("m/1", [seen], fixed, now)}


EDITS = st.lists(st.sampled_from(["append", "correct", "delete", "late"]), max_size=4)


@settings(max_examples=15, deadline=None)
@given(edits=EDITS)
def test_what_happens_to_a_real_source_gives_the_state_of_the_matrix(edits: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = LineageHome(Path(folder))
        home.take()
        home.define()
        model = home.register("delays", 1, Origin("delays", ("trips",)))
        members = [row for row in home.rows if row["at"] < START + 3 * DAY]
        for number, edit in enumerate(edits):
            match edit:
                case "append":
                    home.rows.append({"at": START + 9 * DAY, "seen": NOW, "id": 100 + number, "delay": 0})
                case "correct":
                    members[number]["delay"] += 1000
                case "delete":
                    home.rows.remove(members[number])
                case "late":
                    home.rows.append({"at": START + DAY, "seen": NOW + DAY, "id": 100 + number, "delay": 0})
        home.write()
        found = home.observe(model, Depth(rows=True))
        expected = Delta(
            corrected=edits.count("correct"),
            deleted=edits.count("delete"),
            late=edits.count("late"),
            newer=2 + edits.count("append"),
        )
        assert staleness(found.seen, NOW).delta == expected
        policy = policy_of(model, home.state)
        worst = worst_state(found.causes, policy)
        if "delete" in edits:
            assert worst is ModelState.ERASURE_PENDING
        else:
            assert worst is (ModelState.RESTATED if expected.inside else ModelState.FRESH)
        shut = any(effect(cause.change, policy).shuts for cause in found.causes)
        assert shut == bool(expected.inside)
