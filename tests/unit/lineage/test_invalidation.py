from __future__ import annotations

from datetime import timedelta

import pytest

from snapline.lineage.invalidation import Cause, Change, Effect, ModelState, Remedy, Why, effect, worst_state
from snapline.lineage.view import OnErasure, OnRestatement, RefreshPolicy

BLOCK = RefreshPolicy()
WARN = RefreshPolicy(on_restatement=OnRestatement.WARN)
POLICIES = [
    BLOCK,
    WARN,
    RefreshPolicy(slide=timedelta(days=1), on_restatement=OnRestatement.WARN),
    RefreshPolicy(max_age=timedelta(), max_delta_rows=0, max_lag=0, on_erasure=OnErasure.RETIRE),
]
SLIDING = RefreshPolicy(slide=timedelta(days=180))
# Rows of the matrix that no policy opens.
ALWAYS = (
    Change.MEMBERS_DELETED,
    Change.ERASURE_PENDING,
    Change.ERASED,
    Change.LEAKED,
    Change.RETIRED,
    Change.WEIGHTS_CHANGED,
    Change.RECORD_DAMAGED,
    Change.SOURCE_UNREAD,
    Change.EVALUATION_RESTATED,
    Change.ROLLOUT_BLOCKED,
)
# What may happen while a gate stays open; everything else shuts it.
HARMLESS = {
    Change.METADATA_EDITED,
    Change.APPENDED_OUTSIDE,
    Change.VIEW_CHANGED,
    Change.NEWER_ROWS,
    Change.COMMIT_GONE,
    Change.REMEASURE_ASKED,
}


@pytest.mark.parametrize("policy", POLICIES, ids=["block", "warn", "sliding", "strict"])
@pytest.mark.parametrize("change", Change)
def test_every_change_has_an_effect_under_every_policy(change: Change, policy: RefreshPolicy) -> None:
    assert isinstance(effect(change, policy), Effect)


@pytest.mark.parametrize("change", Change)
def test_only_the_harmless_leave_the_gate_open(change: Change) -> None:
    assert (effect(change, BLOCK).shuts is None) == (change in HARMLESS)
    assert (effect(change, WARN).shuts is None) == (change in HARMLESS | {Change.RESTATED})


@pytest.mark.parametrize("policy", POLICIES, ids=["block", "warn", "sliding", "strict"])
def test_metadata_edits_invalidate_nothing(policy: RefreshPolicy) -> None:
    assert effect(Change.METADATA_EDITED, policy) == Effect(ModelState.FRESH, Remedy.KEEP, None)


@pytest.mark.parametrize("policy", POLICIES, ids=["block", "warn", "sliding", "strict"])
@pytest.mark.parametrize("change", [Change.WEIGHTS_CHANGED, Change.RECORD_DAMAGED])
def test_no_policy_forgives_tampering(change: Change, policy: RefreshPolicy) -> None:
    assert effect(change, policy) == Effect(ModelState.TAMPERED, Remedy.BY_HAND, Why.TAMPERED)


def test_a_policy_that_warns_changes_only_what_a_restatement_means() -> None:
    differing = {change for change in Change if effect(change, BLOCK) != effect(change, WARN)}
    assert differing == {Change.RESTATED}
    assert effect(Change.RESTATED, WARN) == Effect(ModelState.RESTATED, Remedy.KEEP, None)


def test_the_gravest_state_counts_in_any_order() -> None:
    aged, gone, torn = (Cause(c, "x", "y") for c in (Change.AGED, Change.SOURCE_GONE, Change.WEIGHTS_CHANGED))
    assert worst_state((), BLOCK) is ModelState.FRESH
    assert worst_state((aged,), BLOCK) is ModelState.STALE_AGE
    assert worst_state((gone, aged), BLOCK) is worst_state((aged, gone), BLOCK) is ModelState.ORPHANED
    assert worst_state((aged, torn, gone), BLOCK) is ModelState.TAMPERED


@pytest.mark.parametrize("policy", POLICIES, ids=["block", "warn", "sliding", "strict"])
@pytest.mark.parametrize("change", ALWAYS)
def test_some_changes_shut_the_gate_under_every_policy(change: Change, policy: RefreshPolicy) -> None:
    assert effect(change, policy).shuts is not None


def test_a_window_that_slides_is_renewed_and_one_that_stays_is_a_persons_to_move() -> None:
    assert effect(Change.AGED, SLIDING) == Effect(ModelState.STALE_AGE, Remedy.REBUILD, Why.NO)
    assert effect(Change.AGED, BLOCK) == Effect(ModelState.STALE_AGE, Remedy.BY_HAND, Why.NO)


def test_a_policy_that_retires_leaves_an_erasure_to_a_person() -> None:
    retiring = RefreshPolicy(on_erasure=OnErasure.RETIRE)
    assert effect(Change.ERASURE_PENDING, retiring).remedy is Remedy.BY_HAND
    assert effect(Change.ERASURE_PENDING, BLOCK).remedy is Remedy.REBUILD
    assert effect(Change.ERASED, BLOCK).remedy is Remedy.KEEP


@pytest.mark.parametrize("policy", POLICIES, ids=["block", "warn", "sliding", "strict"])
def test_a_restated_evaluation_leaves_the_model_fresh_and_asks_for_another_evaluation(policy: RefreshPolicy) -> None:
    assert effect(Change.EVALUATION_RESTATED, policy) == Effect(ModelState.FRESH, Remedy.EVALUATE, Why.UNKNOWN)


def test_every_state_of_the_matrix_is_reached_and_they_go_by_gravity() -> None:
    assert {effect(change, BLOCK).state for change in Change} == set(ModelState)
    assert next(iter(ModelState)) is ModelState.FRESH
    served_never = list(ModelState)[-3:]
    assert served_never == [ModelState.ERASURE_PENDING, ModelState.LEAKED, ModelState.TAMPERED]
