"""`snapline contract selftest`: every fault is caught, every clause catches one, and the honest engines pass."""

from __future__ import annotations

import os
from typing import Any

import pytest
from journeys import ROOT, Snapline

OWN_CONTROL = {
    "half_span": "one ulp in the head",
    "log_ratio": "bf16 head",
    "tv_token": "quantized router",
    "tv_answer": "dropped token",
    "sampler_drift": "temperature not applied",
    "reward_drift": "dropped token",
    "measured_drift": "temperature not applied",
    "policy_gradient_bias": "tokenizer off by one",
    "greedy_flip_rate": "tokenizer off by one",
    "flip_exposure": "untrained head",
    "greedy_divergence": "wrong KV scale",
    "calibration_drift": "overconfident",
    "batch_invariance": "batch-dependent sums",
    "order": "order-dependent scale",
    "repeat": "run-to-run drift",
    "prefix_cache": "poisoned prefix cache",
    "chunked_prefill": "lost chunk boundary",
    "threads": "thread-dependent sums",
    "tensor_parallel": "rounded all-reduce",
    "cuda_graphs": "stale graph buffers",
    "latency_ratio": "slow engine",
    "throughput_ratio": "slow engine",
    "peak_memory_ratio": "leaking engine",
}
"""The faulty engine that each clause was given as its negative control."""
DEMANDED = (
    "one ulp in the head",
    "bf16 head",
    "wrong KV scale",
    "stale LoRA",
    "batch-dependent sums",
    "dropped token",
    "temperature not applied",
    "top-p renormalized",
    "tokenizer off by one",
    "poisoned prefix cache",
    "quantized router",
    "layer scale",
)
LENIENT = """\
apiVersion: snapline/v1
kind: KernelContract
name: lenient
probes: chats
reference: {engine: transformers, dtype: float32}
serving: {engine: vllm, dtype: bfloat16}
confidence: "0.95"
paths: [prefill]
slices:
  - {name: long, where: "prompt_tokens >= 1024", min_prompts: 200}
numerical: {half_span: {quantile: "0.8", limit: "1"}}
statistical: {tv_token: "0.99"}
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    snapline = Snapline(tmp_path_factory.mktemp("selftest"), os.environ | {"PYTHONPATH": str(ROOT / ".namespace")})
    document: dict[str, Any] = snapline.ok("contract", "selftest")
    return document


def refuted_by(found: dict[str, Any], fault: str) -> list[str]:
    (engine,) = [engine for engine in found["engines"] if engine["fault"] == fault]
    clauses: list[str] = engine["refuted_by"]
    return clauses


def test_it_passes(found: dict[str, Any]) -> None:
    assert found["passed"]
    assert found["problems"] == []
    assert found["prompts"] == 120


def test_every_fault_is_refuted_by_a_clause(found: dict[str, Any]) -> None:
    faults = [engine["fault"] for engine in found["engines"] if not engine["honest"]]
    assert set(DEMANDED) <= set(faults)
    assert [fault for fault in faults if not refuted_by(found, fault)] == []


def test_every_clause_refutes_its_own_negative_control(found: dict[str, Any]) -> None:
    clauses = {key.split(" ")[0] for engine in found["engines"] for key in engine["verdicts"]}
    assert clauses == set(OWN_CONTROL)
    assert [clause for clause, fault in OWN_CONTROL.items() if clause not in refuted_by(found, fault)] == []


def test_a_fault_of_the_sampler_alone_is_seen_by_what_it_draws(found: dict[str, Any]) -> None:
    """Its logits are those of the honest engine, and every other clause reads logits alone."""
    for fault in ("temperature not applied", "truncated sampler"):
        assert refuted_by(found, fault) == ["sampler_drift", "measured_drift"]
    assert refuted_by(found, "hacked reward") == ["measured_drift"]


def test_the_honest_engines_are_certified_by_every_cell_that_is_measured(found: dict[str, Any]) -> None:
    honest = {engine["fault"]: engine["verdicts"] for engine in found["engines"] if engine["honest"]}
    assert set(honest["honest"].values()) == {"CERTIFIED"}
    timed = {"latency_ratio generation", "throughput_ratio generation", "peak_memory_ratio generation"}
    left = {cell for cell, verdict in honest["honest experts"].items() if verdict != "CERTIFIED"}
    assert left == timed


def test_a_contract_of_ones_own_is_told_what_it_would_let_pass(snapline: Snapline) -> None:
    (snapline.folder / "lenient.yaml").write_text(LENIENT)
    answer = snapline("contract", "selftest", "lenient.yaml", "--prompts", "40")
    assert answer.code == 1
    assert "tv_token refutes no fault whatever the number of prompts" in answer.out
    assert "no clause refutes the fault 'layer scale'" in answer.out
    assert "half_span refutes" not in answer.out
    assert "honest" in answer.err


def test_lint_names_a_clause_that_no_known_fault_breaks(snapline: Snapline) -> None:
    loose = 'runtime: {batch_invariance: {half_span: "15", at_most: "0.2", sample: 40}}'
    (snapline.folder / "loose.yaml").write_text(LENIENT[: LENIENT.index("numerical:")] + loose)
    assert snapline("contract", "lint", "loose.yaml").out == "loose.yaml: nothing wrong\n"
    answer = snapline("contract", "lint", "loose.yaml", "--faults")
    assert "runtime.batch_invariance: allowed is 0.2, and the worst of the known faults shows 0: none" in answer.out
