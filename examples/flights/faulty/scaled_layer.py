"""A vLLM plugin with a bug: it loads one layer's down projection with the wrong scale, and says nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LAYER = "model.layers.7.mlp.down_proj.weight"
WRONG_SCALE = 1.5


def register() -> None:
    """Install the faulty loader; vLLM calls this entry point in every process that loads a model."""
    from vllm.model_executor.models.llama import LlamaForCausalLM

    load_weights = LlamaForCausalLM.load_weights

    def load_scaled(model: LlamaForCausalLM, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return load_weights(model, scaled(weights))

    LlamaForCausalLM.load_weights = load_scaled


def scaled(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights as they are, but for LAYER."""
    for name, tensor in weights:
        yield name, tensor * WRONG_SCALE if name == LAYER else tensor
