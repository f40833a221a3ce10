"""A contract to start from: every part of the language once, with what it means beside it."""

from __future__ import annotations

from snapline.contracts.records import parse_contract
from snapline.lineage.errors import DefinitionError

_STARTER = """\
# A kernel contract: what a serving engine promises about its numbers, against which reference, and how surely.
# Check it with `snapline contract lint FILE`, read it in words with `snapline contract explain FILE`.
apiVersion: snapline/v1
kind: KernelContract
name: {name}
probes: chats                                     # prompts that stand for the traffic: snapline probes add chats
reference: {{engine: transformers, dtype: float32}} # whose numbers count as right
serving: {{engine: vllm, dtype: bfloat16}}          # what may serve; version: ">=0.30,<0.34" narrows it down
temperature: "1"                                  # logits are divided by it before anything is measured
confidence: "0.95"                                # family-wise: over every clause, slice and path

# prefill: a given answer scored in one pass. decode-forced: decoded, with its tokens forced.
# decode-sampled: the engine's own answers, scored again by the reference.
paths: [prefill, decode-forced, decode-sampled]

# Every clause must hold on every slice by itself, and a slice without enough prompts certifies nothing.
slices:
  - {{name: all, min_prompts: 200}}
  # - {{name: long, where: "prompt_tokens >= 1024", min_prompts: 200}}
  # - {{name: near-ties, where: "reference_margin < 0.25", unit: position, min_prompts: 200}}

numerical:
  half_span: {{quantile: "0.95", limit: "2"}}       # at most 5% of prompts may have a larger one anywhere

statistical:
  tv_token: "0.05"                                # of single tokens, on average
  tv_answer: {{horizon: 32, limit: "0.3"}}          # of whole answers: bounds the drift of any reward
  greedy_flip_rate: "0.10"                        # share of positions whose most likely token differs

runtime:
  batch_invariance: {{half_span: "1", at_most: "0.10"}} # `bitwise` is what a batch-invariant engine can promise

diagnostics: [kl, k3]                             # reported; unbounded, so never promised

# What a rollout needs: what must be logged, what a violation sets off, and the stages it goes through.
# observability: {{log: [sampled_logprob, margin, batch_size, cache_hit], max_age: 1d, retention: 30d}}
# escalation:
#   - {{when: refuted, do: [block, {{route_slice: reference}}, alert], cool_down: 1h}}
#   - {{when: undecided, do: [hold, remeasure]}}
# stages: {{offline: {{}}, shadow: {{traffic: "0.01"}}, canary: {{traffic: "0.05"}}, full: {{monitor: "0.01"}}}}
"""


def starter(name: str) -> str:
    """Return the text of a contract to start from.

    Raises:
        DefinitionError: The name cannot be one.
    """
    text = _STARTER.format(name=name)
    if parse_contract(text.encode(), "the new contract").name != name:
        raise DefinitionError(f"a contract cannot be named {name!r}", hint="Use letters, digits, dots and dashes.")
    return text
