"""Every measure of every kernel that runs on a CPU, against its definition worked out with fifty digits."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor

from snapline.contracts.evidence import MEASURES
from snapline.contracts.kernels import choose
from snapline.contracts.kernels import reference as plain
from snapline.contracts.kernels.reference import Divergence

Kernel = Callable[..., Divergence]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(params=[plain.divergence, choose.divergence], ids=["plain", "chosen"])
def divergence(request: pytest.FixtureRequest) -> Kernel:
    kernel: Kernel = request.param
    return kernel


def test_the_chosen_kernel_is_the_compiled_one() -> None:
    pytest.importorskip("numba", reason="a CUDA machine need not have it")
    assert all(choose.backend(rows(1, 2, 1.0).to(dtype), rows(1, 2, 1.0)) == choose.Backend.NUMBA for dtype in DTYPES)
    assert choose.backend(rows(1, 2, 1.0).double(), rows(1, 2, 1.0)) == choose.Backend.TORCH


def exact(z: list[float], served: list[float], token: int, temperature: float = 1.0) -> dict[str, float]:
    """The measures of one row, from their definitions."""
    with mpmath.workdps(50):
        left = [mpmath.mpf(x) / mpmath.mpf(temperature) for x in z]
        right = [mpmath.mpf(x) / mpmath.mpf(temperature) for x in served]
        p, q = softmax(left), softmax(right)
        pairs = list(zip(left, right, strict=True))
        one_sided = any((a == -mpmath.inf) != (b == -mpmath.inf) for a, b in pairs)
        moves = [b - a for a, b in pairs if -mpmath.inf not in (a, b)]
        largest, second = sorted(left, reverse=True)[:2]
        found = {
            "half_span": mpmath.inf if one_sided else (max(moves) - min(moves)) / 2,
            "tv": sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2,
            "kl_reference_serving": kl(p, q),
            "kl_serving_reference": kl(q, p),
            "margin": largest - second,
            "entropy": -sum(a * mpmath.log(a) for a in p if a > 0),
            "logp_reference": mpmath.log(p[token]) if p[token] else -mpmath.inf,
            "logp_serving": mpmath.log(q[token]) if q[token] else -mpmath.inf,
            "top_reference": mpmath.log(max(p)),
            "top_serving": mpmath.log(max(q)),
        }
        return {name: float(value) for name, value in found.items()}


def softmax(z: list[mpmath.mpf]) -> list[mpmath.mpf]:
    weights = [mpmath.exp(x) for x in z]
    total = sum(weights)
    return [weight / total for weight in weights]


def kl(p: list[mpmath.mpf], q: list[mpmath.mpf]) -> mpmath.mpf:
    if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
        return mpmath.inf
    return sum(a * mpmath.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def check(
    divergence: Kernel, reference: Tensor, serving: Tensor, temperature: float = 1.0, relative: float = 1e-7
) -> None:
    tokens = [(7 * row + 1) % reference.shape[1] for row in range(len(reference))]
    found = divergence(reference, serving, torch.tensor(tokens), temperature)
    for row, token in enumerate(tokens):
        expected = exact(reference[row].tolist(), serving[row].tolist(), token, temperature)
        for name in MEASURES:
            value = getattr(found, name)[row].item()
            assert value == pytest.approx(expected[name], rel=relative, abs=1e-15), (name, row)


def rows(count: int, vocabulary: int, scale: float, seed: int = 0) -> Tensor:
    return torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("vocabulary", [2, 3, 50])
@pytest.mark.parametrize("distance", [1e-6, 1e-3, 0.1, 1.0, 30.0])
def test_near_and_far_rows(divergence: Kernel, vocabulary: int, distance: float) -> None:
    z = rows(6, vocabulary, 1.0)
    check(divergence, z, z + rows(6, vocabulary, distance, seed=1))


def test_a_tiny_distance_in_a_large_vocabulary_keeps_its_digits(divergence: Kernel) -> None:
    z = rows(1, 5000, 1.0)
    served = (z.double() + rows(1, 5000, 1e-6, seed=1).double()).float()
    check(divergence, z, served, relative=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_each_dtype_and_temperature(divergence: Kernel, dtype: torch.dtype, temperature: float) -> None:
    z = rows(4, 40, 6.0)
    check(divergence, z, (z + rows(4, 40, 0.1, seed=1)).to(dtype), temperature)
    check(divergence, z.to(dtype), (z + rows(4, 40, 0.1, seed=1)).to(dtype), temperature)


def test_huge_magnitudes(divergence: Kernel) -> None:
    check(
        divergence,
        torch.tensor([[1e4, -1e4, 0.0], [1e4, 1e4, -1e4]]),
        torch.tensor([[-1e4, 1e4, 0.0], [1e4, 1e4, 1e4]]),
    )
    check(divergence, torch.tensor([[1e4, 9999.0, 9990.0]]), torch.tensor([[9999.0, 1e4, 9990.0]]))


def test_masks(divergence: Kernel) -> None:
    hidden = -math.inf
    both = torch.tensor([[1.0, hidden, 0.5, -2.0]]), torch.tensor([[0.9, hidden, 0.7, -2.5]])
    check(divergence, *both)
    assert divergence(*both, [0]).half_span.isfinite().all()
    check(divergence, torch.tensor([[1.0, 0.2, 0.5]]), torch.tensor([[0.9, hidden, 0.7]]))
    check(divergence, torch.tensor([[1.0, hidden, 0.5]]), torch.tensor([[0.9, 0.1, 0.7]]))
    check(divergence, torch.tensor([[1.0, hidden, 0.5]]), torch.tensor([[hidden, 0.1, 0.7]]))
    only = torch.tensor([[1.0, hidden, hidden]])
    assert divergence(only, only, [0]).margin.item() == math.inf


def test_a_likely_token_masked_is_infinitely_far_even_where_its_probability_underflows(divergence: Kernel) -> None:
    found = divergence(torch.tensor([[0.0, -2000.0]]), torch.tensor([[0.0, -math.inf]]), [0])
    assert found.half_span.item() == found.kl_reference_serving.item() == math.inf
    assert found.kl_serving_reference.item() == 0.0


def test_identical_rows_are_at_no_distance(divergence: Kernel) -> None:
    z = rows(5, 1000, 8.0)
    found = divergence(z, z.clone(), [3] * 5)
    assert found.identical.all()
    assert not found.flip.any()
    for name in ("half_span", "tv", "kl_reference_serving", "kl_serving_reference"):
        assert (getattr(found, name) == 0).all()


def test_identical_means_every_bit(divergence: Kernel) -> None:
    zero, minus_zero, nan = torch.zeros(1, 3), torch.tensor([[0.0, -0.0, 0.0]]), torch.tensor([[0.0, math.nan, 0.0]])
    assert divergence(zero, zero.clone(), [0]).identical.item()
    assert not divergence(zero, minus_zero, [0]).identical.item()
    assert not divergence(nan, nan.clone(), [0]).identical.item()
    assert not divergence(zero, zero.bfloat16(), [0]).identical.item()


def test_a_constant_added_changes_nothing_but_identical(divergence: Kernel) -> None:
    z = torch.round(rows(4, 64, 8.0) * 64) / 64  # exact in float32 with the constant added
    served = torch.round((z + rows(4, 64, 0.5, seed=1)) * 64) / 64
    plain, shifted = divergence(z, served, [5] * 4), divergence(z, served + 1024, [5] * 4)
    for name in MEASURES:
        torch.testing.assert_close(getattr(shifted, name), getattr(plain, name), rtol=1e-10, atol=1e-13)
    assert torch.equal(shifted.flip, plain.flip)
    assert not divergence(z, z + 1024, [5] * 4).identical.any()


def test_flip_and_ties(divergence: Kernel) -> None:
    z = torch.tensor([[2.0, 2.0, 1.0], [2.0, 1.0, 0.0], [2.0, 2.0, 1.0]])
    served = torch.tensor([[2.0, 2.0, 1.0], [1.0, 2.0, 0.0], [1.0, 2.0, 1.0]])
    found = divergence(z, served, [0, 0, 0])
    assert found.flip.tolist() == [False, True, True]
    assert found.margin.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_a_row_that_was_not_measured_has_no_measure(divergence: Kernel, bad: float, side: int) -> None:
    pair = [rows(3, 20, 1.0), rows(3, 20, 1.0, seed=1)]
    pair[side][1, 4] = bad
    found = divergence(*pair, [2, 2, 2])
    for name in MEASURES:
        assert getattr(found, name).isnan().tolist() == [False, True, False], name
    assert not found.flip[1]
    assert not found.identical[1]


def test_a_row_with_no_token_left_has_no_measure(divergence: Kernel) -> None:
    nothing = torch.full((1, 4), -math.inf)
    assert all(getattr(divergence(nothing, rows(1, 4, 1.0), [0]), name).isnan().item() for name in MEASURES)


def test_chunks_and_strides_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, served = rows(30, 40, 3.0), rows(30, 40, 3.0, seed=1)
    whole = plain.divergence(wide[:, ::2], served[:, ::2], [4] * 30)
    monkeypatch.setattr(plain, "CHUNK_ELEMENTS", 70)
    in_parts = plain.divergence(wide[:, ::2].contiguous(), served[:, ::2].contiguous(), [4] * 30)
    for name in (*MEASURES, "flip", "identical"):
        torch.testing.assert_close(getattr(whole, name), getattr(in_parts, name), rtol=1e-14, atol=1e-15)


def test_no_rows_give_no_measures(divergence: Kernel) -> None:
    assert divergence(torch.empty(0, 9), torch.empty(0, 9), []).tv.shape == (0,)
