"""The faults there are, each with what it is in one sentence and how it gets into an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from snapline.contracts.engines.faulty import behaviour, weights
from snapline.contracts.engines.faulty.program import MemoryEngine
from snapline.contracts.engines.faulty.tiny import tiny_model
from snapline.contracts.engines.protocol import EngineSpec

Inject = Callable[[MemoryEngine], None]
SPEC = EngineSpec("transformers", "float64", threads=1)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, judged against the honest engine of the same model.

    Attributes:
        says: What is wrong, as a sentence.
        inject: Breaks an engine.
        experts: Whether the model is a mixture of experts.
        costs: Whether what the engine costs is measured too; it takes longest, and the other faults do not touch it.
        both: Whether the reference has it too: the snapshot itself is broken, and nothing is wrong with who serves it.
    """

    name: str
    says: str
    inject: Inject
    experts: bool = False
    costs: bool = False
    both: bool = False

    def reference(self) -> MemoryEngine:
        """Return the engine this fault is judged against."""
        return started(SPEC, self.inject if self.both else None, experts=self.experts)

    def serving(self, spec: EngineSpec = SPEC) -> MemoryEngine:
        """Return an engine with the fault."""
        return started(spec, self.inject, experts=self.experts)


def started(spec: EngineSpec = SPEC, inject: Inject | None = None, *, experts: bool = False) -> MemoryEngine:
    """Return an engine of a tiny model, honest unless something is injected."""
    engine = MemoryEngine(tiny_model(experts=experts), spec)
    if inject is not None:
        inject(engine)
    return engine


def _nothing(engine: MemoryEngine) -> None:
    """Leave the engine as it is."""


HONEST = (
    Fault("honest", "Nothing is wrong.", _nothing, costs=True),
    Fault("honest experts", "Nothing is wrong with the mixture of experts either.", _nothing, experts=True),
)
FAULTS = (
    Fault(
        "one ulp in the head",
        "One weight of the output head is the next float32 up.",
        weights.one_ulp_in_the_head,
    ),
    Fault("bf16 head", "The output head is computed in bfloat16.", weights.bf16_head),
    Fault("layer scale", "One layer's last projection is 1 % too large.", weights.scaled_layer),
    Fault("stale LoRA", "The adapter is that of the training step before.", weights.stale_adapter),
    Fault(
        "quantized router",
        "The routers of a mixture of experts are quantized to four bits.",
        weights.quantized_router,
        experts=True,
    ),
    Fault("overconfident", "The last norm's scale is half as large again.", weights.overconfident),
    Fault(
        "untrained head",
        "The snapshot's head was never trained, so every choice is nearly a tie, for the reference too.",
        weights.untrained_head,
        both=True,
    ),
    Fault("wrong KV scale", "Cached values are read with a scale 10 % too large.", behaviour.wrong_kv_scale),
    Fault("dropped token", "The first token of every prompt is lost.", behaviour.dropped_token),
    Fault("tokenizer off by one", "Every token is taken for the next one.", behaviour.tokens_off_by_one),
    Fault(
        "top-p renormalized",
        "Log-probabilities are those of the nucleus, renormalized, instead of raw logits.",
        behaviour.renormalized,
    ),
    Fault("temperature not applied", "Answers are drawn at temperature 1.", behaviour.temperature_ignored),
    Fault(
        "truncated sampler",
        "Answers are drawn from the three likeliest tokens, while the logits say otherwise.",
        behaviour.truncated_sampler,
    ),
    Fault("hacked reward", "Of six answers it gives the one that is rated highest.", behaviour.best_of_several),
    Fault("batch-dependent sums", "In a batch, a layer's sums are split in two.", behaviour.batch_dependent_sums),
    Fault("attended padding", "In a batch, shorter prompts see the padding before them.", behaviour.attended_padding),
    Fault(
        "order-dependent scale", "The first prompt of a batch sets the scale of all.", behaviour.order_dependent_scale
    ),
    Fault("run-to-run drift", "Sums are added up in another order every time.", behaviour.unordered_sums),
    Fault("poisoned prefix cache", "A prompt finds the keys and values of another.", behaviour.poisoned_prefix),
    Fault(
        "lost chunk boundary", "Pieces of a prompt miss the last token of the piece before.", behaviour.lost_boundary
    ),
    Fault("thread-dependent sums", "A layer's sums are split among threads.", behaviour.thread_dependent_sums),
    Fault("rounded all-reduce", "Devices send each other bfloat16.", behaviour.rounded_all_reduce),
    Fault("stale graph buffers", "A replayed graph keeps the positions it was captured with.", behaviour.stale_buffers),
    Fault("slow engine", "Every step is computed six times.", behaviour.slow, costs=True),
    Fault("leaking engine", "No keys and values are ever freed.", behaviour.leaking, costs=True),
)
