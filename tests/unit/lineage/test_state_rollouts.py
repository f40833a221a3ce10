"""What the ledger says of rollouts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from histories import key

from snapline.lineage.events import Escalated, LineageEvent, Observed, StageEntered, decode, encode
from snapline.lineage.state import Rollout, State, fold

AT = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "blake3-object-v1:" + "a" * 64


def entered(stage: str | None, **said: Any) -> StageEntered:
    return StageEntered(
        at=AT, rollout="r", model=key("model"), target="production", contract="tiny", stage=stage, **said
    )


def observed(stage: str, requests: int = 3) -> Observed:
    return Observed(at=AT, rollout="r", stage=stage, monitor=DIGEST, log=DIGEST, requests=requests)


def escalated(**said: Any) -> Escalated:
    known = {"at": AT, "rollout": "r", "clause": "tv_answer", "slice": "all", "verdict": "REFUTED", "acts": ("block",)}
    return Escalated.model_validate(known | {"until": AT + timedelta(hours=1)} | said)


def after(*events: LineageEvent) -> Rollout:
    return fold(events).rollouts["r"]


def test_entering_a_stage_begins_a_new_monitor_and_keeps_what_was_set_off() -> None:
    rollout = after(entered("shadow"), observed("shadow"), escalated(blocks=True), entered("canary", envelope=DIGEST))
    assert (rollout.now.stage, rollout.looks, rollout.blocked) == ("canary", (), True)
    assert [event.stage for event in rollout.entered] == ["shadow", "canary"]


def test_a_rollout_that_ended_keeps_its_block_until_it_is_started_again() -> None:
    ended = (entered("canary"), escalated(blocks=True, reference_slices=("de",)), entered(None))
    assert (after(*ended).blocked, after(*ended).reference_slices) == (True, frozenset({"de"}))
    anew = after(*ended, entered("offline"))
    assert (anew.blocked, anew.reference_slices, anew.entered) == (False, frozenset(), (entered("offline"),))


def test_slices_routed_away_add_up() -> None:
    rollout = after(entered("full"), escalated(reference_slices=("de",)), escalated(reference_slices=("fr",)))
    assert rollout.reference_slices == {"de", "fr"}
    assert not rollout.blocked


@pytest.mark.parametrize("event", [observed("shadow"), escalated()])
def test_nothing_happens_in_a_rollout_that_never_began(event: LineageEvent) -> None:
    with pytest.raises(ValueError, match="no rollout 'r'"):
        fold([event], State())


@pytest.mark.parametrize("event", [entered("canary"), entered(None, reason="enough"), observed("shadow"), escalated()])
def test_every_event_of_a_rollout_comes_back_out_of_its_bytes(event: LineageEvent) -> None:
    assert decode(encode(event)) == event
