"""An engine that hands back stored logits: the seam's in-memory implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from snapline.contracts.engines.protocol import Batching, EngineIdentity, Path, ProbeItem, require_scorable

if TYPE_CHECKING:
    import torch

Stored = Mapping[tuple[Path, Batching], Mapping[str, "torch.Tensor"]]


class ReplayEngine:
    """Replays logits by prompt id, path and batching; whatever is not stored could not be scored."""

    def __init__(self, identity: EngineIdentity, stored: Stored) -> None:
        self._identity = identity
        self._stored = stored

    @property
    def identity(self) -> EngineIdentity:
        """What ran when the logits were stored."""
        return self._identity

    def score(self, items: Sequence[ProbeItem], path: Path, batching: Batching) -> Mapping[str, torch.Tensor]:
        """Return the stored logits of the items; see `Engine.score`."""
        require_scorable(items, self._identity.vocabulary)
        stored = self._stored.get((path, batching), {})
        return {item.id: stored[item.id].clone() for item in items if item.id in stored}

    def close(self) -> None:
        """Nothing to free."""
