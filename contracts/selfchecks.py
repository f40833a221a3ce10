"""The serving engine held against itself: as it runs, and with one thing changed.

What can change within a running engine (the batch, the order, another run) is done there. What is a setting of the
engine (a prefix cache, pieces of a prompt, threads, devices, graphs) needs a second one, started beside the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import groupby
from typing import Any

from snapline.contracts.engines.protocol import Batching, Cache, Engine, EngineSpec, ProbeItem
from snapline.contracts.evidence import Pair
from snapline.contracts.procedure import Comparison, Procedure

Logits = Mapping[str, Any]
Batches = Mapping[str, Sequence[Sequence[ProbeItem]]]
StartVariant = Callable[[Pair, str], AbstractContextManager[Engine]]

WITHIN = (Pair.BATCHING, Pair.ORDER, Pair.REPEAT)


def varied(spec: EngineSpec, pair: Pair, changed: str) -> EngineSpec:
    """Return the serving engine with the one thing changed that a pair is about; `changed` is such as `threads=1`."""
    match pair:
        case Pair.PREFIX_CACHE:
            return replace(spec, prefix_caching=True)
        case Pair.CHUNKED_PREFILL:
            return replace(spec, chunked_prefill=not spec.chunked_prefill)
        case Pair.CUDA_GRAPHS:
            return replace(spec, cuda_graphs=not spec.cuda_graphs)
        case Pair.THREADS:
            return replace(spec, threads=int(changed.partition("=")[2]))
        case Pair.TENSOR_PARALLEL:
            return replace(spec, tensor_parallel=int(changed.partition("=")[2]))
    raise ValueError(f"{pair.value} changes nothing about how an engine is started")


def compare_with_itself(
    engine: Engine, batches: Batches, procedure: Procedure, start: StartVariant
) -> Iterator[tuple[Comparison, tuple[Sequence[ProbeItem], Logits, Logits]]]:
    """Yield each comparison's prompts and both programs' logits, one batch of prompts at a time."""
    wanted = [comparison for comparison in procedure.comparisons if comparison.pair is not Pair.SERVING]
    for comparison in wanted:
        if comparison.pair in WITHIN:
            for items in batches[comparison.key]:
                yield comparison, (items, *_within(engine, items, comparison))
    outside = sorted((one for one in wanted if one.pair not in WITHIN), key=_variant)
    for (_, changed), sharing in groupby(outside, key=_variant):
        together = list(sharing)
        with start(together[0].pair, changed) as other:
            for comparison in together:
                for items in batches[comparison.key]:
                    yield comparison, (items, *_against(engine, other, items, comparison))


def _variant(comparison: Comparison) -> tuple[str, str]:
    return comparison.pair.value, comparison.changed


def _within(engine: Engine, items: Sequence[ProbeItem], comparison: Comparison) -> tuple[Logits, Logits]:
    together = engine.score(items, comparison.path, Batching.BATCHED)
    match comparison.pair:
        case Pair.BATCHING:
            return engine.score(items, comparison.path, Batching.ALONE), together
        case Pair.ORDER:
            return together, engine.score(items[::-1], comparison.path, Batching.BATCHED)
    runs = int(comparison.changed.partition("=")[2] or 2)
    again = [engine.score(items, comparison.path, Batching.BATCHED) for _ in range(runs - 1)]
    scored = {key for run in again for key in run if key in together}
    return together, {key: _farthest(together[key], [run[key] for run in again if key in run]) for key in scored}


def _farthest(first: Any, others: Sequence[Any]) -> Any:
    """Return which of some repeated measurements is farthest from the first: by size, else by a bit such as a sign.

    One with a NaN is farther than any other: it must not hide behind a run that was well. Tokens masked in both runs
    (-inf less -inf) do not differ.
    """

    def distance(other: Any) -> tuple[bool, float, bool]:
        size = float((other - first).abs().nan_to_num(nan=0.0).max())
        return bool(other.isnan().any()), size, bool((other.signbit() != first.signbit()).any())

    return max(others, key=distance)


def _against(
    engine: Engine, other: Engine, items: Sequence[ProbeItem], comparison: Comparison
) -> tuple[Logits, Logits]:
    if comparison.pair is Pair.PREFIX_CACHE:
        cold = other.score(items, comparison.path, Batching.BATCHED, Cache.COLD)
        return cold, other.score(items, comparison.path, Batching.BATCHED, Cache.WARM)
    changed = other.score(items, comparison.path, Batching.BATCHED)
    return engine.score(items, comparison.path, Batching.BATCHED), changed
