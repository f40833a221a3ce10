"""Pairs of logit rows on which a divergence kernel could go wrong: each is held against the plain one on them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MASK = -math.inf


def near(vocabulary: int, distance: float, count: int = 3, scale: float = 4.0) -> tuple[Tensor, Tensor]:
    """Return random rows and rows that lie `distance` off, about."""
    random = torch.Generator().manual_seed(vocabulary)
    z = torch.randn(count, vocabulary, generator=random) * scale
    return z, z + distance * torch.randn(count, vocabulary, generator=random)


def like_a_model(vocabulary: int, count: int = 3) -> tuple[Tensor, Tensor]:
    """Return rows shaped as a language model's: a long flat tail, a few likely tokens, all shifted; and bf16 ones."""
    random = torch.Generator().manual_seed(vocabulary + 1)
    z = torch.randn(count, vocabulary, generator=random) * 2 - 3
    likely = torch.randint(vocabulary, (count, min(vocabulary, 8)), generator=random)
    z.scatter_add_(1, likely, torch.rand(likely.shape, generator=random) * 18)
    return z, z.bfloat16().float()


def adversarial(vocabulary: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return one or more rows each, of a vocabulary of at least 4."""
    z, served = near(vocabulary, 0.1)
    far = torch.linspace(-1e4, 1e4, vocabulary).repeat(2, 1)
    cases = {
        "identical": (z, z.clone()),
        "shifted": ((z * 64).round() / 64, (z * 64).round() / 64 + 512),
        "constant": (torch.full((1, vocabulary), 3.0), torch.full((1, vocabulary), -7.0)),
        "opposite": (far, -far),
        "huge": (far * 1e34, -far * 1e34),
        "minus zero": (torch.zeros(1, vocabulary), -torch.zeros(1, vocabulary)),
        "certain": (_set(z, 1, 300.0), _set(served, 1, 300.0)),
        "disjoint": (_set(z, 1, 500.0), _set(served, 2, 500.0)),
    }
    ties = z.clone()
    ties[:, [0, -1]] = ties.max() + 1
    cases["ties"] = ties, _set(ties, 0, -1.0)
    cases["masked alike"] = _set(z, slice(1, None, 2), MASK), _set(served, slice(1, None, 2), MASK)
    cases["one token left"] = _set(z, slice(1, None), MASK), _set(served, slice(1, None), MASK)
    cases["masked by the reference"] = _set(z, 2, MASK), served
    cases["masked by the other"] = z, _set(served, 2, MASK)
    cases["masked throughout"] = _set(z, slice(None), MASK), served
    for name, bad in {"NaN": math.nan, "+inf": math.inf}.items():
        cases[f"{name} in the reference"] = _set(z, 3, bad, row=1), served
        cases[f"{name} in both"] = _set(z, 3, bad, row=1), _set(z, 3, bad, row=1)
    cases["negative NaN"] = z, _set(served, 3, -math.nan, row=1)
    return cases


def strided(rows: Tensor) -> list[Tensor]:
    """Return the same rows laid out in memory in other ways."""
    wide = torch.zeros(len(rows), 2 * rows.shape[1] + 3, dtype=rows.dtype)
    wide[:, 1 : 2 * rows.shape[1] : 2] = rows
    padded = torch.cat([rows, rows.new_full((len(rows), 5), 99.0)], 1)
    return [wide[:, 1 : 2 * rows.shape[1] : 2], padded[:, : rows.shape[1]], rows.T.contiguous().T]


def _set(rows: Tensor, tokens: int | slice, value: float, row: int | slice = slice(None)) -> Tensor:
    changed = rows.clone()
    changed[row, tokens] = value
    return changed
