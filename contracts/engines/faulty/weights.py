"""Faults of the weights: what is loaded is not what was trained.

Each changes the model of an engine in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from snapline.contracts.engines.faulty.tiny import STALE, TRAINED, adapted, adapter

if TYPE_CHECKING:
    import torch

    from snapline.contracts.engines.faulty.program import MemoryEngine

ROUTER_LEVELS = 7
LAYER_SCALE = 1.01
CONFIDENCE = 1.5
UNTRAINED = 1e-6


def one_ulp_in_the_head(engine: MemoryEngine) -> None:
    """Move the head's largest weight to the next float32."""
    import torch

    head = engine.program.model.lm_head.weight
    largest = torch.unravel_index(head.abs().argmax(), head.shape)
    head[largest] = torch.nextafter(head[largest].float(), torch.tensor(torch.inf)).double()


def bf16_head(engine: MemoryEngine) -> None:
    """Multiply with the head in bfloat16."""
    head = engine.program.model.lm_head
    narrow = head.weight.bfloat16()
    head.forward = lambda hidden: (hidden.bfloat16() @ narrow.T).double()


def scaled_layer(engine: MemoryEngine) -> None:
    """Multiply one layer's last projection, as by a wrong scale of quantization."""
    engine.program.model.model.layers[0].mlp.down_proj.weight.mul_(LAYER_SCALE)


def stale_adapter(engine: MemoryEngine) -> None:
    """Serve the adapter of the training step before."""
    model = engine.program.model
    for projection, trained, stale in zip(adapted(model), adapter(model, TRAINED), adapter(model, STALE), strict=True):
        projection.weight.add_(stale - trained)


def quantized_router(engine: MemoryEngine) -> None:
    """Quantize the routers of a mixture of experts to four bits, with the rest as it was."""
    for layer in engine.program.model.model.layers:
        layer.mlp.gate.weight.copy_(_quantized(layer.mlp.gate.weight))


def _quantized(weight: torch.Tensor) -> torch.Tensor:
    scale = weight.abs().amax() / ROUTER_LEVELS
    return (weight / scale).round() * scale


def overconfident(engine: MemoryEngine) -> None:
    """Scale the last norm, so that every logit is larger than it should be."""
    engine.program.model.model.norm.weight.mul_(CONFIDENCE)


def untrained_head(engine: MemoryEngine) -> None:
    """Leave nothing of the head but tiny numbers, as where its tensor was never saved."""
    head: Any = engine.program.model.lm_head
    head.weight.mul_(UNTRAINED)
