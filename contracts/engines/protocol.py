"""What an engine is: a program that scores given tokens and hands over its raw logits.

An engine is one module with a `load(spec, model, report)` that returns a started `LocalEngine`, and two constants:
`ENVIRONMENT`, the variables its process must start with, and `INSTALL`, what to say to somebody who lacks it. Importing
the module must stay cheap: an engine imports its libraries inside `load`.

This module is imported inside worker processes, so it needs nothing beyond the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from snapline.lineage.errors import DefinitionError

if TYPE_CHECKING:
    import torch

Report: TypeAlias = Callable[[str], None]
Prompt: TypeAlias = str | Sequence[Mapping[str, str]]
TokenLists: TypeAlias = list[tuple[int, ...]]


class Path(StrEnum):
    """The kernels a measurement exercises.

    `prefill` scores the answer inside one pass over prompt and answer. `decode-forced` prefills the prompt, then
    decodes while the given answer's tokens are forced, so that the decode kernels are the ones measured.
    `decode-sampled` decodes too, but the tokens are those the engine itself drew.
    """

    PREFILL = "prefill"
    DECODE_FORCED = "decode-forced"
    DECODE_SAMPLED = "decode-sampled"


class Batching(StrEnum):
    """Whether prompts run one at a time or together."""

    ALONE = "alone"
    BATCHED = "batched"


class Cache(StrEnum):
    """Whether the keys and values of a prompt's prefix are computed (cold) or found from an earlier request (warm)."""

    COLD = "cold"
    WARM = "warm"


@dataclass(frozen=True, slots=True)
class ProbeItem:
    """One prompt and the answer to score it on, as token ids; both are at least one token long."""

    id: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What to start. None leaves the engine's own default; `interpreter` None is the current one.

    `version` is not here: the installed version is found, and held against the contract before anything starts.

    Attributes:
        engine: A module of `snapline.contracts.engines`, or the dotted name of any other module that is an engine.
        context_tokens: The longest prompt and answer together; a longer item is not scored.
        prefix_caching: Whether prefixes are kept between requests; without it nothing can be measured warm.
        chunked_prefill: Whether a long prompt is computed in pieces, beside others' decoding.
        cuda_graphs: Whether the model is compiled and captured; otherwise it runs eagerly.
        threads: CPU threads; None leaves them to the environment.
        tensor_parallel: How many devices share each layer.
    """

    engine: str
    dtype: str
    device: str = "cpu"
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    interpreter: str | None = None
    context_tokens: int = 4096
    prefix_caching: bool = False
    chunked_prefill: bool = False
    cuda_graphs: bool = False
    threads: int | None = None
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What really ran, as the engine reports it after start.

    `settings` holds what can change numbers: attention backend, thread count, prefix caching, chunked prefill, eager
    or compiled, log-prob mode. `libraries` holds versions. Values are strings.
    """

    engine: str
    version: str
    dtype: str
    device: str
    device_name: str
    vocabulary: int
    evidence_class: str
    settings: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)

    def as_document(self) -> dict[str, Any]:
        """Return the identity as plain JSON values."""
        return {
            "engine": self.engine,
            "version": self.version,
            "dtype": self.dtype,
            "device": self.device,
            "device_name": self.device_name,
            "vocabulary": self.vocabulary,
            "evidence_class": self.evidence_class,
            "settings": dict(self.settings),
            "libraries": dict(self.libraries),
        }


@dataclass(frozen=True, slots=True)
class Generation:
    """A greedy answer.

    Attributes:
        first: The two likeliest first tokens with their raw logits, likeliest first: how near to a tie the answer was.
    """

    tokens: tuple[int, ...]
    text: str
    first: tuple[tuple[int, str, float], ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an engine draws its own answers.

    Attributes:
        temperature: Logits are divided by it before the softmax that is drawn from; more than 0. Nothing is truncated.
        seed: Mixed with a prompt's id: each prompt has draws of its own, whatever batch it is in.
    """

    max_tokens: int
    temperature: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Sampled:
    """An answer an engine drew; it ends with the end-of-text token or at `max_tokens`.

    Attributes:
        logits: Shape (len(tokens), vocabulary): the raw logits each token was drawn from, before the temperature.
    """

    tokens: tuple[int, ...]
    logits: torch.Tensor


@dataclass(frozen=True, slots=True)
class Timing:
    """One batch of greedy answers, nothing captured.

    Attributes:
        prompts: Ids, in the order given.
        tokens: How many were generated in all.
        seconds: Wall clock from request to last token.
        peak_bytes: The process's peak resident memory so far on CPU; on a GPU the peak allocated in this batch.
    """

    prompts: tuple[str, ...]
    tokens: int
    seconds: float
    peak_bytes: int


class Engine(Protocol):
    """A started engine with one model loaded."""

    @property
    def identity(self) -> EngineIdentity:
        """What really runs."""

    def score(
        self, items: Sequence[ProbeItem], path: Path, batching: Batching, cache: Cache = Cache.COLD
    ) -> Mapping[str, torch.Tensor]:
        """Return raw logits by prompt id, each of shape (len(answer), vocabulary), in the engine's own dtype.

        Row `i` scores `answer[i]` given the prompt and `answer[:i]`. A prompt the engine could not score is absent.
        `decode-sampled` gives no tokens, so it cannot be scored: see `sample`.

        Raises:
            DefinitionError: An item is empty, repeated, or holds a token outside the vocabulary; the path is not one
                that scores; warm is asked of an engine without prefix caching, or of a path that never reads the cache.
            EngineFailedError: The engine could not go on.
        """

    def sample(
        self, items: Sequence[ProbeItem], sampling: Sampling, batching: Batching, cache: Cache = Cache.COLD
    ) -> Mapping[str, Sampled]:
        """Return the answers the engine draws to the items' prompts, by prompt id; their given answers are ignored.

        A prompt that leaves no room for `max_tokens` more is absent.

        Raises:
            DefinitionError, EngineFailedError: As for `score`.
        """

    def timed(self, items: Sequence[ProbeItem], max_tokens: int, batching: Batching) -> Sequence[Timing]:
        """Generate exactly `max_tokens` greedy tokens for every prompt, nothing captured, and say how long it took.

        One timing for each batch; alone, one for each prompt. Whatever only a first run costs is in the first timing.

        Raises:
            DefinitionError, EngineFailedError: As for `score`.
        """

    def close(self) -> None:
        """Free the model; calling it twice is fine."""


class LocalEngine(Engine, Protocol):
    """An engine in this process: what a worker serves."""

    def tokenize(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> tuple[TokenLists, TokenLists]:
        """Return the token ids of prompts and of answers, by the model's own tokenizer.

        Messages go through the chat template and open the assistant's turn; a text prompt gets the tokenizer's own
        special tokens; an answer gets none, so it continues the prompt.
        """

    def generate(self, prompt: Sequence[int], max_tokens: int) -> Generation:
        """Return the greedy answer to a prompt, at most `max_tokens` long."""


def module_name(engine: str) -> str:
    """Return the module that an engine's name stands for."""
    return engine if "." in engine else f"snapline.contracts.engines.{engine}"


def require_scorable(items: Sequence[ProbeItem], vocabulary: int) -> None:
    """Raise unless every item can be scored by a model with that vocabulary.

    Raises:
        DefinitionError: An item has no prompt or answer, repeats an id, or holds a token outside the vocabulary.
    """
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise DefinitionError(f"probe {item.id!r} appears twice", hint="Give every probe its own id.")
        seen.add(item.id)
        if not item.prompt or not item.answer:
            part = "answer" if item.prompt else "prompt"
            raise DefinitionError(f"probe {item.id!r} has an empty {part}", hint="Leave it out or complete it.")
        for token in (*item.prompt, *item.answer):
            if not 0 <= token < vocabulary:
                raise DefinitionError(
                    f"probe {item.id!r} holds token {token}, but the model's vocabulary is 0 to {vocabulary - 1}",
                    hint="Tokenize the probe with this model's own tokenizer.",
                )
