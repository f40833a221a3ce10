"""The divergence measures by the fastest way there is on this machine.

On a CUDA device that is the Triton kernel, on a CPU the loop that numba compiles, each where its library is installed
and the logits are of 16 or 32 bits; else the plain computation of `reference`, which needs neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from snapline.contracts.kernels import reference as plain
from snapline.contracts.kernels.reference import CHUNK_ELEMENTS, Divergence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NARROW = (torch.float32, torch.bfloat16, torch.float16)


class Backend(StrEnum):
    """What computed the measures."""

    TRITON = "triton"
    NUMBA = "numba"
    TORCH = "torch"


def backend(reference: Tensor, serving: Tensor) -> Backend:
    """Return what `divergence` would compute these logits' measures with."""
    if reference.dtype not in NARROW or serving.dtype not in NARROW:
        return Backend.TORCH
    if reference.is_cuda and _imports("triton_kernel"):
        return Backend.TRITON
    return backend_on_cpu() if reference.device.type == "cpu" else Backend.TORCH


def backend_on_cpu() -> Backend:
    """Return what computes the measures of logits of 16 or 32 bits on the CPU here."""
    return Backend.NUMBA if _imports("compiled") else Backend.TORCH


def divergence(
    reference: Tensor,
    serving: Tensor,
    tokens: Tensor | Sequence[int],
    temperature: float = 1.0,
    *,
    threads: int = 1,
) -> Divergence:
    """Return the measures of n positions: those of `reference.divergence`, to 1e-9 of their size.

    Args:
        reference: Raw logits of shape (n, vocabulary), in any floating dtype; -inf masks a token.
        serving: Raw logits of the same shape on the same device; the dtype may differ.
        tokens: The given token at each of the n positions.
        temperature: Both rows of logits are divided by it; more than 0.
        threads: How many CPU threads to use; by default one, because engines that want the others run beside it.

    Raises:
        ValueError: The shapes differ, or a token lies outside the vocabulary.
    """
    tokens = torch.as_tensor(tokens, dtype=torch.long, device=reference.device)
    _require_alike(reference, serving, tokens)
    match backend(reference, serving):
        case Backend.TRITON:
            from snapline.contracts.kernels.triton_kernel import divergence as on_device

            return on_device(reference, serving, tokens, temperature)
        case Backend.NUMBA:
            return _compiled(reference.detach(), serving.detach(), tokens, temperature, threads)
        case Backend.TORCH:
            return plain.divergence(reference, serving, tokens, temperature)


@cache
def _imports(kernel: str) -> bool:
    """Return whether a kernel's library is here, and of a version that works beside the others."""
    try:
        import_module(f"snapline.contracts.kernels.{kernel}")
    except ImportError:
        return False
    return True


def _require_alike(reference: Tensor, serving: Tensor, tokens: Tensor) -> None:
    shapes = tuple(reference.shape), tuple(serving.shape), tuple(tokens.shape)
    if reference.ndim != 2 or shapes[0] != shapes[1] or shapes[2] != shapes[0][:1]:
        raise ValueError(f"expected logits of one shape (n, vocabulary) and n tokens, found {shapes}")
    if tokens.numel() and (int(tokens.min()) < 0 or int(tokens.max()) >= reference.shape[1]):
        found = f"{int(tokens.min())} to {int(tokens.max())}"
        raise ValueError(f"expected tokens within a vocabulary of {reference.shape[1]}, found {found}")


def _compiled(reference: Tensor, serving: Tensor, tokens: Tensor, temperature: float, threads: int) -> Divergence:
    import numpy as np

    from snapline.contracts.kernels.compiled import MEASURES, measure, scratch_for

    count, vocabulary = reference.shape
    measures, greedy, flags = (
        np.empty((count, MEASURES)),
        np.empty((count, 2), np.int64),
        np.empty((count, 2), np.bool_),
    )
    given, rows = tokens.contiguous().numpy(), max(1, CHUNK_ELEMENTS // vocabulary)

    starts = iter(range(0, count, rows))  # shared: a thread that is held up takes fewer

    def work(_: int) -> None:
        scratch, (left, right) = scratch_for(vocabulary), np.empty((2, rows, vocabulary), np.float32)
        for first in starts:
            part = slice(first, first + rows)
            pair = _float32(reference[part], left), _float32(serving[part], right)
            measure(*pair, given[part], 1 / temperature, scratch, (measures[part], greedy[part], flags[part]))

    if threads == 1:
        work(0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
    found = [column for part in (measures, greedy, flags) for column in torch.from_numpy(part).T.contiguous()]
    columns = dict(zip((field.name for field in fields(Divergence)), found, strict=True))
    if reference.dtype != serving.dtype:
        columns["identical"] = torch.zeros(count, dtype=torch.bool)
    return Divergence(**columns)


def _float32(logits: Tensor, out: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows of logits as float32, which holds every value of the 16-bit dtypes; `out` may be written to."""
    from snapline.contracts.kernels.compiled import widen_bfloat16, widen_float16

    if logits.dtype == torch.float32:
        array: NDArray[np.float32] = logits.contiguous().numpy()
        return array
    widen = widen_bfloat16 if logits.dtype == torch.bfloat16 else widen_float16
    widen(logits.contiguous().view(torch.int16).numpy(), out[: len(logits)])
    return out[: len(logits)]
