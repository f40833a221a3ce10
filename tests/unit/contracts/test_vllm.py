"""Logits that vLLM computed are never filed under a probe they do not belong to; no vLLM needed to see it."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from snapline.contracts.engines.protocol import Path, ProbeItem
from snapline.contracts.engines.vllm import PROBE, CaptureExtension, _given, _require_same
from snapline.contracts.errors import EngineFailedError

ITEM = ProbeItem("p", (1, 2), (4, 0, 3))
ROWS = torch.arange(15, dtype=torch.bfloat16).reshape(3, 5) / 8
REPORTED = [0.5, 0.625, 1.625]


@dataclass
class Entry:
    logprob: float


def test_rows_that_carry_the_reported_logits_pass() -> None:
    _require_same(ITEM, ROWS, REPORTED)


@pytest.mark.parametrize("rows", [ROWS.flip(0), ROWS[:2], ROWS + 2**-3, None])
def test_any_other_rows_fail(rows: torch.Tensor | None) -> None:
    with pytest.raises(EngineFailedError, match="'p'"):
        _require_same(ITEM, rows, REPORTED)


def test_a_nan_on_both_sides_is_the_same_logit() -> None:
    rows = ROWS.clone()
    rows[1, 0] = math.nan
    _require_same(ITEM, rows, [0.5, math.nan, 1.625])
    with pytest.raises(EngineFailedError):
        _require_same(ITEM, rows, REPORTED)


def test_an_answer_that_was_not_forced_fails() -> None:
    assert [token for _, token in _given(ITEM, [{4: Entry(0.5)}, {0: Entry(0.6)}, {3: Entry(1.6)}])] == [4, 0, 3]
    for reported in ([{4: Entry(0.5)}, {1: Entry(0.6)}, {3: Entry(1.6)}], [{4: Entry(0.5)}]):
        with pytest.raises(EngineFailedError, match="other tokens than the given answer"):
            _given(ITEM, reported)


def request(number: int, answer: list[int], path: Path) -> Any:
    return SimpleNamespace(
        sampling_params=SimpleNamespace(extra_args={PROBE: {"number": number, "answer": answer, "path": path}})
    )


def test_rows_are_filed_by_the_request_they_were_computed_for() -> None:
    """A step of three requests, one of them a stranger's: first every last token, then each scored prompt."""
    extension = CaptureExtension()
    extension.model_runner = runner = SimpleNamespace(
        model=SimpleNamespace(compute_logits=lambda hidden: hidden * 2),
        input_batch=SimpleNamespace(req_ids=["b", "x", "a"]),
        requests={
            "a": request(0, [1, 1], Path.PREFILL),
            "b": request(1, [7], Path.DECODE_FORCED),
            "x": SimpleNamespace(sampling_params=SimpleNamespace(extra_args=None)),
        },
        num_prompt_logprobs={"x": 0, "a": 0},
    )
    extension.start_capture()
    last = torch.arange(6.0).reshape(3, 2)
    stranger, prompt = torch.full((4, 2), 50.0), torch.arange(10.0).reshape(5, 2)
    for hidden in (last, stranger, prompt):
        assert torch.equal(runner.model.compute_logits(hidden), hidden * 2)
    runner.num_prompt_logprobs = {}
    runner.model.compute_logits(last + 10)
    taken = extension.take_captured()
    assert torch.equal(taken[0], prompt[-2:] * 2)
    assert torch.equal(taken[1], torch.stack([last[0], last[0] + 10]) * 2)
    assert extension.take_captured() == {}


def test_knowing_an_engine_imports_none_of_its_libraries() -> None:
    code = (
        f"import sys; sys.path[:0] = {[entry for entry in sys.path if entry]!r}\n"
        "import snapline.contracts.engines.client, snapline.contracts.engines.vllm\n"
        "import snapline.contracts.engines.transformers, snapline.contracts.measure\n"
        "print(sorted({'torch', 'vllm', 'transformers', 'safetensors', 'duckdb'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
