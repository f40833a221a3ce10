"""Faults of the program: the weights are right, and what is done with them is not.

Each changes one part of how an engine runs its model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from snapline.contracts.engines.protocol import Batching, Cache, Path, ProbeItem, Sampled, Sampling

if TYPE_CHECKING:
    import torch

    from snapline.contracts.engines.faulty.program import MemoryEngine

KV_SCALE = 1.1
NUCLEUS = 0.9
LIKELIEST = 3
DRAWS = 6
PASSES = 6
INT8 = 127


def wrong_kv_scale(engine: MemoryEngine) -> None:
    """Read cached values with another scale than the one they were written with."""
    import torch
    from transformers import DynamicCache

    class Rescaled(DynamicCache):  # type: ignore[misc]
        def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
            keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
            found = values[..., : -value_states.shape[-2], :] * KV_SCALE
            return keys, torch.cat([found, value_states], -2)

    engine.program.new_cache = Rescaled


def batch_dependent_sums(engine: MemoryEngine) -> None:
    """Split the sums of the last layer's projection in batches, and keep the parts in bfloat16."""
    _replace_projection(engine, lambda x, weight: _in_parts(x, weight, 2 if len(x) > 1 else 1))


def thread_dependent_sums(engine: MemoryEngine) -> None:
    """Split the same sums among the threads, and keep the parts in bfloat16."""
    import torch

    _replace_projection(engine, lambda x, weight: _in_parts(x, weight, torch.get_num_threads()))


def _replace_projection(engine: MemoryEngine, product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    projection = engine.program.model.model.layers[-1].mlp.down_proj
    projection.forward = lambda x: product(x, projection.weight)


def _in_parts(x: torch.Tensor, weight: torch.Tensor, parts: int) -> torch.Tensor:
    """Return x @ weight.T; in several parts each is rounded to bfloat16 before they are added up."""
    if parts == 1:
        return x @ weight.T
    summed = [a @ b.T for a, b in zip(x.chunk(parts, -1), weight.chunk(parts, -1), strict=True)]
    return _rounded_sum(summed)


def _rounded_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return sum((part.bfloat16().double() for part in parts[1:]), start=parts[0].bfloat16().double())


def rounded_all_reduce(engine: MemoryEngine) -> None:
    """Send what the shards of a layer give in bfloat16."""
    engine.program.add_up = _rounded_sum


def attended_padding(engine: MemoryEngine) -> None:
    """Let prompts see the padding before them, of which there is more the longer the others of the batch are."""
    run = engine.program.forward

    def forward(**inputs: Any) -> Any:
        return run(**(inputs | {"attention_mask": inputs["attention_mask"].clone().fill_(1)}))

    engine.program.forward = forward


def order_dependent_scale(engine: MemoryEngine) -> None:
    """Quantize the head's inputs to eight bits, with the scale of the first prompt of the batch."""
    head = engine.program.model.lm_head

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        scale = hidden[0].abs().amax() / INT8
        logits: torch.Tensor = ((hidden / scale).round().clamp(-INT8, INT8) * scale) @ head.weight.T
        return logits

    head.forward = forward


def unordered_sums(engine: MemoryEngine) -> None:
    """Add up in float32 and in another order on every run, as atomic additions do."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        order = torch.randperm(x.shape[-1], generator=generator)
        return (x[..., order].float() @ weight[:, order].T.float()).double()

    _replace_projection(engine, product)


def poisoned_prefix(engine: MemoryEngine) -> None:
    """Find the keys and values of the next prompt of the batch."""
    run = engine.program.forward
    poisoned: list[Any] = []

    def forward(**inputs: Any) -> Any:
        found = inputs.get("past_key_values")
        if engine.program.warm and found is not None and found.get_seq_length() and found not in poisoned:
            for layer in found.layers:
                layer.keys, layer.values = layer.keys.roll(1, 0), layer.values.roll(1, 0)
            poisoned[:] = [found]
        return run(**inputs)

    engine.program.forward = forward


def lost_boundary(engine: MemoryEngine) -> None:
    """Hide the last token of each piece of a prompt from the pieces after it."""

    def boundary(mask: torch.Tensor, at: int) -> torch.Tensor:
        seen = mask.clone()
        seen[:, at - 1] = 0
        return seen

    engine.program.boundary = boundary


def stale_buffers(engine: MemoryEngine) -> None:
    """Replay graphs with the positions of the batch they were captured on."""
    engine.program.stale = ("position_ids",)


def tokens_off_by_one(engine: MemoryEngine) -> None:
    """Look every token up one row too far in the embedding."""
    embedding = engine.program.model.model.embed_tokens
    embedding.forward = lambda ids: embedding.weight[(ids + 1) % len(embedding.weight)]


def dropped_token(engine: MemoryEngine) -> None:
    """Lose the first token of every prompt."""
    engine.rewrite = lambda item: replace(item, prompt=item.prompt[1:])


def renormalized(engine: MemoryEngine) -> None:
    """Hand over the log-probabilities of the nucleus that is drawn from, instead of raw logits."""
    import torch

    run = engine.program.forward

    def forward(**inputs: Any) -> Any:
        output = run(**inputs)
        chances, order = output.logits.softmax(-1).sort(-1, descending=True)
        beyond = chances.cumsum(-1) - chances >= NUCLEUS
        masked = torch.empty_like(beyond).scatter_(-1, order, beyond)
        output.logits = output.logits.masked_fill(masked, -torch.inf).log_softmax(-1)
        return output

    engine.program.forward = forward


def temperature_ignored(engine: MemoryEngine) -> None:
    """Draw at temperature 1, whatever was asked for."""
    honest = engine.sample_as_asked
    engine.draw = lambda items, sampling, *how: honest(items, replace(sampling, temperature=1.0), *how)


def truncated_sampler(engine: MemoryEngine) -> None:
    """Draw from the likeliest few tokens only, and report the logits of all."""
    import torch

    run = engine.program.forward

    def likeliest(**inputs: Any) -> Any:
        output = run(**inputs)
        least = output.logits.topk(LIKELIEST, -1).values[..., -1:]
        output.logits = output.logits.masked_fill(output.logits < least, -torch.inf)
        return output

    def draw(items: Sequence[ProbeItem], sampling: Sampling, batching: Batching, cache: Cache) -> Mapping[str, Sampled]:
        engine.program.forward = likeliest
        drawn = engine.sample_as_asked(items, sampling, batching, cache)
        engine.program.forward = run
        answered = [replace(item, answer=drawn[item.id].tokens) for item in items if item.id in drawn]
        raw = engine.score(answered, Path.DECODE_FORCED, batching, cache)
        return {identifier: replace(drawn[identifier], logits=logits) for identifier, logits in raw.items()}

    engine.draw = draw


def best_of_several(engine: MemoryEngine) -> None:
    """Draw several answers and hand over the one the engine itself rates highest, as a hacked reward would have it."""

    def rating(answer: Sampled, temperature: float) -> float:
        import torch

        logps = (answer.logits / temperature).log_softmax(-1)
        return float(logps.gather(-1, torch.tensor(answer.tokens).unsqueeze(-1)).mean())

    def draw(items: Sequence[ProbeItem], sampling: Sampling, *how: Any) -> Mapping[str, Sampled]:
        seeds = range(sampling.seed, sampling.seed + DRAWS)
        several = [engine.sample_as_asked(items, replace(sampling, seed=seed), *how) for seed in seeds]
        return {
            identifier: max((one[identifier] for one in several), key=lambda a: rating(a, sampling.temperature))
            for identifier in several[0]
        }

    engine.draw = draw


def slow(engine: MemoryEngine) -> None:
    """Run every step several times over."""
    run = engine.program.forward

    def forward(**inputs: Any) -> Any:
        seen = inputs["attention_mask"][:, -inputs["input_ids"].shape[1] :]
        for _ in range(PASSES - 1):
            run(**(inputs | {"past_key_values": None, "use_cache": False, "attention_mask": seen}))
        return run(**inputs)

    engine.program.forward = forward


def leaking(engine: MemoryEngine) -> None:
    """Free no keys and values."""
    engine.program.kept = []
