"""An engine that hands back what an engine once computed: the seam's in-memory implementation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from snapline.contracts.engines.admission import require_sampling, require_scoring, require_tokens
from snapline.contracts.engines.protocol import (
    Batching,
    Cache,
    EngineIdentity,
    Path,
    ProbeItem,
    Sampled,
    Sampling,
    Timing,
    require_scorable,
)

if TYPE_CHECKING:
    import torch

Scores = Mapping[tuple[Path, Batching, Cache], Mapping[str, "torch.Tensor"]]
Samples = Mapping[tuple[Batching, Cache], Mapping[str, Sampled]]
Timings = Mapping[Batching, Sequence[Timing]]


class ReplayEngine:
    """Replays what is stored by prompt id; whatever is not stored could not be measured, so it is absent.

    Args:
        scores: Logits by path, batching and cache.
        samples: Answers by batching and cache; they are handed back however they are to be drawn.
        timings: By batching; a timing is handed back when all its prompts are asked for.
    """

    def __init__(
        self,
        identity: EngineIdentity,
        scores: Scores,
        samples: Samples = MappingProxyType({}),
        timings: Timings = MappingProxyType({}),
    ) -> None:
        self._identity = identity
        self._scores, self._samples, self._timings = scores, samples, timings

    @property
    def identity(self) -> EngineIdentity:
        """What ran when the logits were stored."""
        return self._identity

    def score(
        self, items: Sequence[ProbeItem], path: Path, batching: Batching, cache: Cache = Cache.COLD
    ) -> Mapping[str, torch.Tensor]:
        """Return the stored logits of the items; see `Engine.score`."""
        require_scorable(items, self._identity.vocabulary)
        require_scoring(path)
        stored = self._scores.get((path, batching, cache), {})
        return {item.id: stored[item.id].clone() for item in items if item.id in stored}

    def sample(
        self, items: Sequence[ProbeItem], sampling: Sampling, batching: Batching, cache: Cache = Cache.COLD
    ) -> Mapping[str, Sampled]:
        """Return the stored answers to the items; see `Engine.sample`."""
        require_scorable(items, self._identity.vocabulary)
        require_sampling(sampling)
        stored = self._samples.get((batching, cache), {})
        found = {item.id: stored[item.id] for item in items if item.id in stored}
        return {id: dataclasses.replace(answer, logits=answer.logits.clone()) for id, answer in found.items()}

    def timed(self, items: Sequence[ProbeItem], max_tokens: int, batching: Batching) -> Sequence[Timing]:
        """Return the stored timings of the items' prompts; see `Engine.timed`."""
        require_scorable(items, self._identity.vocabulary)
        require_tokens(max_tokens)
        asked = {item.id for item in items}
        return [timing for timing in self._timings.get(batching, ()) if asked.issuperset(timing.prompts)]

    def close(self) -> None:
        """Nothing to free."""
