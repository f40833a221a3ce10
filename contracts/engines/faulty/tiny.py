"""Tiny random models in memory: a Llama and a Mixtral, the same weights every time.

Weights are float32 numbers and computed with in float64, which `program` rounds to float32 once, at the end. So the
honest program is bitwise equal to itself however it batches, but for a logit in a million, while a single unit in the
last place of one weight shows. Norms and routers, which transformers always computes in float32, are computed in
float64 too.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

VOCABULARY = 256
CONTEXT = 512
RANK, STEP = 2, 0.1
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
    "attn_implementation": "sdpa",
}
TRAINED, STALE = 1, 0
"""Two steps of an adapter's training: the one that belongs to the snapshot, and the one before it."""


def tiny_model(*, experts: bool = False) -> Any:
    """Return the model, in evaluation mode, with its adapter merged; its distributions are far from flat."""
    model = deepcopy(_untouched(experts))
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _norm(module)
        elif type(module).__name__.endswith("TopKRouter"):
            module.forward = _router(module)
    for projection, delta in zip(adapted(model), adapter(model, TRAINED), strict=True):
        projection.weight.add_(delta)
    return model


@cache
def _untouched(experts: bool) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        if experts:
            mixture = {"num_local_experts": 8, "num_experts_per_tok": 2, "experts_implementation": "eager"}
            model: Any = MixtralForCausalLM(MixtralConfig(**_SHAPE, **mixture))
        else:
            model = LlamaForCausalLM(LlamaConfig(**_SHAPE))
    return model.double().eval().requires_grad_(False)


def _norm(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(hidden: torch.Tensor) -> torch.Tensor:
        mean_square = hidden.pow(2).mean(-1, keepdim=True)
        scaled: torch.Tensor = module.weight * (hidden * (mean_square + module.variance_epsilon).rsqrt())
        return scaled

    return forward


def _router(module: Any) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    def forward(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = hidden.reshape(-1, module.hidden_dim) @ module.weight.T
        shares, chosen = logits.softmax(-1).topk(module.top_k, -1)
        return logits, shares / shares.sum(-1, keepdim=True), chosen

    return forward


def adapted(model: Any) -> list[Any]:
    """Return the modules that an adapter changes: the queries' and values' projections of every layer."""
    layers = [layer.self_attn for layer in model.model.layers]
    return [projection for layer in layers for projection in (layer.q_proj, layer.v_proj)]


def adapter(model: Any, step: int) -> Sequence[torch.Tensor]:
    """Return what the adapter, of rank `RANK` each step, adds to each weight of `adapted` after a step of training."""
    import torch

    generator = torch.Generator().manual_seed(7)

    def low_rank(out: int, width: int) -> torch.Tensor:
        up, down = (torch.randn(shape, generator=generator) for shape in ((out, RANK), (RANK, width)))
        return 0.02 * up @ down

    def delta(shape: Sequence[int]) -> torch.Tensor:
        before, learned = low_rank(*shape), low_rank(*shape)
        return (before + STEP * step * learned).double()

    return [delta(projection.weight.shape) for projection in adapted(model)]
