"""How fast every logit comes out of vLLM, and how much memory it takes to go through more and more of them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from snapline.cli.benchmarks.kernels import not_run, rounds
from snapline.cli.benchmarks.measuring import Row
from snapline.contracts.engines.memory import peak_bytes

CAPTURED, DICTS, FLAT = "captured where they are computed", "prompt_logprobs=-1, dicts", "prompt_logprobs=-1, flat"
PROMPTS, CHUNK, GROWTH = 4, 8, 4
FASTER, GROWN = 4.0, 1.1
_MIB = 1 << 20
_TOKENS = 64


def measure(model: Path | None) -> list[Row]:
    """Return how fast each way hands over full-vocabulary rows, and what chunk after chunk of them takes in memory.

    It all runs in one process of its own, with one vLLM in it.

    Args:
        model: A folder with a Hugging Face checkpoint.
    """
    if model is None:
        return [not_run("capture", "full-vocabulary logits out of vLLM: no --model was given")]
    from snapline.contracts.engines.vllm import ENVIRONMENT

    argv = [sys.executable, "-m", "snapline.cli.benchmarks.capture", str(model)]
    done = subprocess.run(argv, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    few, many = (peak / _MIB for peak in told["peaks"])
    ratio, what = many / few, f"{CHUNK * 2 * GROWTH} prompts in chunks of {CHUNK}: peak memory"
    return [
        *_speeds(told["rows"], told["seconds"]),
        Row("capture", f"{CHUNK * 2} prompts in chunks of {CHUNK}: peak memory", few, "MiB"),
        Row("capture", what, many, "MiB", ratio, "a quarter of them", f"under {GROWN}x", ratio < GROWN),
        Row("capture", "rows captured that are those of the dicts, bit by bit", float(told["same"]), "of 1"),
        Row("exact", "KL of a model's own logits, off by: Snapline", told["off"], "of itself"),
    ]


def _speeds(count: int, seconds: dict[str, list[float]]) -> list[Row]:
    """Return a row for each way; ratios are medians of the rounds', and the capture is to be faster than either."""
    found = []
    for way, times in seconds.items():
        speed = count / statistics.median(times)
        for other, least in ((DICTS, FASTER), (FLAT, 1.0)) if way == CAPTURED else ((DICTS, 0.0),):
            ratio = statistics.median(theirs / mine for mine, theirs in zip(times, seconds[other], strict=True))
            target, met = (f"over {least:g}x", ratio > least) if least else ("", None)
            found.append(Row("capture", way, speed, "rows/s", ratio, other, target, met))
    return found


def _sentences(model: Path, count: int) -> list[list[int]]:
    """Return token ids of as many sentences, each of more than one token."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    texts = [
        f"Flight {100 + n} from Newark to Seattle left {n} minutes late, and arrived on time." for n in range(count)
    ]
    return [tokenizer.encode(text, add_special_tokens=False)[:_TOKENS] for text in texts]


def _capture(model: Path) -> dict[str, Any]:
    """Go through more and more prompts in chunks, then time each way on the same few, less their first tokens."""
    from snapline.contracts.engines.protocol import Batching, EngineSpec, ProbeItem
    from snapline.contracts.engines.protocol import Path as ScoringPath
    from snapline.contracts.engines.vllm import load
    from snapline.contracts.kernels import reference as plain
    from snapline.contracts.kernels.choose import divergence

    sentences = _sentences(model, CHUNK * 2 * GROWTH)
    items = [ProbeItem(str(n), tuple(ids[:1]), tuple(ids[1:])) for n, ids in enumerate(sentences)]
    engine = load(EngineSpec("vllm", "bfloat16", context_tokens=_TOKENS), model, lambda _: None)

    def scored(some: Sequence[ProbeItem]) -> dict[str, Any]:
        return dict(engine.score(some, ScoringPath.PREFILL, Batching.BATCHED))

    peaks = []
    for count in (CHUNK * 2, CHUNK * 2 * GROWTH):
        for first in range(0, count, CHUNK):
            logits = scored(items[first : first + CHUNK])
            for item in items[first : first + CHUNK]:
                divergence(logits[item.id].float(), logits[item.id], item.answer)
        peaks.append(peak_bytes("cpu"))
    left = scored(items[:1])["0"]
    found, exact = (kernel(left, left.float() * 1.001, items[0].answer) for kernel in (divergence, plain.divergence))
    off = (found.kl_reference_serving / exact.kl_reference_serving - 1).abs().max()
    ways: dict[str, Callable[[], Any]] = {CAPTURED: lambda: scored(items[:PROMPTS])}
    ways |= _log_probs(engine, sentences[:PROMPTS])
    same = _alike(left, _log_probs(engine, sentences[:1])[DICTS]()[0].prompt_logprobs[1:])
    rows = sum(len(item.answer) for item in items[:PROMPTS])
    return {"peaks": peaks, "off": float(off), "same": same, "rows": rows, "seconds": rounds(ways, 3)}


def _log_probs(engine: Any, prompts: Sequence[Sequence[int]]) -> dict[str, Callable[[], Any]]:
    """Return vLLM's own ways to the same positions; an engine otherwise refuses to answer with so many."""
    from vllm import SamplingParams

    llm = engine._llm
    llm.llm_engine.vllm_config.model_config.max_logprobs = -1
    requests = [{"prompt_token_ids": list(ids)} for ids in prompts]

    def asked(flat: bool) -> Callable[[], Any]:
        parameters = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=-1, flat_logprobs=flat, detokenize=False, ignore_eos=True
        )
        return lambda: llm.generate(requests, parameters, use_tqdm=False)

    return {DICTS: asked(flat=False), FLAT: asked(flat=True)}


def _alike(captured: Any, told: Sequence[Any]) -> bool:
    """Return whether vLLM told, token by token, the very logits that were captured."""
    rows = [[row[token].logprob for token in range(captured.shape[1])] for row in told]
    return bool(captured.float().tolist() == rows)


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(_capture(Path(sys.argv[1]))) + "\n")
