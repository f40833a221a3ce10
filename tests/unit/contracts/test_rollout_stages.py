"""Starting, advancing and ending a rollout, and the certificate each step takes."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError
from rollouts import CONTRACT, KERNEL, MINUTE, TARGET_DIGEST, Rolling
from serving_logs import FIRST, requests

from snapline.contracts.rollout import stages
from snapline.contracts.rollout.certificate import PREDICATE_TYPE, StageCertificate, issue, read
from snapline.contracts.rollout.documents import StageName
from snapline.contracts.rollout.stages import course, stages_of
from snapline.contracts.verdict import Verdict
from snapline.lineage.errors import ConflictError, DefinitionError, IntegrityError, NotFoundError, RequirementError
from snapline.lineage.events import Attested, StageEntered
from snapline.lineage.invalidation import Why
from snapline.lineage.signing import SigningKey, TrustedKeys


@pytest.fixture
def rolling(tmp_path: Path) -> Rolling:
    return Rolling(tmp_path)


def test_a_rollout_starts_offline_and_binds_its_contract(rolling: Rolling) -> None:
    rolling.start()
    state = rolling.home.state
    assert state.rollouts["r"].now.stage == "offline"
    assert state.models["assistant"][0].contract == "tiny"
    assert ("contract", "tiny") in state.records
    assert rolling.course().findings(FIRST) == ()


def test_a_name_is_one_rollout_at_a_time(rolling: Rolling) -> None:
    rolling.start()
    with pytest.raises(ConflictError, match="rollout 'r' goes on"):
        rolling.start()
    stages.abort("r", "enough", rolling.desk())
    rolling.start()
    assert rolling.home.state.rollouts["r"].now.stage == "offline"


def test_a_bound_version_is_rolled_out_under_its_own_contract(rolling: Rolling) -> None:
    rolling.start()
    other = rolling.folder / "other.yaml"
    other.write_text(CONTRACT.replace("name: tiny", "name: other"))
    with pytest.raises(DefinitionError, match="requires contract 'tiny', not 'other'"):
        stages.start("s", rolling.model, "production", rolling.home.record(str(other)), rolling.desk())
    assert ("contract", "other") not in rolling.home.state.records


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (CONTRACT[CONTRACT.index("stages:") :], "", "declares no stages"),
        ('tv_answer: "0.2"', 'tv_token: "0.2"', "nothing a monitor can hold"),
    ],
)
def test_a_contract_without_usable_stages_starts_nothing(tmp_path: Path, old: str, new: str, said: str) -> None:
    rolling = Rolling(tmp_path, CONTRACT.replace(old, new))
    before = len(rolling.home.ledger.entries())
    with pytest.raises(DefinitionError, match=said):
        rolling.start()
    assert len(rolling.home.ledger.entries()) == before


def test_only_an_open_gate_leaves_offline(rolling: Rolling) -> None:
    rolling.start()
    with pytest.raises(RequirementError, match="is shut"):
        rolling.advance(Why.NO)
    assert rolling.course().stage is StageName.OFFLINE
    advanced = rolling.advance()
    assert (advanced.entered, advanced.certificate) == (StageName.SHADOW, KERNEL)
    assert rolling.home.state.rollouts["r"].now.envelope == KERNEL


def test_a_ledger_that_moved_under_the_gate_is_refused(rolling: Rolling) -> None:
    rolling.start()
    decision, found = rolling.gate(), rolling.course()
    more = Attested(at=FIRST, model=rolling.model.key, predicate_type="urn:test", envelope=KERNEL)
    rolling.home.ledger.commit(lambda _state: [more])
    with pytest.raises(ConflictError, match="recorded anew since it was found open"):
        stages.advance(found, decision, TARGET_DIGEST, rolling.home.key, rolling.desk())


def test_a_rollout_somebody_moved_meanwhile_is_not_moved_again(rolling: Rolling) -> None:
    rolling.start()
    found = rolling.course()
    stages.abort("r", None, rolling.desk())
    with pytest.raises(ConflictError, match="somebody moved rollout 'r'"):
        stages.advance(found, rolling.gate(), TARGET_DIGEST, rolling.home.key, rolling.desk())


def test_a_stage_nobody_looked_at_says_what_is_missing_and_records_nothing(rolling: Rolling) -> None:
    rolling.at("shadow")
    before = len(rolling.home.ledger.entries())
    advanced = rolling.advance()
    assert (advanced.entered, advanced.verdict) == (None, Verdict.UNDECIDED)
    assert any("40 short of min_requests 40" in finding.reason for finding in advanced.findings)
    assert any("no log of this stage was read" in finding.reason for finding in advanced.findings)
    assert len(rolling.home.ledger.entries()) == before


def test_the_next_stage_takes_a_signed_certificate_in_the_same_commit(rolling: Rolling) -> None:
    rolling.at("canary")
    attested, entered = (record.event for record in rolling.home.ledger.entries()[-2:])
    assert isinstance(attested, Attested)
    assert isinstance(entered, StageEntered)
    assert entered.envelope == attested.envelope
    assert attested.predicate_type == PREDICATE_TYPE
    found = read(rolling.home.objects.read(attested.envelope), rolling.home.trusted)
    assert (found.stage, found.verdict, found.requests, found.kernel) == ("shadow", "CERTIFIED", 400, KERNEL)
    assert (found.weights, found.target_digest) == (rolling.model.weights.digest, TARGET_DIGEST)
    assert {finding.clause for finding in found.findings} == {"tv_answer", "observability"}
    assert set(attested.retained) == {found.contract.object, found.monitor, KERNEL}
    assert rolling.course().monitor.rows.num_rows == 0, "what was seen in shadow certifies no canary"


def test_a_certified_stage_is_not_left_through_a_shut_gate(rolling: Rolling) -> None:
    rolling.at("shadow")
    rolling.observe(requests([0.0] * 400, route="shadow"))
    with pytest.raises(RequirementError):
        rolling.advance(Why.UNKNOWN)
    assert rolling.course().stage is StageName.SHADOW


def test_an_old_log_no_longer_lets_a_stage_be_left(rolling: Rolling) -> None:
    rolling.at("shadow")
    rolling.observe(requests([0.0] * 400, route="shadow"))
    rolling.now = FIRST + timedelta(days=2)
    advanced = rolling.advance()
    assert advanced.verdict is Verdict.REFUTED
    assert [finding.slice for finding in advanced.findings if finding.verdict is Verdict.REFUTED] == ["max_age"]


def test_a_hold_keeps_a_stage_that_is_certified_by_now(rolling: Rolling) -> None:
    rolling.at("shadow")
    rolling.observe(requests([0.0] * 10, route="shadow"))
    rolling.observe(requests([0.0] * 400, route="shadow"))
    advanced = rolling.advance()
    assert (advanced.entered, advanced.verdict) == (None, Verdict.CERTIFIED)
    assert advanced.held == FIRST + timedelta(seconds=9) + 10 * MINUTE
    rolling.now = advanced.held
    assert rolling.advance().entered is StageName.CANARY


def test_the_last_stage_has_none_after_it_and_stages_left_out_are_skipped(tmp_path: Path) -> None:
    rolling = Rolling(tmp_path, CONTRACT.replace('  canary: {traffic: "0.05", min_requests: 40}\n', ""))
    rolling.at("shadow")
    rolling.observe(requests([0.0] * 400, route="shadow"))
    assert rolling.advance().entered is StageName.FULL
    with pytest.raises(DefinitionError, match="its last stage"):
        rolling.advance()


def test_a_contract_recorded_anew_ends_what_its_monitor_is_good_for(rolling: Rolling) -> None:
    rolling.at("shadow")
    rolling.observe(requests([0.0] * 400, route="shadow"))
    rolling.home.edit(('tv_answer: "0.2"', 'tv_answer: "0.9", reward_drift: {range: ["0", "1"], limit: "0.5"}'))
    record = rolling.home.record()
    rolling.home.ledger.commit(lambda _state: [record])
    assert rolling.course().moved
    assert rolling.course().findings(rolling.now) == ()
    with pytest.raises(ConflictError, match="recorded anew"):
        rolling.advance()
    with pytest.raises(ConflictError, match="recorded anew"):
        rolling.observe(requests([0.0]))


def test_a_rollout_that_ended_goes_nowhere(rolling: Rolling) -> None:
    rolling.at("shadow")
    stages.abort("r", "a better one is ready", rolling.desk())
    assert rolling.home.state.rollouts["r"].now.reason == "a better one is ready"
    for attempt in (rolling.advance, lambda: rolling.observe(requests([0.0]))):
        with pytest.raises(DefinitionError, match="ended"):
            attempt()
    with pytest.raises(DefinitionError, match="ended already"):
        stages.abort("r", None, rolling.desk())
    with pytest.raises(NotFoundError, match="no rollout 'q'; there are: r"):
        course("q", rolling.home.state, rolling.home.objects)


def test_every_byte_of_a_stage_certificate_is_guarded(rolling: Rolling, tmp_path: Path) -> None:
    rolling.at("canary")
    envelope = rolling.home.objects.read(rolling.home.state.rollouts["r"].now.envelope or "")
    for place in range(0, len(envelope), len(envelope) // 40):
        changed = envelope[:place] + bytes([envelope[place] ^ 1]) + envelope[place + 1 :]
        with pytest.raises(IntegrityError):
            read(changed, rolling.home.trusted)
    (tmp_path / "stranger").mkdir()
    stranger = SigningKey.create(tmp_path / "stranger" / "key")
    certificate = read(envelope, rolling.home.trusted)
    with pytest.raises(IntegrityError):
        read(issue(certificate, stranger), rolling.home.trusted)
    assert read(issue(certificate, stranger), TrustedKeys({stranger.key_id: stranger.public})) == certificate


def test_a_stage_certificate_claims_no_more_than_its_findings(rolling: Rolling) -> None:
    rolling.at("canary")
    envelope = rolling.home.objects.read(rolling.home.state.rollouts["r"].now.envelope or "")
    said = json.loads(read(envelope, rolling.home.trusted).model_dump_json())
    said["findings"][0]["verdict"] = "UNDECIDED"
    with pytest.raises(ValidationError, match="stronger than its findings"):
        StageCertificate.model_validate(said)


def test_stages_of_a_contract_are_in_order(rolling: Rolling) -> None:
    rolling.start()
    assert stages_of(rolling.course().contract).order == ("offline", "shadow", "canary", "full")
    assert rolling.course().after(StageName.OFFLINE) is StageName.SHADOW
