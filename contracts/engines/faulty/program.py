"""A model in memory, run honestly under every setting an engine can have, with its parts where a fault can reach them.

What other engines do on hardware is done here in its arithmetic: chunked prefill runs a prompt piece by piece over the
cache; tensor parallelism adds up what each of several shards of a layer gives; graph replay feeds one set of input
buffers for each shape.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path as FilePath
from time import thread_time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from snapline.contracts.engines.protocol import (
    Batching,
    Cache,
    EngineIdentity,
    EngineSpec,
    Path,
    ProbeItem,
    Sampled,
    Sampling,
    Timing,
)
from snapline.contracts.engines.transformers import Tokenizer, TransformersEngine

if TYPE_CHECKING:
    import torch

PIECE = 4
"""Tokens of a prompt that chunked prefill computes at a time."""
BUFFERED = ("input_ids", "position_ids")


def add_up(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of the shards' results, as devices agree on it."""
    return sum(parts[1:], start=parts[0])


def see_all(mask: torch.Tensor, at: int) -> torch.Tensor:  # noqa: ARG001
    """Return which tokens the pieces from column `at` on see: all before them."""
    return mask


class Program:
    """What an engine calls as its model.

    Attributes:
        forward: The forward pass itself.
        new_cache: Makes an empty cache of keys and values.
        add_up: Adds up the results of a layer's shards.
        boundary: Which tokens the next piece of a prompt sees.
        stale: Inputs that a replayed graph reads as they were when it was captured.
        kept: Caches that nobody freed.
        warm: Whether prefixes are being found in the cache.
    """

    def __init__(self, model: Any, spec: EngineSpec) -> None:
        self.model, self.spec = model, spec
        self.forward: Callable[..., Any] = model
        self.new_cache: Callable[[], Any] = _cache
        self.add_up, self.boundary = add_up, see_all
        self.stale: tuple[str, ...] = ()
        self.kept: list[Any] | None = None
        self.warm = False
        self.peak_bytes = 0
        self._buffers: dict[tuple[Any, ...], dict[str, torch.Tensor]] = {}
        self._caches: list[weakref.ref[Any]] = []
        self._weight_bytes = sum(weight.nbytes for weight in model.parameters())
        if spec.tensor_parallel > 1:
            self._share_layers(spec.tensor_parallel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, **inputs: Any) -> Any:
        """Run the model on a batch, over a cache if there is one."""
        if inputs["use_cache"] and inputs.get("past_key_values") is None:
            inputs["past_key_values"] = self._fresh_cache()
        if self.spec.cuda_graphs:
            inputs |= self._buffered(inputs)
        with _threads(self.spec.threads):
            run = self._in_pieces if self.spec.chunked_prefill else self.forward
            output = run(**inputs)
        output.logits = output.logits.float()
        self._count()
        return output

    def reset_peak(self) -> None:
        """Forget the most memory so far."""
        self.peak_bytes = 0

    def _in_pieces(self, **inputs: Any) -> Any:
        width = inputs["input_ids"].shape[1]
        if width <= PIECE:
            return self.forward(**inputs)
        import torch

        past = inputs.get("past_key_values")
        past = self._fresh_cache() if past is None else past
        mask, keep = inputs["attention_mask"], inputs.get("logits_to_keep", 0)
        before = mask.shape[1] - width
        logits = []
        for at in range(0, width, PIECE):
            to = min(at + PIECE, width)
            output = self.forward(
                input_ids=inputs["input_ids"][:, at:to],
                position_ids=inputs["position_ids"][:, at:to],
                attention_mask=mask[:, : before + to],
                past_key_values=past,
                use_cache=True,
            )
            logits.append(output.logits)
            mask = self.boundary(mask, before + to)
        return SimpleNamespace(logits=torch.cat(logits, 1)[:, -keep:], past_key_values=past)

    def _buffered(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the input buffers of the graph for these shapes, with these inputs copied into them."""
        given = {name: inputs[name] for name in BUFFERED}
        key = tuple(tuple(tensor.shape) for tensor in given.values())
        if key not in self._buffers:
            self._buffers[key] = {name: tensor.clone() for name, tensor in given.items()}
        buffers = self._buffers[key]
        for name, tensor in given.items():
            if name not in self.stale:
                buffers[name].copy_(tensor)
        return buffers

    def _share_layers(self, devices: int) -> None:
        import torch
        from torch.nn.functional import linear

        def shared(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
            def forward(x: torch.Tensor) -> torch.Tensor:
                shards = zip(x.chunk(devices, -1), weight.chunk(devices, -1), strict=True)
                return self.add_up([linear(part, columns) for part, columns in shards])

            return forward

        layers: Mapping[str, Any] = dict(self.model.named_modules())
        for name, layer in layers.items():
            if isinstance(layer, torch.nn.Linear) and name.endswith(("o_proj", "down_proj")):
                layer.forward = shared(layer.weight)  # type: ignore[assignment, method-assign]

    def _fresh_cache(self) -> Any:
        cache = self.new_cache()
        self._caches.append(weakref.ref(cache))
        if self.kept is not None:
            self.kept.append(cache)
        return cache

    def _count(self) -> None:
        """Note how much is held: the weights, and the keys and values of every cache that is still there."""
        there = [cache for one in self._caches if (cache := one()) is not None]
        self._caches = [weakref.ref(cache) for cache in there]
        layers = [layer for cache in there for layer in cache.layers if layer.is_initialized]
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
        self.peak_bytes = max(self.peak_bytes, self._weight_bytes + held)


class MemoryEngine(TransformersEngine):
    """An engine of a model in memory.

    It shares its process with the engine it is compared with, and the machine with whatever else runs. So its seconds
    are those its own thread computed, warming up included, and its peak memory is that of its own weights, keys and
    values.

    Attributes:
        program: How the model runs.
        rewrite: What becomes of an item before it runs.
        draw: Draws answers, where they are not drawn as asked.
    """

    def __init__(self, model: Any, spec: EngineSpec) -> None:
        self.program = Program(model, spec)
        super().__init__(spec, self.program, Tokenizer(FilePath()), lambda _: None)
        self.rewrite: Callable[[ProbeItem], ProbeItem] = lambda item: item
        self.draw: Callable[..., Mapping[str, Sampled]] = self.sample_as_asked

    def score(
        self, items: Sequence[ProbeItem], path: Path, batching: Batching, cache: Cache = Cache.COLD
    ) -> Mapping[str, torch.Tensor]:
        """Return raw logits by prompt id; see `Engine.score`."""
        self.program.warm = cache is Cache.WARM
        return super().score([self.rewrite(item) for item in items], path, batching, cache)

    def sample(
        self, items: Sequence[ProbeItem], sampling: Sampling, batching: Batching, cache: Cache = Cache.COLD
    ) -> Mapping[str, Sampled]:
        """Return the answers the engine draws; see `Engine.sample`."""
        self.program.warm = cache is Cache.WARM
        return self.draw(items, sampling, batching, cache)

    def sample_as_asked(
        self, items: Sequence[ProbeItem], sampling: Sampling, batching: Batching, cache: Cache = Cache.COLD
    ) -> Mapping[str, Sampled]:
        """Draw as an honest engine does."""
        return super().sample([self.rewrite(item) for item in items], sampling, batching, cache)

    def timed(self, items: Sequence[ProbeItem], max_tokens: int, batching: Batching) -> Sequence[Timing]:
        """Return how long greedy answers took, as one batch; see `Engine.timed`."""
        self.program.reset_peak()
        start = thread_time()
        timings = super().timed(items, max_tokens, batching)
        seconds = (thread_time() - start) / len(timings)
        return [replace(one, seconds=seconds, peak_bytes=self.program.peak_bytes) for one in timings]

    @cached_property
    def identity(self) -> EngineIdentity:
        """What really runs."""
        return super().identity


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: two engines in one process share its cores, and more threads change sums."""
    with _threads(1):
        yield


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    if count is not None and count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def _cache() -> Any:
    from transformers import DynamicCache

    return DynamicCache()
