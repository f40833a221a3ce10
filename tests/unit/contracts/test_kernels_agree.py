"""The compiled kernel finds what the plain one finds, whatever the rows, and gives way to it cleanly."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import logit_rows
import numpy as np
import pytest
import torch
from torch import Tensor

from snapline.contracts.kernels import choose, compiled
from snapline.contracts.kernels import reference as plain
from snapline.contracts.kernels.reference import Divergence

FLOATS = [field.name for field in fields(Divergence) if field.name not in ("flip", "identical")][:-2]
ROOT = Path(choose.__file__).resolve().parents[2]


def agree(reference: Tensor, serving: Tensor, temperature: float = 1.0, *, relative: float = 1e-9) -> None:
    tokens = torch.arange(len(reference)) * 7 % reference.shape[1]
    largest = reference.nan_to_num(0, 0, 0).abs().max().item() + serving.nan_to_num(0, 0, 0).abs().max().item()
    rounding = 1e-14 + 2.5e-16 * min(largest, 1e5)  # of logits in float64, before a difference is taken
    expected = plain.divergence(reference, serving, tokens, temperature)
    found = choose.divergence(reference, serving, tokens, temperature)
    for name in FLOATS:
        torch.testing.assert_close(
            getattr(found, name), getattr(expected, name), rtol=relative, atol=rounding, equal_nan=True, msg=name
        )
    measured = ~expected.tv.isnan()
    for name in ("greedy_reference", "greedy_serving"):
        assert getattr(found, name)[measured].tolist() == getattr(expected, name)[measured].tolist(), name
    assert found.flip.tolist() == expected.flip.tolist()
    assert found.identical.tolist() == expected.identical.tolist()


@pytest.mark.parametrize("dtype", logit_rows.DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 2, 3, 1023, 1024, 1025, 49_152, 151_936])
def test_any_vocabulary_in_any_dtype(vocabulary: int, dtype: torch.dtype) -> None:
    for reference, serving in (logit_rows.near(vocabulary, 0.3), logit_rows.like_a_model(vocabulary)):
        agree(reference.to(dtype), serving.to(dtype))
    agree(reference, serving.to(dtype))


@pytest.mark.parametrize("vocabulary", [4, 1025, 5000])
@pytest.mark.parametrize("case", logit_rows.adversarial(4))
def test_rows_made_to_go_wrong(case: str, vocabulary: int) -> None:
    agree(*logit_rows.adversarial(vocabulary)[case])
    agree(*logit_rows.adversarial(vocabulary)[case], temperature=0.7)


@pytest.mark.parametrize("distance", [1e-7, 1e-4, 1e-2, 1.0, 30.0, 1000.0])
def test_near_and_far_rows_of_a_large_vocabulary(distance: float) -> None:
    agree(*logit_rows.near(150_000, distance), relative=1e-9 if distance > 1e-5 else 1e-6)


def test_the_exponential_is_right_to_the_last_digits() -> None:
    exponents = np.linspace(-707.9, 0, 10_001)
    found = np.array([compiled._exp(x) for x in exponents])
    np.testing.assert_allclose(found, np.exp(exponents), rtol=1e-14)


def test_every_half_precision_float_is_widened_exactly() -> None:
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).reshape(8, -1)
    for dtype in (torch.bfloat16, torch.float16):
        values = bits.view(dtype)
        wide = torch.from_numpy(choose._float32(values, np.empty(tuple(bits.shape), np.float32)))
        assert torch.equal(wide.isnan(), values.isnan())
        assert torch.equal(wide.nan_to_num(7.0).view(torch.int32), values.float().nan_to_num(7.0).view(torch.int32))


@pytest.mark.parametrize("dtype", logit_rows.DTYPES, ids=str)
def test_rows_may_lie_apart_in_memory(dtype: torch.dtype) -> None:
    reference, serving = (rows.to(dtype) for rows in logit_rows.near(1500, 0.2, count=5))
    expected = choose.divergence(reference, serving, [3] * 5)
    for left, right in zip(logit_rows.strided(reference), logit_rows.strided(serving), strict=True):
        assert not left.is_contiguous()
        found = choose.divergence(left, right, [3] * 5)
        assert all(torch.equal(getattr(found, field.name), getattr(expected, field.name)) for field in fields(found))


@pytest.mark.parametrize("threads", [2, 3, 11])
def test_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    reference, serving = logit_rows.near(3000, 0.2, count=7)
    tokens = list(range(7))
    expected = choose.divergence(reference, serving, tokens)
    found = choose.divergence(reference, serving, tokens, threads=threads)
    assert all(torch.equal(getattr(found, field.name), getattr(expected, field.name)) for field in fields(found))


def test_a_token_outside_the_vocabulary_and_unlike_shapes_are_refused() -> None:
    rows = torch.zeros(2, 5)
    for tokens in ([0, 5], [-1, 0], [0], [0, 0, 0]):
        with pytest.raises(ValueError, match="expected"):
            choose.divergence(rows, rows, tokens)
    with pytest.raises(ValueError, match="expected logits of one shape"):
        choose.divergence(rows, torch.zeros(2, 6), [0, 0])


HERE = """
import sys, types
space = types.ModuleType('snapline')
space.__path__ = [{root!r}]
sys.modules['snapline'] = space
"""
WITHOUT_NUMBA = """
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] == 'numba':
            raise ImportError(name)
sys.meta_path.insert(0, Refused())
import torch
from snapline.contracts.kernels.choose import backend, divergence
z = torch.arange(6.0).reshape(2, 3)
found = divergence(z, z + torch.tensor([0.0, 0.1, 0.0]), [0, 1], threads=2)
print(backend(z, z), [round(x, 6) for x in found.half_span.tolist()])
"""


def test_without_numba_the_plain_kernel_answers() -> None:
    assert _printed(WITHOUT_NUMBA) == "torch [0.05, 0.05]"


def test_a_function_whose_machine_code_cannot_be_kept_is_compiled_all_the_same() -> None:
    made: dict[str, Any] = {}
    exec("def twice(x): return 2 * x", made)  # of no file, so numba has no place to keep it beside
    assert compiled._compile()(made["twice"])(21) == 42


def _printed(code: str) -> str:
    argv = [sys.executable, "-c", HERE.format(root=str(ROOT)) + code]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
