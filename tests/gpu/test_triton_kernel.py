"""The Triton kernel finds what the plain one finds: on a CUDA device, or on a CPU in Triton's interpreter."""

from __future__ import annotations

import os
from dataclasses import fields

import logit_rows
import pytest
import torch
from torch import Tensor

from snapline.contracts.kernels import choose
from snapline.contracts.kernels import reference as plain
from snapline.contracts.kernels.reference import Divergence

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
LARGE, ROWS = (9000, 1) if INTERPRETED else (151_936, 3)  # the interpreter takes its time for each row

pytest.importorskip("triton", reason="there is no triton here")
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]

# float32 arithmetic against float64: relative, and absolute for what is a difference of rounded numbers of order 1.
TOLERANCES = {
    "half_span": (1e-6, 1e-9),
    "tv": (2e-5, 3e-8),
    "kl_reference_serving": (2e-5, 1e-12),
    "kl_serving_reference": (2e-4, 1e-9),
    "margin": (1e-14, 1e-14),
    "entropy": (1e-5, 2e-6),
    "logp_reference": (1e-6, 1e-6),
    "logp_serving": (1e-6, 1e-6),
    "top_reference": (1e-6, 1e-6),
    "top_serving": (1e-6, 1e-6),
}


def divergence(reference: Tensor, serving: Tensor, temperature: float = 1.0) -> Divergence:
    from snapline.contracts.kernels import triton_kernel

    tokens = torch.arange(len(reference)) * 7 % reference.shape[1]
    found = triton_kernel.divergence(reference.to(DEVICE), serving.to(DEVICE), tokens.to(DEVICE), temperature)
    return Divergence(**{field.name: getattr(found, field.name).cpu() for field in fields(Divergence)})


def agree(reference: Tensor, serving: Tensor, temperature: float = 1.0, **closer: tuple[float, float]) -> None:
    tokens = torch.arange(len(reference)) * 7 % reference.shape[1]
    expected = plain.divergence(reference, serving, tokens, temperature)
    found = divergence(reference, serving, temperature)
    for name, (relative, absolute) in (TOLERANCES | closer).items():
        left, right = getattr(found, name), getattr(expected, name)
        torch.testing.assert_close(
            left, right, rtol=relative, atol=absolute, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )
    measured = ~expected.tv.isnan()
    for name in ("greedy_reference", "greedy_serving"):
        assert getattr(found, name)[measured].tolist() == getattr(expected, name)[measured].tolist(), name
    assert found.flip.tolist() == expected.flip.tolist()
    assert found.identical.tolist() == expected.identical.tolist()


@pytest.mark.parametrize("dtype", logit_rows.DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 3, 1023, LARGE])
def test_any_vocabulary_in_any_dtype(vocabulary: int, dtype: torch.dtype) -> None:
    pairs = logit_rows.near(vocabulary, 0.3, ROWS), logit_rows.like_a_model(vocabulary, ROWS)
    reference, serving = (torch.cat(side) for side in zip(*pairs, strict=True))
    agree(reference.to(dtype), serving.to(dtype))


def test_two_dtypes() -> None:
    reference, serving = logit_rows.near(1023, 0.3, ROWS)
    agree(reference, serving.bfloat16())
    agree(reference.half(), serving.bfloat16())
    assert not divergence(torch.zeros(1, 4), torch.zeros(1, 4).bfloat16()).identical.any()


@pytest.mark.parametrize("case", logit_rows.adversarial(4))
def test_rows_made_to_go_wrong(case: str) -> None:
    agree(*logit_rows.adversarial(37)[case])


@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_a_temperature(temperature: float) -> None:
    agree(*logit_rows.near(500, 0.1, ROWS), temperature)


def test_a_tiny_distance_keeps_its_digits() -> None:
    agree(
        *logit_rows.near(LARGE, 1e-4, ROWS),
        tv=(1e-3, 0.0),
        kl_reference_serving=(1e-3, 0.0),
        kl_serving_reference=(1e-3, 0.0),
    )


def test_identical_rows_are_at_no_distance() -> None:
    rows, _ = logit_rows.like_a_model(2000, ROWS)
    found = divergence(rows, rows.clone())
    assert found.identical.all()
    for name in ("half_span", "tv", "kl_reference_serving", "kl_serving_reference"):
        assert (getattr(found, name) == 0).all(), name


def test_rows_may_lie_apart_in_memory() -> None:
    reference, serving = logit_rows.near(300, 0.2, 2)
    expected = divergence(reference, serving)
    for left, right in zip(logit_rows.strided(reference), logit_rows.strided(serving), strict=True):
        found = divergence(left, right)
        assert all(torch.equal(getattr(found, field.name), getattr(expected, field.name)) for field in fields(found))


def test_no_rows_give_no_measures() -> None:
    assert divergence(torch.empty(0, 9), torch.empty(0, 9)).tv.shape == (0,)


@pytest.mark.parametrize("lag", [1, 1000])
def test_when_a_piece_is_compared_does_not_matter(lag: int) -> None:
    from snapline.contracts.kernels import triton_kernel

    reference, serving = (rows.to(DEVICE) for rows in logit_rows.near(9000, 0.2, count=3))
    tokens = torch.zeros(3, dtype=torch.long, device=DEVICE)
    expected = triton_kernel.launch(reference, serving, tokens, 1.0)
    found = triton_kernel.launch(reference, serving, tokens, 1.0, lag)
    assert all(torch.equal(left, right) for left, right in zip(found, expected, strict=True))


@pytest.mark.skipif(INTERPRETED, reason="the interpreter runs on CPU tensors")
def test_a_cuda_tensor_is_measured_by_triton() -> None:
    rows = torch.zeros(1, 3, device=DEVICE)
    assert choose.backend(rows, rows) == choose.Backend.TRITON
    assert choose.backend(rows.double(), rows) == choose.Backend.TORCH
    assert choose.divergence(rows, rows, [0]).tv.item() == 0
