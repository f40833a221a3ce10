from __future__ import annotations

import pytest
from certificates import certificate
from stored_evidence import chat_probes, stored_table

from snapline.contracts.errors import IncomparableError
from snapline.contracts.rejudge import rejudge
from snapline.contracts.verdict import Verdict
from snapline.lineage.errors import DefinitionError, IntegrityError

SMALL = (("min_prompts: 100", "min_prompts: 60"), ("bitwise}", "bitwise, at_most: 0.1}"))


@pytest.fixture
def held(contract):
    return contract(*SMALL)


@pytest.fixture
def probes():
    return chat_probes()


def test_evidence_without_a_fault_certifies_and_its_floor_is_told(held, probes):
    found = rejudge(held, probes, stored_table(held, probes))
    assert found.verdict is Verdict.CERTIFIED
    assert found.uncovered == ()
    assert found.noise_floor == {"half_span": "0.00001", "tv": "0.000002", "not_identical": "0", "prompts": "4"}


def test_faults_in_the_evidence_refute(held, probes):
    wrong = {identifier: {"tv": 0.5} for identifier in probes["id"].to_pylist()}
    found = rejudge(held, probes, stored_table(held, probes, {"serving": wrong}))
    assert found.verdict is Verdict.REFUTED
    assert [f.clause for f in found.judged.findings if f.verdict is Verdict.REFUTED] == ["tv_token"]


def test_another_contract_is_judged_on_the_same_evidence(held, probes, contract):
    strict = contract(*SMALL, ('quantile: "0.90"', 'quantile: "0.99"'))
    found = rejudge(strict, probes, stored_table(held, probes))
    assert found.verdict is Verdict.UNDECIDED


def test_slices_by_length_are_those_of_the_measurement(held, probes, contract):
    sliced = contract(*SMALL, ("60}", '60}\n  - {name: short, where: "prompt_tokens = 2", min_prompts: 60}'))
    findings = rejudge(sliced, probes, stored_table(held, probes)).judged.findings
    assert {(f.slice, f.prompts) for f in findings} == {("all", 60), ("short", 60)}


def test_evidence_on_other_probes_is_not_judged_and_both_digests_are_told(held, probes):
    evidence = stored_table(held, probes)
    with pytest.raises(IntegrityError) as caught:
        rejudge(held, chat_probes(answer="c"), evidence)
    assert caught.value.message.count("blake3-probes-v1:") == 2


def test_the_order_of_the_probes_means_nothing(held, probes):
    backwards = probes.take(list(range(59, -1, -1)))
    assert rejudge(held, backwards, stored_table(held, probes)).verdict is Verdict.CERTIFIED


def test_evidence_at_another_temperature_is_incomparable(held, probes, contract):
    warmer = contract(*SMALL, ("confidence:", 'temperature: "0.7"\nconfidence:'))
    with pytest.raises(IncomparableError, match=r"temperature 0\.7, the evidence of 1"):
        rejudge(warmer, probes, stored_table(held, probes))


def test_evidence_by_another_procedure_is_incomparable(held, probes):
    with pytest.raises(IncomparableError, match="divergence-v0"):
        rejudge(held, probes, stored_table(held, probes, recipe="divergence-v0"))


def test_what_was_not_measured_is_told_and_undecided(held, probes, contract):
    more = contract(
        *SMALL,
        ("[prefill]", "[prefill, decode-sampled]"),
        ("{tv_token", '{tv_answer: "0.3", tv_token'),
        ("runtime: {", "runtime: {latency_ratio: {at_most: 2}, "),
        ('quantile: "0.90"', 'quantile: "0.85"'),
        ("at_most: 0.1}", "at_most: 0.15}"),
    )
    found = rejudge(more, probes, stored_table(held, probes))
    assert found.verdict is Verdict.UNDECIDED
    assert found.uncovered == (
        "serving decode-sampled: 0 prompts of the 60 it asks for",
        "timing alone: 0 runs of the 30 it asks for",
    )
    undecided = {(f.clause, f.path) for f in found.judged.findings if f.verdict is Verdict.UNDECIDED}
    assert undecided >= {("tv_answer", "decode-sampled"), ("latency_ratio", "generation")}
    assert ("half_span", "prefill") not in undecided


@pytest.mark.parametrize("word", ["tv_answer", "sampler_drift"])
def test_answers_cut_shorter_than_the_promise_are_incomparable(contract, probes, word):
    def drawn(horizon):
        answers = f'{{{word}: {{horizon: {horizon}, limit: "0.3"}}, tv_token'
        return contract(*SMALL, ("[prefill]", "[decode-sampled, prefill]"), ("{tv_token", answers))

    evidence = stored_table(drawn(32), probes)
    assert rejudge(drawn(16), probes, evidence).uncovered == ()
    with pytest.raises(IncomparableError, match="up to 64 tokens, and the evidence holds ones that were cut at 32"):
        rejudge(drawn(64), probes, evidence)


def test_another_setting_of_a_self_check_is_incomparable(contract, probes):
    def with_threads(count):
        return contract(
            *SMALL, ("runtime: {", f"runtime: {{threads: {{against: {count}, half_span: 1, at_most: 0.2}}, ")
        )

    evidence = stored_table(with_threads(1), probes)
    rejudge(with_threads(1), probes, evidence)
    with pytest.raises(IncomparableError, match="threads=8, and the evidence threads prefill threads=1"):
        rejudge(with_threads(8), probes, evidence)


def test_engines_outside_the_contract_are_incomparable_where_a_certificate_says_what_ran(held, probes):
    evidence = stored_table(held, probes)
    assert rejudge(held, probes, evidence, certificate()).verdict is Verdict.CERTIFIED
    other = certificate(target_identity=certificate().target_identity.model_copy(update={"dtype": "float16"}))
    with pytest.raises(IncomparableError, match="dtype: the contract allows bfloat16, the target has float16"):
        rejudge(held, probes, evidence, other)
    unlike = certificate(reference=certificate().reference.model_copy(update={"dtype": "bfloat16"}))
    with pytest.raises(IncomparableError, match="reference dtype: the contract asks for float32"):
        rejudge(held, probes, evidence, unlike)


def test_a_slice_by_a_column_that_is_not_there_is_refused(contract, probes):
    sliced = contract(*SMALL, ("60}", "60}\n  - {name: part, where: \"tenant = 'a'\", min_prompts: 60}"))
    with pytest.raises(DefinitionError, match="part"):
        rejudge(sliced, probes, stored_table(sliced, probes))
