"""What an engine is: a program that scores given tokens and hands over its raw logits.

This module is imported inside worker processes, so it needs nothing beyond the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Path(StrEnum):
    """The kernels a score exercises.

    `prefill` scores the answer inside one pass over prompt and answer. `decode-forced` prefills the prompt, then
    decodes while the given answer's tokens are forced, so that the decode kernels are the ones measured.
    """

    PREFILL = "prefill"
    DECODE_FORCED = "decode-forced"


class Batching(StrEnum):
    """Whether prompts run one at a time or together."""

    ALONE = "alone"
    BATCHED = "batched"


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
    """

    engine: str
    dtype: str
    device: str = "cpu"
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    interpreter: str | None = None


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


class Engine(Protocol):
    """A started engine with one model loaded."""

    @property
    def identity(self) -> EngineIdentity:
        """What really runs."""

    def score(self, items: Sequence[ProbeItem], path: Path, batching: Batching) -> Mapping[str, torch.Tensor]:
        """Return raw logits by prompt id, each of shape (len(answer), vocabulary), in the engine's own dtype.

        Row `i` scores `answer[i]` given the prompt and `answer[:i]`. A prompt the engine could not score is absent.
        """

    def close(self) -> None:
        """Free the model; calling it twice is fine."""
