"""Hugging Face transformers with eager attention: the reference.

It needs torch, transformers and safetensors only, so that it also runs where the rest of Snapline is not installed.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
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
from snapline.contracts.engines.memory import peak_bytes, reset_peak
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
from snapline.contracts.engines.transformers_decoding import Prefix, padded, prefilled
from snapline.contracts.errors import EngineUnavailableError

if TYPE_CHECKING:
    import torch

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
INSTALL = "pip install 'snapline[engines]'"

BATCH_ITEMS = 16
BATCH_TOKENS = 4096


def load(spec: EngineSpec, model: FilePath, report: Report) -> TransformersEngine:
    """Return the model in `model`, loaded in the dtype and on the device of `spec`.

    Raises:
        EngineUnavailableError: The device is not there, or the spec asks for something this engine does not do.
    """
    import torch
    import transformers

    if spec.quantization or spec.kv_cache_dtype:
        raise EngineUnavailableError(
            f"transformers runs unquantized here, but quantization {spec.quantization!r} and KV cache dtype "
            f"{spec.kv_cache_dtype!r} were asked for",
            hint="Leave both out for the transformers engine.",
        )
    beyond = {
        "chunked_prefill": spec.chunked_prefill,
        "cuda_graphs": spec.cuda_graphs,
        "tensor_parallel": spec.tensor_parallel > 1,
    }
    if asked := [name for name, wanted in beyond.items() if wanted]:
        raise EngineUnavailableError(
            f"transformers runs eagerly, in one piece and on one device here, but {' and '.join(asked)} was asked for",
            hint="Leave it out for the transformers engine.",
        )
    if spec.device.startswith("cuda") and not torch.cuda.is_available():
        raise EngineUnavailableError(f"no CUDA device for {spec.device!r}", hint="Use device: cpu, or a GPU machine.")
    if spec.threads:
        torch.set_num_threads(spec.threads)
    report(f"loading {model.name} as {spec.dtype} on {spec.device}")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, spec.dtype), attn_implementation="eager", local_files_only=True
    )
    return TransformersEngine(spec, loaded.to(spec.device).eval(), Tokenizer(model), report)


def cpu_name() -> str:
    """Return the processor's own name, as far as the system tells it."""
    try:
        lines = FilePath("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


class Tokenizer:
    """The tokenizer and chat template that lie in a model's folder, loaded when first needed."""

    def __init__(self, model: FilePath) -> None:
        self._model = model
        self._loaded: Any = None

    def encode(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> tuple[TokenLists, TokenLists]:
        """Return the token ids of prompts and answers; see `LocalEngine.tokenize`."""
        return (
            [tuple(self._encode_prompt(prompt)) for prompt in prompts],
            [tuple(self._tokenizer.encode(answer, add_special_tokens=False)) for answer in answers],
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special ones left out."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _encode_prompt(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return list(self._tokenizer.encode(prompt))
        messages = [dict(message) for message in prompt]
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    @property
    def _tokenizer(self) -> Any:
        if self._loaded is None:
            from transformers import AutoTokenizer

            self._loaded = AutoTokenizer.from_pretrained(self._model, local_files_only=True)
        return self._loaded


class TransformersEngine:
    """A loaded model; see `load`."""

    def __init__(self, spec: EngineSpec, model: Any, tokenizer: Tokenizer, report: Report) -> None:
        self._spec = spec
        self._model = model
        self._tokenizer = tokenizer
        self._report = report

    @property
    def identity(self) -> EngineIdentity:
        """What really runs."""
        import torch

        device = self._model.device
        on_gpu = device.type == "cuda"
        return EngineIdentity(
            engine=self._spec.engine,
            version=version("transformers"),
            dtype=str(self._model.dtype).removeprefix("torch."),
            device=str(device),
            device_name=torch.cuda.get_device_name(device) if on_gpu else cpu_name(),
            vocabulary=int(self._model.config.get_text_config().vocab_size),
            evidence_class="gpu-native" if on_gpu else "cpu",
            settings={
                "attention": str(self._model.config._attn_implementation),
                "batching": f"padded on the left, at most {BATCH_ITEMS} prompts and {BATCH_TOKENS} tokens",
                "chunked_prefill": "false",
                "execution": "eager",
                "logits": "raw",
                "prefix_caching": str(self._spec.prefix_caching).lower(),
                "tensor_parallel": "1",
                "threads": str(torch.get_num_threads()),
            },
            libraries={"torch": torch.__version__, "transformers": version("transformers")},
        )

    def score(
        self, items: Sequence[ProbeItem], path: Path, batching: Batching, cache: Cache = Cache.COLD
    ) -> Mapping[str, torch.Tensor]:
        """Return raw logits by prompt id; see `Engine.score`.

        Warm, all of a prompt but its last token is run first, and the rest over the keys and values kept from it.
        """
        import torch

        require_scorable(items, self.identity.vocabulary)
        require_scoring(path)
        require_caching(cache, prefix_caching=self._spec.prefix_caching)
        scored: dict[str, torch.Tensor] = {}
        admitted = fitting(items, self._spec.context_tokens)
        run = self._prefill if path == Path.PREFILL else self._decode
        with torch.inference_mode():
            for batch in _batches(admitted, batching):
                for item, logits in zip(batch, run(batch, cache), strict=True):
                    scored[item.id] = logits.cpu()
                self._report(f"scored {len(scored)} of {len(admitted)} prompts")
        return {item.id: scored[item.id] for item in admitted}

    def _prefill(self, batch: Sequence[ProbeItem], cache: Cache) -> list[torch.Tensor]:
        """Score in one pass. Cold, rows end where the sequences do: the padded batch's last rows are the answers'."""
        if cache == Cache.WARM:
            prefix = Prefix(self._model, [item.prompt[:-1] for item in batch])
            logits = prefix.extend([item.prompt[-1:] + item.answer[:-1] for item in batch])
            return [logits[row, : len(item.answer)].clone() for row, item in enumerate(batch)]
        longest = max(len(item.answer) for item in batch)
        inputs = padded([item.prompt + item.answer[:-1] for item in batch], self._model.device)
        logits = self._model(**inputs, use_cache=False, logits_to_keep=longest).logits
        return [logits[row, longest - len(item.answer) :].clone() for row, item in enumerate(batch)]

    def _decode(self, batch: Sequence[ProbeItem], cache: Cache) -> list[torch.Tensor]:
        """Prefill the prompts, then decode one token a step over the KV cache, feeding the given answers."""
        import torch

        prefix = prefilled(self._model, [item.prompt for item in batch], cache)
        steps = [prefix.logits]
        for step in range(1, max(len(item.answer) for item in batch)):
            prefix.extend([[item.answer[min(step, len(item.answer)) - 1]] for item in batch])
            steps.append(prefix.logits)
        logits = torch.stack(steps, 1)
        return [logits[row, : len(item.answer)].clone() for row, item in enumerate(batch)]

    def sample(
        self, items: Sequence[ProbeItem], sampling: Sampling, batching: Batching, cache: Cache = Cache.COLD
    ) -> Mapping[str, Sampled]:
        """Return answers drawn in float64; see `Engine.sample`."""
        import torch

        require_scorable(items, self.identity.vocabulary)
        require_sampling(sampling)
        require_caching(cache, prefix_caching=self._spec.prefix_caching)
        admitted = fitting(items, self._spec.context_tokens, max_tokens=sampling.max_tokens)
        drawn: dict[str, Sampled] = {}
        with torch.inference_mode():
            for batch in _batches(admitted, batching):
                drawn.update(self._draw(batch, sampling, cache))
                self._report(f"sampled {len(drawn)} of {len(admitted)} answers")
        return {item.id: drawn[item.id] for item in admitted}

    def _draw(self, batch: Sequence[ProbeItem], sampling: Sampling, cache: Cache) -> dict[str, Sampled]:
        import torch

        generators = [torch.Generator().manual_seed(seed_of(sampling.seed, item.id)) for item in batch]
        tokens: list[list[int]] = [[] for _ in batch]
        rows: list[list[torch.Tensor]] = [[] for _ in batch]
        going = set(range(len(batch)))
        prefix = prefilled(self._model, [item.prompt for item in batch], cache)
        while True:
            logits = prefix.logits.cpu()
            for row in sorted(going):
                chances = (logits[row].double() / sampling.temperature).softmax(-1)
                tokens[row].append(int(torch.multinomial(chances, 1, generator=generators[row])))
                rows[row].append(logits[row])
                if tokens[row][-1] in self._stops or len(tokens[row]) == sampling.max_tokens:
                    going.remove(row)
            if not going:
                break
            prefix.extend([[found[-1]] for found in tokens])
        return {item.id: Sampled(tuple(tokens[row]), torch.stack(rows[row])) for row, item in enumerate(batch)}

    def timed(self, items: Sequence[ProbeItem], max_tokens: int, batching: Batching) -> Sequence[Timing]:
        """Return how long greedy answers took; see `Engine.timed`. A batch holds prompts of like length."""
        import torch

        require_scorable(items, self.identity.vocabulary)
        require_tokens(max_tokens)
        admitted = fitting(items, self._spec.context_tokens, max_tokens=max_tokens)
        place = {item.id: number for number, item in enumerate(admitted)}
        timings: list[Timing] = []
        with torch.inference_mode():
            for batch in _batches(admitted, batching):
                prompts = sorted((item.id for item in batch), key=place.__getitem__)
                reset_peak(self._spec.device)
                start = perf_counter()
                tokens = self._run_greedily(batch, max_tokens)
                seconds = perf_counter() - start
                timings.append(Timing(tuple(prompts), tokens, seconds, peak_bytes(self._spec.device)))
                self._report(f"timed {len(timings)} batches")
        return timings

    def _run_greedily(self, batch: Sequence[ProbeItem], max_tokens: int) -> int:
        """Generate greedily and return how many tokens; reading each step's tokens waits for the device."""
        prefix = prefilled(self._model, [item.prompt for item in batch], Cache.COLD)
        found = prefix.logits.argmax(-1).tolist()
        for _ in range(1, max_tokens):
            prefix.extend([[token] for token in found])
            found = prefix.logits.argmax(-1).tolist()
        return len(batch) * max_tokens

    def tokenize(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> tuple[TokenLists, TokenLists]:
        """Return token ids; see `LocalEngine.tokenize`."""
        return self._tokenizer.encode(prompts, answers)

    def generate(self, prompt: Sequence[int], max_tokens: int) -> Generation:
        """Return the greedy answer; see `LocalEngine.generate`."""
        import torch

        tokens: list[int] = []
        with torch.inference_mode():
            prefix = prefilled(self._model, [prompt], Cache.COLD)
            best = prefix.logits[0].float().topk(2)
            first = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            while len(tokens) < max_tokens and (token := int(prefix.logits[0].argmax())) not in self._stops:
                tokens.append(token)
                prefix.extend([[token]])
        return Generation(
            tokens=tuple(tokens),
            text=self._tokenizer.decode(tokens),
            first=tuple((token, self._tokenizer.decode([token]), logit) for token, logit in first),
        )

    @property
    def _stops(self) -> set[int]:
        """The tokens that end an answer."""
        stops = self._model.generation_config.eos_token_id
        return {stops} if isinstance(stops, int) else set(stops or ())

    def close(self) -> None:
        """Free the model."""
        self._model = None


def _batches(items: Sequence[ProbeItem], batching: Batching) -> Iterator[Sequence[ProbeItem]]:
    """Yield batches of items of like length, so that little is padded; one by one when alone."""
    if batching == Batching.ALONE:
        yield from ([item] for item in items)
        return
    batch: list[ProbeItem] = []
    for item in sorted(items, key=lambda item: len(item.prompt) + len(item.answer), reverse=True):
        widest = len(batch[0].prompt) + len(batch[0].answer) if batch else 0
        if batch and (len(batch) == BATCH_ITEMS or widest * (len(batch) + 1) > BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch
