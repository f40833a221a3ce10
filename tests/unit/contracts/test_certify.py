"""Certifying for real: measured, judged, signed and recorded; only the engines replay what they once computed."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from workbench import (
    ANSWER,
    CONTRACT,
    NOW,
    TARGET,
    VOCABULARY,
    Home,
    NoEngines,
    Replayed,
    chats,
    nearly,
    reference_logits,
)

from snapline.contracts.errors import EngineFailedError, EngineUnavailableError, IncomparableError
from snapline.contracts.logits import LogitsKeeper, expire, kept
from snapline.contracts.verdict import Verdict
from snapline.lineage.errors import ConflictError, DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.events import Escalated, StageEntered

REFERENCE = reference_logits()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def model(home: Home):
    return home.register()


def verdicts(issued) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in issued.certificate.findings:
        found.setdefault(finding.clause, set()).add(finding.verdict.value)
    return found


def test_an_honest_engine_is_certified_and_everything_is_bound(home, model):
    engines = Replayed()
    issued = home.certify(model, engines)
    assert (issued.certificate.verdict, issued.measured) == (Verdict.CERTIFIED, True)
    assert [spec.dtype for spec in engines.started] == ["float32", "bfloat16"]
    (attested,) = home.state.attestations[model.key]
    assert attested.envelope == issued.envelope
    assert attested.seconds >= 1
    read = home.inspector().read(attested)
    assert read == issued.certificate
    state = home.state
    assert read.weights == model.weights.digest
    assert read.view == model.view
    assert [(s.id, s.digest) for s in read.snapshots] == [(i, state.snapshots[i].digest) for i in model.snapshots]
    assert len(read.snapshots) == 1
    assert read.contract.digest == state.records["contract", "tiny"].digest
    assert read.probes.digest == state.records["probes", "chats"].digest
    assert (read.prompts, read.confidence, read.evidence_class) == (60, "0.95", "cpu")
    assert len(read.findings) == 4 * 2
    assert read.noise_floor.items() >= {"half_span": "0", "tv": "0", "not_identical": "0"}.items()


def batch_dependent() -> Replayed:
    alone = nearly(REFERENCE)
    return Replayed(serving=alone, batched=nearly(alone, by=0.01))


FAULTY = {
    "wrong scale": (lambda: Replayed(serving={n: 1.3 * rows for n, rows in REFERENCE.items()}), {"half_span"}),
    "batch-dependent": (batch_dependent, {"batch_invariance"}),
    "another token wins": (
        lambda: Replayed(serving={n: rows.roll(1, -1) for n, rows in REFERENCE.items()}),
        {"half_span", "tv_token", "greedy_flip_rate"},
    ),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_a_faulty_engine_is_refuted_by_the_clauses_it_breaks(home, model, fault):
    engines, broken = FAULTY[fault]
    issued = home.certify(model, engines())
    assert issued.certificate.verdict is Verdict.REFUTED
    assert {clause for clause, found in verdicts(issued).items() if found == {"REFUTED"}} == broken
    refuted = [finding for finding in issued.certificate.findings if finding.verdict is Verdict.REFUTED]
    assert all(finding.witness is not None for finding in refuted)
    assert home.state.attestations[model.key][-1].envelope == issued.envelope


@pytest.mark.parametrize(("beyond", "verdict"), [(False, Verdict.CERTIFIED), (True, Verdict.REFUTED)])
def test_one_ulp_beyond_the_limit_is_beyond_it(home, model, beyond, verdict):
    first = CONTRACT.index("numerical:")
    home.contract.write_text(CONTRACT[:first] + 'numerical: {half_span: {quantile: "0.8", limit: "0.5"}}\n')
    flat = {name: torch.zeros(ANSWER, VOCABULARY, dtype=torch.float64) for name in REFERENCE}
    served = {name: rows.clone() for name, rows in flat.items()}
    for rows in served.values():
        rows[:, 0] = math.nextafter(1.0, 2.0) if beyond else 1.0
    issued = home.certify(model, Replayed(reference=flat, serving=served))
    assert issued.certificate.verdict is verdict


def with_nan(logits):
    return {**logits, "p7": torch.full_like(logits["p7"], torch.nan)}


UNMEASURED = {
    "a missing prompt": lambda honest: Replayed(serving={n: rows for n, rows in honest.items() if n != "p7"}),
    "a NaN": lambda honest: Replayed(serving=with_nan(honest)),
    "a NaN in the reference": lambda honest: Replayed(reference=with_nan(REFERENCE), serving=honest),
    "a NaN in batches only": lambda honest: Replayed(serving=honest, batched=with_nan(honest)),
}


@pytest.mark.parametrize("fault", UNMEASURED)
def test_what_was_not_measured_is_undecided_at_best(home, model, fault):
    issued = home.certify(model, UNMEASURED[fault](nearly(REFERENCE)))
    assert issued.certificate.verdict is Verdict.UNDECIDED
    assert any(finding.missing == 1 for finding in issued.certificate.findings)


def test_a_nan_does_not_hide_a_refuted(home, model):
    issued = home.certify(model, Replayed(serving=with_nan({n: 1.3 * rows for n, rows in REFERENCE.items()})))
    assert issued.certificate.verdict is Verdict.REFUTED


def test_a_dropped_token_is_a_broken_engine_and_nothing_is_recorded(home, model):
    before = home.ledger.load().head
    with pytest.raises(EngineFailedError, match=r"expected logits of shape \(3, 16\) for probe 'p0', found \(2, 16\)"):
        home.certify(model, Replayed(serving={n: rows[1:] for n, rows in REFERENCE.items()}))
    assert home.ledger.load().head == before


def test_another_contract_is_judged_on_the_same_evidence_without_an_engine(home, model):
    first = home.certify(model, Replayed())
    home.edit(('limit: "0.01"', 'limit: "0.000001"'))
    second = home.certify(model, NoEngines())
    assert (second.certificate.verdict, second.measured) == (Verdict.REFUTED, False)
    assert second.certificate.evidence == first.certificate.evidence
    assert home.state.attestations[model.key][-1].seconds is None
    home.edit(("paths: [prefill, decode-forced]", "paths: [prefill]"), ('"0.000001"', '"0.01"'))
    assert home.certify(model, NoEngines(), target_name="elsewhere").certificate.verdict is Verdict.CERTIFIED


def test_measuring_again_until_it_says_yes_is_not_possible(home, model):
    assert home.certify(model, Replayed(serving={})).certificate.verdict is Verdict.UNDECIDED
    assert home.certify(model, NoEngines()).certificate.verdict is Verdict.UNDECIDED


def test_a_measurement_that_a_violation_asked_for_is_made_though_evidence_is_there(home, model):
    home.certify(model, Replayed())
    at, rollout = home.state.attestations[model.key][-1].at + timedelta(hours=1), {"rollout": "spring"}
    entered = StageEntered(at=at, model=model.key, target="production", contract="tiny", stage="canary", **rollout)
    violated = {"clause": "tv_answer", "slice": "all", "verdict": "REFUTED"}
    asked = Escalated(at=at, acts=("remeasure",), until=at + timedelta(hours=1), **violated, **rollout)
    home.ledger.commit(lambda _state: [entered, asked])
    assert home.certify(model, Replayed()).measured


def other_probes(home: Home) -> dict:
    home.probes(chats(61))
    return {}


def other_name(home: Home) -> dict:
    home.probes(chats(61), name="others")
    return {"probes": "others"}


def temperature(home: Home) -> dict:
    home.edit(("confidence:", "temperature: 0.5\nconfidence:"))
    return {}


def reference(home: Home) -> dict:
    home.edit(("{engine: transformers, dtype: float32}", "{engine: transformers, dtype: bfloat16}"))
    return {}


DIFFERS = {
    "probes": other_probes,
    "the probe set asked for": other_name,
    "temperature": temperature,
    "reference": reference,
    "target": lambda _: {"target": TARGET.model_copy(update={"dtype": "float16"})},
}


@pytest.mark.parametrize("what", DIFFERS)
def test_evidence_is_not_reused_when_what_it_rests_on_differs(home, model, what):
    home.certify(model, Replayed())
    wanted = DIFFERS[what](home)
    engines = Replayed()
    assert home.certify(model, engines, **wanted).measured
    assert len(engines.started) == 2


def test_evidence_of_fewer_paths_or_other_weights_is_not_reused(home, model):
    home.edit(("paths: [prefill, decode-forced]", "paths: [prefill]"))
    home.certify(model, Replayed())
    home.edit(("paths: [prefill]", "paths: [prefill, decode-forced]"))
    assert home.certify(model, Replayed()).measured
    other = home.register(home.write_weights("others", 2))
    assert other.key.version == 2
    assert home.certify(other, Replayed()).measured


def test_a_certificate_whose_evidence_was_damaged_gives_none(home, model):
    first = home.certify(model, Replayed())
    path = home.objects.path(first.certificate.evidence)
    path.chmod(0o644)
    path.write_bytes(b"PAR1")
    assert home.certify(model, Replayed()).measured


MOVED = {
    "the contract": (lambda home: home.edit(('limit: "0.01"', 'limit: "1"')), r"the contract .* changed while"),
    "the contract, beyond reading": (
        lambda home: home.contract.write_text("kind: ["),
        r"the contract .* changed while",
    ),
    "the probe set": (lambda home: home.probes(chats(61)), "probes 'chats' was recorded anew"),
}


@pytest.mark.parametrize("what", MOVED)
def test_nothing_is_issued_when_an_input_moves_while_we_measure(home, model, what):
    move, message = MOVED[what]
    with pytest.raises(ConflictError, match=message) as caught:
        home.certify(model, Replayed(meanwhile=lambda: move(home)))
    assert caught.value.hint
    assert model.key not in home.state.attestations


def test_a_contract_recorded_anew_by_somebody_else_is_not_put_back(home, model):
    record = home.record()
    home.contract.unlink()

    def somebody_else() -> None:
        newer = record.model_copy(update={"digest": "sha256-contract-v1:" + "f" * 64})
        home.ledger.commit(lambda _state: [newer])

    with pytest.raises(ConflictError, match="contract 'tiny' was recorded anew"):
        home.certify(model, Replayed(meanwhile=somebody_else), contract=record)
    assert home.state.records["contract", "tiny"].digest.endswith("f" * 64)


def test_a_comment_edited_while_we_measure_is_no_change(home, model):
    engines = Replayed(meanwhile=lambda: home.edit(("kind:", "# a remark\nkind:")))
    assert home.certify(model, engines).certificate.verdict is Verdict.CERTIFIED


def test_weights_that_change_while_we_measure(home, model):
    def rewrite() -> None:
        (home.weights / "model.safetensors").write_bytes(b"other bytes")

    with pytest.raises(IntegrityError, match="weights of assistant/1"):
        home.certify(model, Replayed(meanwhile=rewrite))
    assert model.key not in home.state.attestations


def test_a_target_outside_the_contract_is_incomparable_before_any_engine_starts(home, model):
    with pytest.raises(IncomparableError, match="dtype: the contract allows bfloat16 or float16, the target has int8"):
        home.certify(model, NoEngines(), target=TARGET.model_copy(update={"dtype": "int8"}))
    home.edit((">=5", "<5"))
    with pytest.raises(IncomparableError, match="version: the contract allows <5"):
        home.certify(model, NoEngines())


def test_a_contract_nobody_can_meet_starts_no_engine(home, model):
    home.edit(("min_prompts: 60", "min_prompts: 3"))
    with pytest.raises(DefinitionError, match="can never be met"):
        home.certify(model, NoEngines())


def test_tampered_and_vanished_weights_start_no_engine(home, model):
    path = home.weights / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(IntegrityError, match="tensor weights changed"):
        home.certify(model, NoEngines())
    path.unlink()
    home.weights.rmdir()
    with pytest.raises(NotFoundError, match="weights of assistant/1"):
        home.certify(model, NoEngines())


def test_an_unknown_probe_set_names_those_there_are(home, model):
    with pytest.raises(NotFoundError, match="no probe set 'nobody'; there are: chats"):
        home.certify(model, NoEngines(), probes="nobody")


def test_an_unknown_reference_engine_is_a_malformed_contract(home, model):
    home.edit(("{engine: transformers, dtype: float32}", "{engine: abacus, dtype: float32}"))
    with pytest.raises(DefinitionError, match=r"reference.engine: expected vllm or transformers, found 'abacus'"):
        home.certify(model, NoEngines())


def test_a_reference_that_is_not_installed(home, model):
    home.edit(("dtype: float32}", "dtype: float32, interpreter: /nowhere/python}"))
    with pytest.raises(EngineUnavailableError, match="/nowhere/python did not say"):
        home.certify(model, NoEngines())


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({"dtype": "float16"}, "asked for dtype bfloat16, but float16 runs"),
        ({"vocabulary": 17}, "asked for vocabulary 16, but 17 runs"),
        ({"version": "0.0.1"}, "is installed at the target, but 0.0.1 ran"),
    ],
)
def test_an_engine_that_is_not_what_was_asked_for(home, model, runs, message):
    with pytest.raises(IncomparableError, match=message):
        home.certify(model, Replayed(runs=runs))
    assert model.key not in home.state.attestations


def test_full_logits_are_kept_on_request_with_the_evidence_they_belong_to(home, model):
    keeper = LogitsKeeper(home.root / "logits" / "one", NOW + timedelta(days=7))
    issued = home.certify(model, Replayed(), keeper=keeper)
    (kept_one,) = kept(home.root / "logits")
    assert kept_one.manifest.evidence == issued.certificate.evidence
    sides = {("reference", "prefill"), ("serving", "prefill"), ("serving", "decode-forced")}
    assert {tuple(key.split("/")[:2]) for key in kept_one.manifest.files} == sides
    assert len(kept_one.manifest.files) == 3 * 60
    rows = load_file(kept_one.folder / kept_one.manifest.files["reference/prefill/p7"])["reference/prefill/p7"]
    assert torch.equal(rows, REFERENCE["p7"])
    assert expire(home.root / "logits", NOW + timedelta(days=6)) == []
    assert expire(home.root / "logits", NOW + timedelta(days=8)) == [kept_one]
