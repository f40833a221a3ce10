"""What rollouts mean to a gate and to a plan: a block shuts it, and a wish to measure again asks for that."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from certificates import AT, IDENTITY, KEY, MODEL, attested, certificate, digest
from immutables import Map

from snapline.contracts.gate import GateDecision, GateOpen, TargetNow, basis_of, decide, examine, remeasure_due
from snapline.lineage.errors import ConflictError
from snapline.lineage.events import Attested, Escalated, Recorded, StageEntered
from snapline.lineage.invalidation import Change, Remedy, Why, effect
from snapline.lineage.state import Rollout, State, apply
from snapline.lineage.view import RefreshPolicy

HERE = TargetNow("production", IDENTITY)
RENAMED = TargetNow("prod2", IDENTITY)
ELSEWHERE = TargetNow("staging", IDENTITY.model_copy(update={"dtype": "float32"}))
HOUR = timedelta(hours=1)
CERTIFICATE = certificate()


def entered(stage: str | None = "canary", **said: Any) -> StageEntered:
    place = {"at": AT, "rollout": "r", "model": KEY, "target": "production", "contract": "tiny", "stage": stage}
    return StageEntered.model_validate(place | said)


def escalated(*acts: str, at: Any = AT + HOUR) -> Escalated:
    return Escalated(
        at=at,
        rollout="r",
        clause="tv_answer",
        slice="german",
        verdict="REFUTED",
        acts=acts,
        until=at + HOUR,
        blocks="block" in acts,
        reason="too far apart",
    )


def state(*escalations: Escalated, measured: tuple[Attested, ...] = (attested(0, seconds=60),)) -> State:
    documents = {("contract", "tiny"): "contract", ("probes", "chats"): "probes"}
    history = (entered("shadow", envelope=attested(0).envelope), entered())
    return State(
        models=Map({KEY.name: (MODEL,)}),
        attestations=Map({KEY: measured}),
        records=Map({place: recorded(*place) for place in documents}),
        rollouts=Map({"r": Rollout(history, escalations=escalations)}),
    )


def recorded(what: str, name: str) -> Recorded:
    return Recorded.model_validate(
        {"at": AT, "what": what, "name": name, "digest": digest(what), "object": digest("object", "1")}
    )


def decided(found: State, target: TargetNow = HERE) -> GateDecision:
    examined = examine(MODEL, target, found, lambda _: CERTIFICATE)
    return decide(MODEL, target.name, (), examined, RefreshPolicy(), basis_of(MODEL, found))


def test_a_rollout_that_goes_well_leaves_the_gate_open() -> None:
    decision = decided(state(escalated("log", "alert", "hold", "demote")))
    assert decision.open
    assert decision.notes == ()


def test_a_block_shuts_the_gate_and_says_why() -> None:
    decision = decided(state(escalated("block")))
    assert (decision.open, decision.why) == (False, Why.NO)
    assert [cause.change for cause in decision.causes] == [Change.ROLLOUT_BLOCKED]
    assert "tv_answer on german was REFUTED" in decision.reasons[0]
    assert "too far apart" in decision.reasons[0]


def test_a_block_follows_what_is_installed_and_stays_with_its_target() -> None:
    blocked = state(escalated("block"))
    assert not decided(blocked, RENAMED).open, "another name for the same thing opens nothing"
    elsewhere = certificate(target="staging", target_identity=ELSEWHERE.identity.model_dump())
    known = {attested(0).envelope: CERTIFICATE, attested(1).envelope: elsewhere}
    both = replace(blocked, attestations=Map({KEY: (attested(0), attested(1))}))
    examined = examine(MODEL, ELSEWHERE, both, lambda found: known[found.envelope])
    assert examined.causes == ()


@pytest.mark.parametrize("target", [TargetNow("production", None, "no such engine"), HERE])
def test_a_block_is_told_beside_whatever_else_is_wrong(target: TargetNow) -> None:
    bare = replace(state(escalated("block"), measured=()), models=Map({KEY.name: (MODEL,)}))
    assert decided(bare, target).why is Why.NO


def test_a_block_outlives_an_abort_and_ends_with_a_new_start() -> None:
    ended = apply(state(escalated("block")), entered(None))
    assert not decided(ended).open
    assert decided(apply(ended, entered("offline"))).open


def test_a_block_that_comes_while_the_gate_was_found_open_refuses_the_commit() -> None:
    before = state()
    decision = decided(before)
    GateOpen(decision).check(before)
    with pytest.raises(ConflictError):
        GateOpen(decision).check(apply(before, escalated("block")))


def test_a_wish_to_measure_again_shuts_nothing_and_asks_for_it_until_engines_ran() -> None:
    asking = state(escalated("remeasure"))
    decision = decided(asking)
    assert decision.open
    assert [cause.change for cause in decision.notes] == [Change.REMEASURE_ASKED]
    assert effect(Change.REMEASURE_ASKED, RefreshPolicy()).remedy is Remedy.RECOMPUTE
    rejudged = attested(0).model_copy(update={"at": AT + 2 * HOUR})
    assert decided(state(escalated("remeasure"), measured=(rejudged,))).notes != ()
    again = rejudged.model_copy(update={"seconds": 60})
    assert decided(state(escalated("remeasure"), measured=(again,))).notes == ()
    later = escalated("remeasure", at=AT + 3 * HOUR)
    assert decided(state(escalated("remeasure"), later, measured=(again,))).notes != ()


def test_a_wish_is_about_one_contract() -> None:
    asking, known = state(escalated("remeasure")), [(attested(0), CERTIFICATE)]
    assert remeasure_due(MODEL, "tiny", HERE, asking, known) == escalated("remeasure")
    assert remeasure_due(MODEL, "strict", HERE, asking, known) is None
