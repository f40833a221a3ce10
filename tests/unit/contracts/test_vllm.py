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

from snapline.contracts.engines.protocol import Cache, Path
from snapline.contracts.engines.vllm_capture import PROBE, CaptureExtension, require_cached, require_same
from snapline.contracts.errors import EngineFailedError

ANSWER = (4, 0, 3)
ROWS = torch.arange(15, dtype=torch.bfloat16).reshape(3, 5) / 8


@dataclass
class Entry:
    logprob: float


def reported(first: float = 0.5, second: float = 0.625, third: float = 1.625) -> list[dict[int, Entry]]:
    return [{4: Entry(first)}, {0: Entry(second)}, {3: Entry(third)}]


def test_rows_that_carry_the_reported_logits_pass() -> None:
    require_same("p", ANSWER, ROWS, reported())


@pytest.mark.parametrize("rows", [ROWS.flip(0), ROWS[:2], ROWS + 2**-3, None])
def test_any_other_rows_fail(rows: torch.Tensor | None) -> None:
    with pytest.raises(EngineFailedError, match="'p'"):
        require_same("p", ANSWER, rows, reported())


def test_a_nan_on_both_sides_is_the_same_logit() -> None:
    rows = ROWS.clone()
    rows[1, 0] = math.nan
    require_same("p", ANSWER, rows, reported(second=math.nan))
    with pytest.raises(EngineFailedError):
        require_same("p", ANSWER, rows, reported())


def test_an_answer_that_was_not_forced_fails() -> None:
    for other in ([{4: Entry(0.5)}, {1: Entry(0.625)}, {3: Entry(1.625)}], reported()[:2]):
        with pytest.raises(EngineFailedError, match="other tokens than the given answer"):
            require_same("p", ANSWER, ROWS, other)


def test_a_warm_prompt_must_be_found_and_a_cold_one_must_not() -> None:
    require_cached(Cache.COLD, 33, 0, block=32)
    require_cached(Cache.WARM, 33, 32, block=32)
    require_cached(Cache.WARM, 32, 0, block=32)
    with pytest.raises(EngineFailedError, match="found nothing of a prompt of 33 tokens"):
        require_cached(Cache.WARM, 33, 0, block=32)
    with pytest.raises(EngineFailedError, match="found 32 tokens of a prompt in its cache"):
        require_cached(Cache.COLD, 33, 32, block=32)


def request(number: int, path: Path, *, prompt: int, computed: int = 0, answer: int = 0, output: int = 0) -> Any:
    probe = {"number": number, "answer": [7] * answer, "path": path}
    return SimpleNamespace(
        sampling_params=SimpleNamespace(extra_args={PROBE: probe}),
        prompt_token_ids=[5] * prompt,
        output_token_ids=[6] * output,
        num_computed_tokens=computed,
    )


def stranger(prompt: int) -> Any:
    found = request(0, Path.PREFILL, prompt=prompt)
    found.sampling_params.extra_args = None
    return found


class Steps:
    """A model runner that computes what a test says, in the order in which vLLM does."""

    def __init__(self, requests: dict[str, Any]) -> None:
        self.extension = CaptureExtension()
        self.extension.model_runner = self.runner = SimpleNamespace(
            model=SimpleNamespace(compute_logits=lambda hidden: hidden * 2),
            execute_model=lambda scheduled: self._compute(scheduled.calls),
            input_batch=SimpleNamespace(req_ids=list(requests), generators={}),
            requests=requests,
            num_prompt_logprobs={},
        )
        self.extension.install_capture()
        self.extension.start_capture()

    def step(self, scheduled: dict[str, int], *calls: torch.Tensor) -> None:
        self.runner.execute_model(SimpleNamespace(num_scheduled_tokens=scheduled, calls=calls))

    def _compute(self, calls: tuple[torch.Tensor, ...]) -> None:
        for hidden in calls:
            assert torch.equal(self.runner.model.compute_logits(hidden), hidden * 2)


def test_rows_are_filed_by_the_request_they_were_computed_for() -> None:
    """A step of three requests, one of them a stranger's: first every last token, then each scored prompt."""
    requests = {
        "b": request(1, Path.DECODE_FORCED, prompt=3, answer=2),
        "x": stranger(prompt=5),
        "a": request(0, Path.PREFILL, prompt=6, answer=2),
    }
    steps = Steps(requests)
    steps.runner.num_prompt_logprobs = {"x": 0, "a": 0}
    last, others, prompt = torch.arange(6.0).reshape(3, 2), torch.full((4, 2), 50.0), torch.arange(10.0).reshape(5, 2)
    steps.step({"b": 3, "x": 5, "a": 6}, last, others, prompt)
    steps.runner.num_prompt_logprobs = {}
    requests["b"].num_computed_tokens, requests["b"].output_token_ids = 3, [7]
    steps.step({"b": 1, "x": 1, "a": 1}, last + 10)
    taken = steps.extension.stop_capture()
    assert torch.equal(taken[0], prompt[-2:] * 2)
    assert torch.equal(taken[1], torch.stack([last[0], last[0] + 10]) * 2)
    assert steps.extension.stop_capture() == {}
    steps.step({"b": 1}, last)
    assert steps.extension.stop_capture() == {}


def test_the_pieces_of_a_prompt_are_put_together() -> None:
    """A prompt of 7 whose answer is its last 4 tokens, in pieces of 3, 2, and 2; it waits for a step in between."""
    requests = {"a": request(0, Path.PREFILL, prompt=7, answer=4), "b": stranger(prompt=9)}
    steps = Steps(requests)
    steps.runner.num_prompt_logprobs = {"b": 0, "a": 0}
    prompt, last, others = torch.arange(6.0).reshape(6, 1), torch.full((2, 1), 90.0), torch.full((3, 1), 50.0)
    for computed, piece in ((0, 3), (3, 0), (3, 2), (5, 2)):
        requests["a"].num_computed_tokens = computed
        rows = [prompt[computed : computed + piece]] if piece else []
        steps.step({"b": 3, "a": piece} if piece else {"b": 3}, last, others, *rows)
    assert torch.equal(steps.extension.stop_capture()[0], prompt[2:] * 2)


def test_a_piece_without_rows_of_its_own_shifts_nobody_else_s() -> None:
    """All rows of the first prompt came with its last piece but one, so vLLM computes none for its last token."""
    requests = {
        "a": request(0, Path.PREFILL, prompt=4, answer=2, computed=3),
        "b": request(1, Path.PREFILL, prompt=3, answer=1),
    }
    steps = Steps(requests)
    steps.runner.num_prompt_logprobs = {"a": 0, "b": 0}
    rows = torch.arange(2.0).reshape(2, 1)
    steps.step({"a": 1, "b": 3}, torch.full((2, 1), 90.0), rows)
    taken = steps.extension.stop_capture()
    assert taken.keys() == {1}
    assert torch.equal(taken[1], rows[1:] * 2)


def test_an_unfinished_prompt_decodes_nothing_and_draws_nothing() -> None:
    requests = {
        "a": request(0, Path.DECODE_SAMPLED, prompt=8),
        "b": request(1, Path.DECODE_SAMPLED, prompt=2, computed=2, output=1),
    }
    steps = Steps(requests)
    generators = steps.runner.input_batch.generators
    first, second = torch.Generator(), torch.Generator()
    generators |= {0: first, 1: second}
    last = torch.arange(2.0).reshape(2, 1)
    steps.step({"a": 5, "b": 1}, last)
    assert generators == {1: second}
    requests["a"].num_computed_tokens = 5
    requests["b"].num_computed_tokens, requests["b"].output_token_ids = 3, [6, 6]
    steps.step({"a": 3, "b": 1}, last + 10)
    assert generators == {0: first, 1: second}
    taken = steps.extension.stop_capture()
    assert taken[0].tolist() == [[20.0]]
    assert taken[1].tolist() == [[2.0], [22.0]]


def test_a_row_that_is_computed_again_takes_the_place_of_the_first() -> None:
    requests = {"a": request(0, Path.DECODE_FORCED, prompt=2, answer=2)}
    steps = Steps(requests)
    for computed, scheduled, output, row in ((0, 2, 0, 1.0), (2, 1, 1, 2.0), (0, 3, 1, 3.0)):
        requests["a"].num_computed_tokens, requests["a"].output_token_ids = computed, [7] * output
        steps.step({"a": scheduled}, torch.tensor([[row]]))
    assert steps.extension.stop_capture()[0].tolist() == [[2.0], [6.0]]


def test_a_rank_that_gathers_no_logits_captures_none() -> None:
    steps = Steps({"a": request(0, Path.DECODE_FORCED, prompt=1, answer=1)})
    steps.runner.model.compute_logits = lambda _: None
    steps.extension.install_capture()
    steps.extension.start_capture()
    assert steps.runner.model.compute_logits(torch.ones(1, 1)) is None
    assert steps.extension.stop_capture() == {}


def test_knowing_an_engine_imports_none_of_its_libraries() -> None:
    code = (
        f"import sys; sys.path[:0] = {[entry for entry in sys.path if entry]!r}\n"
        "import snapline.contracts.engines.client, snapline.contracts.engines.vllm\n"
        "import snapline.contracts.engines.transformers, snapline.contracts.measure\n"
        "print(sorted({'torch', 'vllm', 'transformers', 'safetensors', 'duckdb'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
