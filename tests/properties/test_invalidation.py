"""Laws of the invalidation matrix: more that is wrong never makes anything better."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from snapline.contracts.certificate import PREDICATE_TYPE, Certificate
from snapline.contracts.gate import Examined, GateDecision, Standing, decide
from snapline.lineage.events import Attested
from snapline.lineage.invalidation import Cause, Change, ModelState, Remedy, Why, effect, worst_state
from snapline.lineage.model import ModelVersion, VersionKey, Weights
from snapline.lineage.view import OnErasure, OnRestatement, RefreshPolicy

DIGEST = "sha256-object-v1:" + "0" * 64
KEY = VersionKey(name="model", version=1)
MODEL = ModelVersion(key=KEY, weights=Weights(digest=DIGEST, path="/w", manifest=DIGEST, size_bytes=1))
ATTESTED = Attested(at=datetime(2026, 1, 1, tzinfo=UTC), model=KEY, predicate_type=PREDICATE_TYPE, envelope=DIGEST)
# A decision never looks into a certificate that examining accepted.
ACCEPTED = Standing("contract", (ATTESTED, Certificate.model_construct()), ())

CAUSES = st.lists(st.builds(Cause, st.sampled_from(Change), st.text(max_size=3), st.text(max_size=3)), max_size=6)
POLICIES = st.builds(
    RefreshPolicy,
    slide=st.none() | st.integers(1, 400).map(lambda days: timedelta(days=days)),
    max_delta_rows=st.none() | st.integers(0, 9),
    on_restatement=st.sampled_from(OnRestatement),
    on_erasure=st.sampled_from(OnErasure),
)
NEVER_SERVED = (Change.ERASURE_PENDING, Change.ERASED, Change.MEMBERS_DELETED, Change.LEAKED, Change.RETIRED)
STATES, WHYS = list(ModelState), [None, *reversed(Why)]


def decided(observed: Sequence[Cause], about: Sequence[Cause], policy: RefreshPolicy) -> GateDecision:
    return decide(MODEL, "production", observed, Examined((ACCEPTED,), tuple(about)), policy, ())


@given(found=CAUSES, more=CAUSES, about=CAUSES, policy=POLICIES)
def test_adding_causes_never_opens_a_gate_nor_softens_why_it_is_shut(
    found: list[Cause], more: list[Cause], about: list[Cause], policy: RefreshPolicy
) -> None:
    before = decided(found, about, policy)
    for after in (decided(found + more, about, policy), decided(found, about + more, policy)):
        assert after.open <= before.open
        assert WHYS.index(after.why) >= WHYS.index(before.why)
        assert set(before.causes) <= set(after.causes)


@given(found=CAUSES, more=CAUSES, policy=POLICIES)
def test_adding_causes_never_weakens_the_state(found: list[Cause], more: list[Cause], policy: RefreshPolicy) -> None:
    before, after = worst_state(tuple(found), policy), worst_state((*found, *more), policy)
    assert STATES.index(after) >= STATES.index(before)


@given(found=CAUSES, policy=POLICIES, data=st.data())
def test_the_decision_does_not_depend_on_the_order_of_causes(
    found: list[Cause], policy: RefreshPolicy, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(found))
    one, other = decided(found, (), policy), decided(shuffled, (), policy)
    assert (one.open, one.why, set(one.causes)) == (other.open, other.why, set(other.causes))
    assert worst_state(tuple(found), policy) is worst_state(tuple(shuffled), policy)


@given(found=CAUSES, policy=POLICIES, edits=st.integers(1, 3))
def test_metadata_edits_change_no_decision(found: list[Cause], policy: RefreshPolicy, edits: int) -> None:
    edited = found + [Cause(Change.METADATA_EDITED, "description", "edited")] * edits
    one, other = decided(found, (), policy), decided(edited, (), policy)
    assert (one.open, one.why, one.causes) == (other.open, other.why, other.causes)
    assert worst_state(tuple(found), policy) is worst_state(tuple(edited), policy)


@given(found=CAUSES, policy=POLICIES)
def test_the_gate_is_open_exactly_when_nothing_shuts_it(found: list[Cause], policy: RefreshPolicy) -> None:
    decision = decided(found, (), policy)
    assert decision.open == all(effect(cause.change, policy).shuts is None for cause in found)
    assert set(decision.causes) | set(decision.notes) == set(found)
    without = decide(MODEL, "production", found, Examined(()), policy, ())
    assert not without.open


@given(one=CAUSES, other=CAUSES, third=CAUSES, policy=POLICIES)
def test_the_state_of_everything_found_is_a_join_of_the_states_of_its_parts(
    one: list[Cause], other: list[Cause], third: list[Cause], policy: RefreshPolicy
) -> None:
    def state(*parts: list[Cause]) -> ModelState:
        return worst_state(tuple(cause for part in parts for cause in part), policy)

    def join(*states: ModelState) -> ModelState:
        return max(states, key=STATES.index)

    assert state(one, other) is state(other, one) is join(state(one), state(other))
    assert join(join(state(one), state(other)), state(third)) is state(one, other, third)
    assert state(one, one) is state(one)
    assert state([]) is ModelState.FRESH


@given(change=st.sampled_from(Change), policy=POLICIES)
def test_the_matrix_is_total_and_pure(change: Change, policy: RefreshPolicy) -> None:
    row = effect(change, policy)
    assert row == effect(change, policy.model_copy())
    assert row.state in ModelState
    assert row.remedy in Remedy


@given(
    change=st.sampled_from(
        [Change.ERASURE_PENDING, Change.ERASED, Change.MEMBERS_DELETED, Change.LEAKED, Change.RETIRED]
    ),
    about=CAUSES,
    policy=POLICIES,
)
def test_erasure_leakage_and_retirement_shut_whatever_the_policy(
    change: Change, about: list[Cause], policy: RefreshPolicy
) -> None:
    assert not decided([Cause(change, "m/1", "so")], about, policy).open
