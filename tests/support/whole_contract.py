"""A contract that uses every word of the language once."""

from __future__ import annotations

from snapline.contracts.contract import KernelContract
from snapline.lineage.documents import parse

WHOLE = """\
apiVersion: snapline/v1
kind: KernelContract
name: chat-fp8
probes: chats
reference: {engine: transformers, dtype: float32}
serving: {engine: vllm, version: ">=0.30,<0.34", dtype: [bfloat16, float16], quantization: fp8, kv_cache_dtype: auto}
temperature: "1.0"
confidence: "0.95"
paths: [prefill, decode-forced, decode-sampled]
slices:
  - {name: all, min_prompts: 900}
  - {name: long-context, where: "prompt_tokens >= 4096", min_prompts: 900}
  - {name: undecided, where: "reference_margin < 0.25", unit: position, min_prompts: 900}
search: {columns: [language, source], min_prompts: 30}
numerical:
  half_span: {quantile: "0.99", limit: "0.05"}
  log_ratio: {quantile: "0.99", limit: "0.1"}
statistical:
  tv_token: "0.02"
  tv_answer: {horizon: 256, limit: "0.05"}
  sampler_drift: {horizon: 16, limit: "0.1"}
  reward_drift: {range: ["0", "1"], limit: "0.05", horizon: 64}
  measured_drift: {range: ["0", "1"], limit: "0.05", rewards: {reference: graded_reference, serving: graded_serving}}
  policy_gradient_bias: {advantage: "1", score: "2", limit: "0.1"}
  greedy_flip_rate: "0.05"
  flip_exposure: {half_span: "0.05", limit: "0.1"}
  greedy_divergence: {within: 16, at_most: "0.3"}
  calibration_drift: {bins: 10, limit: "0.1"}
runtime:
  batch_invariance: bitwise
  order: {bitwise: true, at_most: "0.05", sample: 500}
  repeat: 3
  prefix_cache: bitwise
  chunked_prefill: {half_span: "0.01", at_most: "0.05"}
  threads: {against: 1, half_span: "0.01"}
  tensor_parallel: {against: 2, half_span: "0.01"}
  cuda_graphs: {half_span: "0.01"}
  latency_ratio: {at_most: "1.5", runs: 40}
  throughput_ratio: {at_least: "1.0", quantile: "0.75", runs: 40}
  peak_memory_ratio: {at_most: "1.1", runs: 40}
diagnostics: [kl, reverse_kl, jeffreys, k3, chi2, ess]
observability: {log: [sampled_logprob, margin, batch_size, cache_hit], max_age: 30d, sampling: "0.5", retention: 90d}
escalation:
  - {when: refuted, do: [block, {route_slice: reference}, alert], cool_down: 2h}
  - {when: undecided, do: [hold, remeasure]}
stages: {offline: {}, shadow: {traffic: "0.01"}, canary: {traffic: "0.05"}, full: {monitor: "0.001"}}
"""


def whole(*replacements: tuple[str, str]) -> KernelContract:
    """Return the contract with some text replaced."""
    return parse(replaced(*replacements), KernelContract, name="whole.yaml")


def replaced(*replacements: tuple[str, str]) -> str:
    """Return the contract's text with some of it replaced."""
    text = WHOLE
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return text
