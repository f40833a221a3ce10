"""Hugging Face transformers with eager attention: the reference.

It needs torch, transformers and safetensors only, so that it also runs where the rest of Snapline is not installed.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
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
    if spec.device.startswith("cuda") and not torch.cuda.is_available():
        raise EngineUnavailableError(f"no CUDA device for {spec.device!r}", hint="Use device: cpu, or a GPU machine.")
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
                "execution": "eager",
                "logits": "raw",
                "threads": str(torch.get_num_threads()),
            },
            libraries={"torch": torch.__version__, "transformers": version("transformers")},
        )

    def score(self, items: Sequence[ProbeItem], path: Path, batching: Batching) -> Mapping[str, torch.Tensor]:
        """Return raw logits by prompt id; see `Engine.score`."""
        import torch

        require_scorable(items, self.identity.vocabulary)
        scored: dict[str, torch.Tensor] = {}
        fitting = [item for item in items if len(item.prompt) + len(item.answer) <= self._spec.context_tokens]
        run = self._prefill if path == Path.PREFILL else self._decode
        with torch.inference_mode():
            for batch in _batches(fitting, batching):
                for item, logits in zip(batch, run(batch), strict=True):
                    scored[item.id] = logits.cpu()
                self._report(f"scored {len(scored)} of {len(fitting)} prompts")
        return {item.id: scored[item.id] for item in fitting}

    def _prefill(self, batch: Sequence[ProbeItem]) -> list[torch.Tensor]:
        """Score in one pass. Rows end where the sequences do, so the last rows of the padded batch are the answers'."""
        longest = max(len(item.answer) for item in batch)
        inputs = self._padded([item.prompt + item.answer[:-1] for item in batch])
        logits = self._model(**inputs, use_cache=False, logits_to_keep=longest).logits
        return [logits[row, longest - len(item.answer) :].clone() for row, item in enumerate(batch)]

    def _decode(self, batch: Sequence[ProbeItem]) -> list[torch.Tensor]:
        """Prefill the prompts, then decode one token a step over the KV cache, feeding the given answers."""
        import torch

        inputs = self._padded([item.prompt for item in batch])
        lengths = inputs["attention_mask"].sum(-1, keepdim=True)
        output = self._model(**inputs, use_cache=True, logits_to_keep=1)
        steps = [output.logits[:, -1]]
        mask = inputs["attention_mask"]
        for step in range(1, max(len(item.answer) for item in batch)):
            fed = [item.answer[min(step, len(item.answer)) - 1] for item in batch]
            mask = torch.cat([mask, mask.new_ones(len(batch), 1)], -1)
            output = self._model(
                input_ids=torch.tensor(fed, device=mask.device).unsqueeze(-1),
                attention_mask=mask,
                position_ids=lengths + step - 1,
                past_key_values=output.past_key_values,
                use_cache=True,
            )
            steps.append(output.logits[:, -1])
        logits = torch.stack(steps, 1)
        return [logits[row, : len(item.answer)].clone() for row, item in enumerate(batch)]

    def _padded(self, sequences: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        """Return token ids padded on the left, with the mask and positions that make the padding invisible."""
        import torch

        width = max(map(len, sequences))
        ids = torch.zeros(len(sequences), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(sequences):
            ids[row, width - len(tokens) :] = torch.tensor(tokens)
            mask[row, width - len(tokens) :] = 1
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        named = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        return {name: tensor.to(self._model.device) for name, tensor in named.items()}

    def tokenize(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> tuple[TokenLists, TokenLists]:
        """Return token ids; see `LocalEngine.tokenize`."""
        return self._tokenizer.encode(prompts, answers)

    def generate(self, prompt: Sequence[int], max_tokens: int) -> Generation:
        """Return the greedy answer; see `LocalEngine.generate`."""
        import torch

        stops = self._model.generation_config.eos_token_id
        stops = {stops} if isinstance(stops, int) else set(stops or ())
        tokens: list[int] = []
        with torch.inference_mode():
            output = self._model(torch.tensor([list(prompt)], device=self._model.device), use_cache=True)
            best = output.logits[0, -1].float().topk(2)
            first = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            while len(tokens) < max_tokens and (token := int(output.logits[0, -1].argmax())) not in stops:
                tokens.append(token)
                step = torch.tensor([[token]], device=self._model.device)
                output = self._model(step, past_key_values=output.past_key_values, use_cache=True)
        return Generation(
            tokens=tuple(tokens),
            text=self._tokenizer.decode(tokens),
            first=tuple((token, self._tokenizer.decode([token]), logit) for token, logit in first),
        )

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
