"""Raw logits, copied where vLLM computes them and filed under the probe they belong to.

vLLM computes logits in `compute_logits`, before any sampling. Every probe travels in its request's `extra_args`, so a
row is filed under a probe's number and a position in its answer, not under a place in a batch or a step: a prompt may
be computed in pieces, and a request that was preempted may compute a row again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from snapline.contracts.engines import memory
from snapline.contracts.engines.protocol import Cache, Path
from snapline.contracts.errors import EngineFailedError

if TYPE_CHECKING:
    import torch

PROBE = "snapline_probe"


class CaptureExtension:
    """Mixed into vLLM's worker, where it sees every row of logits that the model computes."""

    model_runner: Any
    device: Any

    def install_capture(self) -> None:
        """Make `compute_logits` pass through here from now on; nothing is copied until `start_capture`.

        In one step vLLM calls it first for the last token of every request in the batch, then once for each request
        whose prompt is scored, in the order of `num_prompt_logprobs`. Ranks that don't gather logits get None.
        """
        self._capturing = False
        self._captured: dict[int, dict[int, torch.Tensor]] = {}
        self._scheduled: Mapping[str, int] = {}
        self._prompts: deque[str] = deque()
        self._withheld: dict[int, torch.Generator] = {}
        runner = self.model_runner
        execute_model, compute_logits = runner.execute_model, runner.model.compute_logits

        def execute(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            self._scheduled = scheduled.num_scheduled_tokens
            self._prompts.clear()
            runner.input_batch.generators.update(self._withheld)
            self._withheld = {}
            return execute_model(scheduled, *args, **kwargs)

        def capture(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor | None:
            logits: torch.Tensor | None = compute_logits(hidden, *args, **kwargs)
            if not self._capturing or logits is None:
                return logits
            if self._prompts:
                self._keep_prompt(self._prompts.popleft(), logits)
            else:
                self._keep_last(logits)
                self._withhold_generators()
                self._prompts.extend(self._scored_prompts())
            return logits

        runner.execute_model, runner.model.compute_logits = execute, capture

    def start_capture(self) -> None:
        """Copy the rows of probes from now on."""
        self._capturing, self._captured = True, {}

    def stop_capture(self) -> dict[int, torch.Tensor]:
        """Return the rows captured since the start, by probe number, in the order of the answer."""
        import torch

        self._capturing = False
        taken = {n: torch.stack([rows[at] for at in sorted(rows)]) for n, rows in self._captured.items()}
        self._captured = {}
        return taken

    def describe(self) -> dict[str, str]:
        """Return what the running model says of itself."""
        import torch

        runner = self.model_runner
        layers = runner.compilation_config.static_forward_context.values()
        backends = {layer.impl.__class__.__name__ for layer in layers if hasattr(layer, "impl")}
        return {
            "attention": " ".join(sorted(backends)),
            "kv_cache": str(runner.kv_cache_dtype).removeprefix("torch."),
            "threads": str(torch.get_num_threads()),
        }

    def reset_peak(self) -> None:
        """Forget this process's peak of memory so far; see `memory.reset_peak`."""
        memory.reset_peak(str(self.device))

    def peak_bytes(self) -> int:
        """Return this process's peak of memory; see `memory.peak_bytes`."""
        return memory.peak_bytes(str(self.device))

    def _scored_prompts(self) -> Iterator[str]:
        """Yield the requests for which this step computes logits of prompt tokens, in the order it does."""
        for request in self.model_runner.num_prompt_logprobs:
            state = self.model_runner.requests[request]
            left = len(state.prompt_token_ids) - 1 - state.num_computed_tokens
            if min(self._scheduled.get(request, 0), left) > 0:
                yield request

    def _keep_prompt(self, request: str, logits: torch.Tensor) -> None:
        """Keep those rows of a piece of a prompt that score the answer at its end; a row scores the next token."""
        if probe := self._probe(request):
            state = self.model_runner.requests[request]
            first = state.num_computed_tokens + 1 - (len(state.prompt_token_ids) - len(probe["answer"]))
            kept = _copied(logits[max(0, -first) :])
            self._keep(probe["number"], {max(0, first) + row: logits for row, logits in enumerate(kept)})

    def _keep_last(self, logits: torch.Tensor) -> None:
        """Keep the rows that a decoding probe's next token comes from; an unfinished prompt's last row is no such."""
        wanted: list[tuple[int, int, int]] = []
        for row, request in enumerate(self.model_runner.input_batch.req_ids):
            probe = self._probe(request)
            if probe and probe["path"] != Path.PREFILL and not self._unfinished(request):
                position = len(self.model_runner.requests[request].output_token_ids)
                wanted.append((row, probe["number"], position))
        if wanted:
            kept = _copied(logits[[row for row, _, _ in wanted]])
            for (_, number, position), row in zip(wanted, kept, strict=True):
                self._keep(number, {position: row})

    def _withhold_generators(self) -> None:
        """Let no request draw from its own generator before its prompt is complete; the next step gives it back.

        vLLM draws a token after every piece of a prompt, throws it away and rewinds the generator, which a CPU's can't.
        """
        batch = self.model_runner.input_batch
        for row, request in enumerate(batch.req_ids):
            if row in batch.generators and self._unfinished(request):
                self._withheld[row] = batch.generators.pop(row)

    def _unfinished(self, request: str) -> bool:
        """Return whether some of a request's known tokens are still to be computed after this step."""
        state = self.model_runner.requests[request]
        known = len(state.prompt_token_ids) + len(state.output_token_ids)
        return bool(state.num_computed_tokens + self._scheduled.get(request, 0) < known)

    def _probe(self, request: str) -> Any:
        return (self.model_runner.requests[request].sampling_params.extra_args or {}).get(PROBE)

    def _keep(self, number: int, rows: Mapping[int, torch.Tensor]) -> None:
        self._captured.setdefault(number, {}).update(rows)


def require_same(id: str, answer: Sequence[int], captured: torch.Tensor | None, reported: Sequence[Any]) -> None:
    """Raise unless the captured rows carry, at the answer's tokens, the very logits vLLM reported for this request.

    Args:
        reported: One mapping of token to vLLM's `Logprob` for each token of the answer.

    Raises:
        EngineFailedError: vLLM reported on other tokens, rows are missing, or a logit differs.
    """
    if len(reported) != len(answer) or any(t not in e for e, t in zip(reported, answer, strict=True)):
        raise EngineFailedError(f"vLLM reported other tokens than the given answer for probe {id!r}")
    if captured is None or len(captured) != len(answer):
        shape = None if captured is None else tuple(captured.shape)
        raise EngineFailedError(f"captured logits of shape {shape} for the {len(answer)} answer tokens of {id!r}")
    for row, token, entry in zip(captured, answer, reported, strict=True):
        found, expected = float(row[token]), entry[token].logprob
        if found != expected and not (isnan(found) and isnan(expected)):
            raise EngineFailedError(
                f"logits captured for probe {id!r} are not those vLLM reported for it",
                hint="This vLLM schedules prompts in an order Snapline does not know; use a tested version.",
            )


def require_cached(cache: Cache, tokens: int, cached: int, block: int) -> None:
    """Raise unless a prompt of so many tokens was computed cold, or found warm as far as it can be.

    At least the last token is always computed, and only whole blocks are found.

    Raises:
        EngineFailedError: It was the other way.
    """
    if cache == Cache.COLD and cached:
        raise EngineFailedError(
            f"vLLM found {cached} tokens of a prompt in its cache, though it was to compute them all"
        )
    if cache == Cache.WARM and tokens > block and not cached:
        raise EngineFailedError(
            f"vLLM found nothing of a prompt of {tokens} tokens in its cache of blocks of {block}, just after it ran",
            hint="Give it room for all prompts of a batch: raise VLLM_CPU_KVCACHE_SPACE, or measure alone.",
        )


def _copied(logits: torch.Tensor) -> torch.Tensor:
    return logits.detach().to("cpu", copy=True)
