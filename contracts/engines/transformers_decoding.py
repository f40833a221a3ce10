"""A batch of prompts and what follows them, over one cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from snapline.contracts.engines.protocol import Cache

if TYPE_CHECKING:
    import torch


def padded(sequences: Sequence[Sequence[int]], device: torch.device) -> dict[str, torch.Tensor]:
    """Return token ids padded on the left, with the mask and positions that make the padding invisible."""
    import torch

    width = max(map(len, sequences))
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(sequences):
        ids[row, width - len(tokens) :] = torch.tensor(tokens, dtype=torch.long)
        mask[row, width - len(tokens) :] = 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    named = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    return {name: tensor.to(device) for name, tensor in named.items()}


class Prefix:
    """Sequences whose keys and values are kept, so that what follows them need not compute them again.

    Attributes:
        logits: Shape (batch, vocabulary): what follows each sequence. Absent when all are empty.
    """

    logits: torch.Tensor

    def __init__(self, model: Any, sequences: Sequence[Sequence[int]]) -> None:
        self._model = model
        inputs = padded(sequences, model.device)
        self._mask = inputs["attention_mask"]
        self._lengths = self._mask.sum(-1, keepdim=True)
        self._kept: Any = None
        if self._mask.shape[1]:
            output = model(**inputs, use_cache=True, logits_to_keep=1)
            self.logits, self._kept = output.logits[:, -1], output.past_key_values

    def extend(self, following: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append tokens and return the logits after each: (batch, longest, vocabulary).

        Shorter rows are padded on the right, where nothing before them looks; their last logits mean nothing, and
        nothing can be appended to them any more.
        """
        import torch

        width = max(map(len, following))
        ids = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in following], device=self._mask.device)
        self._mask = torch.cat([self._mask, torch.ones_like(ids)], -1)
        output = self._model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=self._lengths + torch.arange(width, device=ids.device),
            past_key_values=self._kept,
            use_cache=True,
        )
        self._lengths = self._lengths + width
        self._kept, self.logits = output.past_key_values, output.logits[:, -1]
        logits: torch.Tensor = output.logits
        return logits


def prefilled(model: Any, prompts: Sequence[Sequence[int]], cache: Cache) -> Prefix:
    """Return prompts ready to decode; warm, all but their last token comes from the cache of an earlier pass."""
    if cache == Cache.COLD:
        return Prefix(model, prompts)
    prefix = Prefix(model, [prompt[:-1] for prompt in prompts])
    prefix.extend([prompt[-1:] for prompt in prompts])
    return prefix
