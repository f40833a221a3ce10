"""Where a request goes, decided without a server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.contracts.contract import Slice
from snapline.contracts.rollout.documents import LogField, Observability, Stage, StageName, Stages
from snapline.contracts.rollout.routes import (
    Route,
    Rules,
    asks_for_length,
    decide,
    logged,
    may_be_inside,
    rules_of,
    within,
)
from snapline.lineage.events import Escalated, StageEntered
from snapline.lineage.model import VersionKey
from snapline.lineage.state import Rollout

NOW = datetime(2026, 11, 30, tzinfo=UTC)
SLICES = (
    Slice(name="all", min_prompts=1),
    Slice(name="german", where="language = 'de'", min_prompts=1),
    Slice(name="long", where="prompt_tokens > 100", min_prompts=1),
)
STAGES = Stages(
    shadow=Stage(traffic=Decimal("0.25")),
    canary=Stage(traffic=Decimal("0.1"), monitor=Decimal("0.5")),
    full=Stage(monitor=Decimal("0.01")),
)
SERVING, REFERENCE, COPIED = Route("serving"), Route("reference"), Route("reference", shadow=True)
requests = st.text(min_size=1)


def entered(stage: str | None) -> StageEntered:
    key = VersionKey(name="chat", version=1)
    return StageEntered(at=NOW, rollout="r", model=key, target="production", contract="c", stage=stage)


def escalated(*slices: str, blocks: bool = False) -> Escalated:
    return Escalated(
        at=NOW,
        rollout="r",
        clause="tv_token",
        slice="german",
        verdict="REFUTED",
        acts=("route_slice",),
        until=NOW + timedelta(hours=1),
        blocks=blocks,
        reference_slices=slices,
    )


def rules(stage: str | None, *escalations: Escalated) -> Rules:
    return rules_of(Rollout((entered(stage),), (), escalations), SLICES, None, STAGES)


@given(requests, st.booleans())
def test_offline_an_aborted_or_a_blocked_rollout_gives_the_serving_engine_nothing(
    request_id: str, inside: bool
) -> None:
    for shut in (rules("offline"), rules(None), rules("full", escalated(blocks=True)), rules("full").shut):
        assert decide(shut, request_id, inside) == REFERENCE


@given(requests)
def test_in_shadow_the_reference_answers_and_the_stages_share_is_copied(request_id: str) -> None:
    copied = within("traffic", request_id, Decimal("0.25"))
    assert decide(rules("shadow"), request_id, inside=False) == (COPIED if copied else REFERENCE)
    assert decide(rules("shadow"), request_id, inside=True) == (COPIED if copied else REFERENCE)


@given(requests)
def test_in_canary_the_serving_engine_answers_the_stages_share(request_id: str) -> None:
    taken = within("traffic", request_id, Decimal("0.1"))
    assert decide(rules("canary"), request_id, inside=False) == (SERVING if taken else REFERENCE)


@given(requests)
def test_in_full_the_serving_engine_answers_everything_outside_a_routed_slice(request_id: str) -> None:
    assert decide(rules("full"), request_id, inside=False) == SERVING
    assert decide(rules("full"), request_id, inside=True).engine == "reference"


@given(requests)
def test_of_a_routed_slice_the_monitored_share_is_copied_so_that_a_repair_can_be_seen(request_id: str) -> None:
    monitored = within("monitor", request_id, Decimal("0.5"))
    taken = within("traffic", request_id, Decimal("0.1"))
    assert decide(rules("canary"), request_id, inside=True) == (COPIED if taken and monitored else REFERENCE)


def test_shares_are_kept_and_one_says_nothing_of_another() -> None:
    names = [f"request-{number}" for number in range(4000)]
    taken = {name for name in names if within("traffic", name, Decimal("0.25"))}
    kept = {name for name in names if within("log", name, Decimal("0.25"))}
    assert 0.22 < len(taken) / 4000 < 0.28
    assert 0.22 < len(kept) / 4000 < 0.28
    assert 0.04 < len(taken & kept) / 4000 < 0.085


@given(requests)
def test_a_share_of_one_is_everything_and_a_larger_share_keeps_what_a_smaller_took(request_id: str) -> None:
    assert within("traffic", request_id, Decimal(1))
    if within("traffic", request_id, Decimal("0.1")):
        assert within("traffic", request_id, Decimal("0.4"))


def test_a_request_always_goes_the_same_way() -> None:
    assert within("traffic", "r-17", Decimal("0.5")) is within("traffic", "r-17", Decimal("0.5"))
    assert within("traffic", "r-1", Decimal("0.5")) is False
    assert within("traffic", "r-4", Decimal("0.5")) is True


def test_rules_take_the_share_of_the_stage_and_what_must_be_logged() -> None:
    observability = Observability(log=(LogField.MARGIN,), sampling=Decimal("0.5"))
    found = rules_of(Rollout((entered("offline"), entered("canary"))), SLICES, observability, STAGES)
    assert (found.stage, found.traffic, found.monitor) == (StageName.CANARY, Decimal("0.1"), Decimal("0.5"))
    assert (found.log, found.sampling) == ((LogField.MARGIN,), Decimal("0.5"))
    assert 0.44 < sum(logged(found, f"request-{n}") for n in range(1000)) / 1000 < 0.56


def test_a_stage_the_contract_does_not_have_shuts_the_serving_engine_out() -> None:
    assert rules_of(Rollout((entered("canary"),)), SLICES, None, None).stage is None
    assert rules_of(Rollout((entered("gone"),)), SLICES, None, STAGES).stage is None
    assert rules_of(Rollout((entered("full"),)), SLICES, None, None).stage is StageName.FULL


@pytest.mark.parametrize(
    ("columns", "inside"),
    [
        ({"language": "de"}, True),
        ({"language": "en"}, False),
        ({"language": "en", "tenant": "a"}, False),
        ({"tenant": "a"}, True),  # a predicate that cannot be evaluated is no clear no
        ({}, True),
    ],
)
def test_a_request_is_inside_a_routed_slice_unless_it_is_clearly_outside(columns: dict[str, str], inside: bool) -> None:
    assert may_be_inside(rules("full", escalated("german")), columns) is inside


def test_nobody_is_inside_when_no_slice_is_routed_away() -> None:
    assert not may_be_inside(rules("full"), {"language": "de"})


def test_a_slice_without_a_predicate_or_without_a_definition_holds_everything() -> None:
    assert may_be_inside(rules("full", escalated("all")), {"language": "en"})
    assert may_be_inside(rules("full", escalated("gone")), {"language": "en"})


def test_one_of_several_routed_slices_is_enough() -> None:
    both = rules("full", escalated("german"), escalated("long"))
    assert may_be_inside(both, {"language": "en", "prompt_tokens": 101})
    assert not may_be_inside(both, {"language": "en", "prompt_tokens": 100})


def test_a_slice_by_length_asks_for_the_length_of_a_prompt_that_does_not_tell_it() -> None:
    long = rules("full", escalated("long"))
    assert asks_for_length(long, {"language": "en"})
    assert not asks_for_length(long, {"prompt_tokens": 3})
    assert not asks_for_length(rules("full", escalated("german")), {"language": "en"})
    assert may_be_inside(long, {"language": "en"})


@pytest.mark.parametrize("value", ["de' OR TRUE --", "'; DROP TABLE rows; --", '"', "\0", "x" * 5000])
def test_what_a_request_says_of_itself_is_never_read_as_sql(value: str) -> None:
    assert not may_be_inside(rules("full", escalated("german")), {"language": value})
    assert not may_be_inside(rules("full", escalated("german")), {"language": "en", value: "x"})


def test_columns_that_a_predicate_does_not_name_make_it_no_slower_to_answer() -> None:
    german = rules("full", escalated("german"))
    before = _evaluations()
    for number in range(50):
        assert may_be_inside(german, {"language": "de-50", "user": str(number)}) is False
    assert _evaluations() - before == 1


def _evaluations() -> int:
    from snapline.contracts.rollout.routes import _holds

    return _holds.cache_info().misses


def test_shut_rules_keep_what_is_logged() -> None:
    found = replace(rules("full"), log=(LogField.MARGIN,))
    assert found.shut.log == (LogField.MARGIN,)
