"""Looking at a log: what is counted, what the reference scores again, and what is recorded of the verdict."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rollouts import CONTRACT, MINUTE, Rolling
from serving_logs import drift_of, request, requests, write_jsonl, write_parquet

from snapline.contracts.errors import EngineFailedError
from snapline.contracts.rollout import stages
from snapline.contracts.rollout.monitor import to_parquet
from snapline.contracts.rollout.routes import within
from snapline.contracts.verdict import Verdict
from snapline.lineage.errors import ConflictError, DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.events import Escalated, Observed, StageEntered

COPIES = {"route": "shadow"}
HONEST = requests([0.0] * 400, **COPIES)


@pytest.fixture
def rolling(tmp_path: Path) -> Rolling:
    return Rolling(tmp_path).at("shadow")


@pytest.fixture
def canary(tmp_path: Path) -> Rolling:
    return Rolling(tmp_path).at("canary")


def entries(rolling: Rolling) -> int:
    return len(rolling.home.ledger.entries())


def faulty(count: int = 80, start: int = 500, **said: Any) -> list[dict[str, Any]]:
    return requests([drift_of(0.8)] * count, start, **said)


def test_a_look_is_one_event_that_names_monitor_and_log(rolling: Rolling) -> None:
    before = entries(rolling)
    look = rolling.observe(HONEST)
    assert (look.verdict, look.logged, look.counted, look.rescored) == (Verdict.CERTIFIED, 400, 400, 0)
    assert entries(rolling) == before + 1
    (event,) = rolling.home.state.rollouts["r"].looks
    assert isinstance(event, Observed)
    assert (event.stage, event.requests, event.log) == ("shadow", 400, look.log)
    assert rolling.home.objects.read(event.monitor) == to_parquet(rolling.course().monitor)


def test_the_same_log_twice_counts_once_and_records_nothing(rolling: Rolling) -> None:
    first = rolling.observe(HONEST)
    before = entries(rolling)
    again = rolling.observe(HONEST)
    assert (again.counted, again.passed_over) == (0, {"counted already": 400})
    assert (again.findings, again.log) == (first.findings, first.log)
    assert entries(rolling) == before


def test_a_growing_log_is_counted_as_it_grows_like_one_log_at_once(rolling: Rolling, tmp_path: Path) -> None:
    counted = [rolling.observe(HONEST[:end]).counted for end in (150, 150, 400)]
    assert counted == [150, 0, 250]
    (tmp_path / "other").mkdir()
    whole = Rolling(tmp_path / "other").at("shadow")
    whole.observe(HONEST)
    assert to_parquet(rolling.course().monitor) == to_parquet(whole.course().monitor)


def test_a_table_is_counted_like_lines(rolling: Rolling, tmp_path: Path) -> None:
    rolling.observe(HONEST)
    rolling.now += MINUTE
    path = write_parquet(tmp_path / "log.parquet", HONEST)
    assert rolling.observe_file(path).passed_over == {"counted already": 400}


def test_only_what_the_serving_engine_answered_in_the_stage_counts(canary: Rolling) -> None:
    rows = [request(10), request(500, route="reference"), request(501), request(502, **COPIES)]
    look = canary.observe(rows)
    assert look.counted == 2
    assert look.passed_over == {"answered before the stage was entered": 1, "answered by the reference": 1}


def test_a_share_is_scored_again_by_the_hash_of_the_id(tmp_path: Path) -> None:
    text = CONTRACT.replace('shadow: {traffic: "0.5"', 'shadow: {traffic: "0.5", monitor: "0.25"')
    rolling = Rolling(tmp_path, text).at("shadow")
    look = rolling.observe(HONEST)
    inside = [row["id"] for row in HONEST if within("monitor", row["id"], Decimal("0.25"))]
    assert rolling.course().monitor.rows["id"].to_pylist() == inside
    assert look.passed_over == {"outside the monitored share": 400 - len(inside)}
    assert 60 < len(inside) < 140


def test_what_was_drawn_otherwise_than_the_contract_assumes_is_passed_over(rolling: Rolling) -> None:
    tags = [{"temperature": "2.0"}, {"temperature": "0"}, {"temperature": "warm"}, {"truncated": "true"}, {}]
    look = rolling.observe([request(place, **COPIES, tags=said) for place, said in enumerate(tags)])
    assert look.passed_over == {"drawn at another temperature, or from a truncated distribution": 3}
    assert rolling.course().monitor.rows["id"].to_pylist() == ["r0", "r4"]


def test_the_reference_scores_the_emitted_tokens_at_the_contracts_temperature(rolling: Rolling) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = requests([0.0] * 3, **COPIES)
    for row in rows[:2]:
        del row["reference_logprob"]
    rolling.reference.logits = {f"r{n}": torch.randn(2, 16, generator=generator) for n in range(2)}
    look = rolling.observe(rows)
    assert look.rescored == 2
    assert [spec.dtype for spec in rolling.reference.started] == ["float32"]
    log_p = torch.log_softmax(rolling.reference.logits["r0"].double() / 2, -1)
    log_w = float(log_p[0, 4] + log_p[1, 5]) + 3.0
    expected = max(0.0, 1 - np.exp(log_w))
    assert rolling.course().monitor.units("tv_answer")[0] == pytest.approx(expected, abs=1e-12)


def test_a_request_the_reference_cannot_score_is_missing_and_not_lost(rolling: Rolling) -> None:
    rows = requests([0.0] * 3, **COPIES)
    del rows[1]["reference_logprob"]
    look = rolling.observe(rows)
    assert {finding.missing for finding in look.findings if finding.slice == "all"} == {1}
    assert rolling.observe(rows).counted == 0


def test_a_reference_that_answers_nonsense_records_nothing(rolling: Rolling) -> None:
    rows = requests([0.0] * 3, **COPIES)
    del rows[1]["reference_logprob"]
    rolling.reference.logits = {"r1": torch.zeros(3, 16)}
    before = entries(rolling)
    with pytest.raises(EngineFailedError, match="2 tokens of request 'r1'"):
        rolling.observe(rows)
    del rows[1]["sampled_logprob"], rows[1]["margin"]
    rows[2] |= {"token_ids": [4, 99], "reference_logprob": None}
    with pytest.raises(DefinitionError, match="token 99"):
        rolling.observe(rows)
    assert entries(rolling) == before


def test_weights_that_were_changed_score_nothing(rolling: Rolling) -> None:
    rows = requests([0.0], **COPIES)
    del rows[0]["reference_logprob"]
    (weights,) = rolling.home.weights.iterdir()
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(IntegrityError):
        rolling.observe(rows)
    assert rolling.reference.started == []


def test_bad_input_records_nothing(rolling: Rolling, tmp_path: Path) -> None:
    before = entries(rolling)
    (tmp_path / "bad.jsonl").write_text("{}\n")
    attempts = {
        "more than the 1": lambda: rolling.observe(HONEST, served=1),
        "bad.jsonl:1": lambda: rolling.observe_file(tmp_path / "bad.jsonl"),
    }
    for said, attempt in attempts.items():
        with pytest.raises(DefinitionError, match=said):
            attempt()
    with pytest.raises(NotFoundError):
        rolling.observe_file(tmp_path / "absent.jsonl")
    assert entries(rolling) == before


def test_nothing_is_observed_offline(tmp_path: Path) -> None:
    rolling = Rolling(tmp_path)
    rolling.start()
    with pytest.raises(DefinitionError, match="offline, where nothing is served"):
        rolling.observe(HONEST)


def test_too_few_requests_hold_the_stage_and_ask_to_measure(rolling: Rolling) -> None:
    look = rolling.observe(requests([0.0] * 5, **COPIES))
    assert look.verdict is Verdict.UNDECIDED
    assert {event.acts for event in look.events} == {("hold", "remeasure")}
    assert {(event.clause, event.slice) for event in look.events} == {("tv_answer", "all"), ("tv_answer", "german")}
    assert rolling.observe(requests([0.0] * 6, **COPIES)).events == (), "it cools down"


def test_a_faulty_engine_is_refuted_routed_away_demoted_and_blocked_in_one_commit(canary: Rolling) -> None:
    canary.observe(requests([0.0] * 20, 470))
    before = canary.home.state
    look = canary.observe([*requests([0.0] * 20, 470), *faulty(tags={"language": "de"})])
    assert look.verdict is Verdict.REFUTED
    events = [record.event for record in canary.home.ledger.entries()][-len(look.events) - 1 :]
    assert isinstance(events[0], Observed)
    assert tuple(events[1:]) == look.events
    acts = {event.slice: event.acts for event in look.events if isinstance(event, Escalated)}
    assert acts["german"] == ("log", "alert", "route_slice", "demote", "block")
    rollout = canary.home.state.rollouts["r"]
    assert isinstance(rollout.now, StageEntered)
    assert (rollout.now.stage, rollout.blocked) == ("shadow", True)
    assert "german" in rollout.reference_slices
    assert rollout.looks == (), "the stage it went back to begins with nothing"
    assert before.rollouts["r"].now.stage == "canary"


def test_two_looks_at_once_are_counted_once(rolling: Rolling, tmp_path: Path) -> None:
    found = rolling.course()
    rolling.observe(HONEST)
    with pytest.raises(ConflictError, match="somebody moved rollout 'r'"):
        rolling.observe_file(write_jsonl(tmp_path / "late.jsonl", HONEST), found)


def test_a_rollout_that_starts_anew_counts_the_same_requests_no_more(rolling: Rolling) -> None:
    rolling.observe(HONEST)
    stages.abort("r", None, rolling.desk())
    rolling.now += MINUTE
    rolling.start()
    rolling.advance()
    assert rolling.observe(HONEST).passed_over == {"answered before the stage was entered": 400}
