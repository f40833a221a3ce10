"""What a violation sets off, and what keeps it from being set off again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from certificates import KEY, finding
from pydantic import TypeAdapter
from serving_logs import FIRST

from snapline.contracts.rollout.documents import Escalation, StageName
from snapline.contracts.rollout.escalate import Declared, alert, escalate, held_until, previous
from snapline.contracts.verdict import Finding, Verdict
from snapline.lineage.events import Escalated, StageEntered
from snapline.lineage.state import Rollout

HOUR = timedelta(hours=1)
ORDER = (StageName.OFFLINE, StageName.SHADOW, StageName.CANARY, StageName.FULL)
RULES = TypeAdapter(tuple[Escalation, ...])
EVERYTHING = [
    {"when": "refuted", "do": ["log", "alert", {"route_slice": "reference"}, "demote", "block"], "cool_down": "2h"},
    {"when": "undecided", "do": ["hold", "remeasure"]},
]


def entered(stage: str | None = "canary", at: Any = FIRST) -> StageEntered:
    return StageEntered(at=at, rollout="r", model=KEY, target="production", contract="tiny", stage=stage)


def found(verdict: Verdict, **said: Any) -> Finding:
    return Finding.model_validate(finding(verdict, clause="tv_answer", slice="german", **said))


REFUTED, UNDECIDED, CERTIFIED = (found(v) for v in (Verdict.REFUTED, Verdict.UNDECIDED, Verdict.CERTIFIED))


def after(
    *findings: Finding,
    rules: Any = EVERYTHING,
    past: tuple[Escalated, ...] = (),
    now: Any = FIRST,
    stage: str = "canary",
) -> tuple[Any, ...]:
    declared = Declared(RULES.validate_python(rules), ("all", "german"), ORDER)
    return escalate(declared, findings, Rollout((entered(stage),), escalations=past), now)


def test_what_is_certified_sets_nothing_off() -> None:
    assert after(CERTIFIED) == ()
    assert after(REFUTED, rules=[]) == ()
    assert after(REFUTED, rules=EVERYTHING[1:]) == ()


def test_a_refuted_clause_does_all_that_is_declared_in_that_order() -> None:
    event, moved = after(REFUTED)
    assert event.acts == ("log", "alert", "route_slice", "demote", "block")
    assert (event.clause, event.slice, event.verdict, event.blocks) == ("tv_answer", "german", "REFUTED", True)
    assert event.reference_slices == ("german",)
    assert event.until == FIRST + 2 * HOUR
    assert event.reason == REFUTED.reason
    assert (moved.stage, moved.envelope, moved.model) == ("shadow", None, KEY)
    assert moved.reason == "demoted: tv_answer on german is REFUTED"


@pytest.mark.parametrize("act", ["log", "alert", "hold", "remeasure", "demote", "block"])
def test_each_act_does_its_own_and_nothing_more(act: str) -> None:
    event, *moved = after(REFUTED, rules=[{"when": "refuted", "do": [act]}])
    assert event.acts == (act,)
    assert event.blocks == (act == "block")
    assert event.reference_slices == ()
    assert [one.stage for one in moved] == (["shadow"] if act == "demote" else [])
    held = Rollout((entered(),), escalations=(event,))
    assert held_until(held, FIRST) == (FIRST + HOUR if act == "hold" else None)


def test_two_findings_demote_once_and_the_first_stage_has_none_before() -> None:
    other = found(Verdict.REFUTED).model_copy(update={"slice": "all"})
    events = after(REFUTED, other)
    assert [event.kind for event in events] == ["escalated", "escalated", "stage-entered"]
    assert [event.kind for event in after(REFUTED, stage="offline")] == ["escalated"]
    assert previous(ORDER, "full") is StageName.CANARY
    assert previous((StageName.OFFLINE, StageName.FULL), "full") is StageName.OFFLINE
    assert previous(ORDER, None) is None


def test_a_log_that_lacks_something_routes_no_slice_away_and_has_nothing_measured_again() -> None:
    of_a_log = {"clause": "observability", "slice": "log.margin"}
    event, _ = after(REFUTED.model_copy(update=of_a_log))
    assert event.reference_slices == ()
    assert event.acts == ("log", "alert", "demote", "block")
    (event,) = after(UNDECIDED.model_copy(update=of_a_log))
    assert event.acts == ("hold",)
    assert after(UNDECIDED.model_copy(update=of_a_log), rules=[{"when": "undecided", "do": ["remeasure"]}]) == ()


def test_nothing_is_set_off_again_before_the_cool_down_has_passed() -> None:
    first, _ = after(REFUTED)
    assert after(REFUTED, past=(first,), now=FIRST + 2 * HOUR - timedelta(seconds=1)) == ()
    assert len(after(REFUTED, past=(first,), now=FIRST + 2 * HOUR)) == 2
    elsewhere = REFUTED.model_copy(update={"slice": "all"})
    assert len(after(elsewhere, past=(first,), now=FIRST + HOUR)) == 2, "another slice cools down by itself"
    assert after(UNDECIDED, past=(first,), now=FIRST + HOUR) == ()


def test_what_was_only_undecided_never_silences_a_refutation() -> None:
    (doubt,) = after(UNDECIDED)
    assert doubt.acts == ("hold", "remeasure")
    assert after(UNDECIDED, past=(doubt,), now=FIRST + HOUR / 2) == ()
    assert [event.kind for event in after(REFUTED, past=(doubt,), now=FIRST + HOUR / 2)] == [
        "escalated",
        "stage-entered",
    ]


def test_several_rules_for_one_verdict_are_done_together_with_the_longest_cool_down() -> None:
    rules = [{"when": "refuted", "do": ["log"], "cool_down": "3h"}, {"when": "refuted", "do": ["log", "hold"]}]
    (event,) = after(REFUTED, rules=rules)
    assert (event.acts, event.until) == (("log", "hold"), FIRST + 3 * HOUR)


def test_a_hold_ends_with_its_cool_down_and_with_its_stage() -> None:
    (event,) = after(UNDECIDED)
    assert held_until(Rollout((entered(),), escalations=(event,)), FIRST + HOUR) is None
    later = Rollout((entered(), entered("shadow", FIRST + HOUR / 2)), escalations=(event,))
    assert held_until(later, FIRST + HOUR / 2) is None


def test_an_alert_says_what_happened_where() -> None:
    event, _ = after(REFUTED)
    message = alert(event, Rollout((entered(),)))
    assert (message["rollout"], message["model"], message["stage"]) == ("r", str(KEY), "canary")
    assert (message["slice"], message["verdict"], message["reason"]) == ("german", "REFUTED", REFUTED.reason)
