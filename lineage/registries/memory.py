"""A registry in memory: what the protocol means, with nothing else in the way."""

from __future__ import annotations

from dataclasses import replace

from snapline.lineage.model import VersionKey
from snapline.lineage.registries.protocol import (
    HOME_TAG,
    VERSION_TAG,
    MirrorRecord,
    Shown,
    not_mirrored,
    source_document,
)


class MemoryRegistry:
    """A `Registry` that forgets when the process ends.

    Args:
        home: Stable id of the ledger it mirrors.
    """

    def __init__(self, home: str) -> None:
        self._home = home
        self._shown: dict[VersionKey, Shown] = {}

    def mirror(self, record: MirrorRecord) -> str:
        """Show `record` in place of what was shown of its version."""
        key = record.model.key
        before = self._shown.get(key)
        number = 1 + sum(other.name == key.name for other in self._shown)
        self._shown[key] = Shown(
            uri=before.uri if before else f"models:/{key.name}/{number}",
            tags={**record.tags, VERSION_TAG: str(key), HOME_TAG: self._home},
            description=record.description,
            aliases=before.aliases if before else frozenset(),
            sources=tuple(source_document(snapshot) for snapshot in record.snapshots),
            metrics={**(before.metrics if before else {}), **record.metrics},
            artifacts=dict(record.artifacts),
        )
        return self._shown[key].uri

    def set_alias(self, model: VersionKey, alias: str) -> None:
        """Move an alias onto a mirrored version."""
        if model not in self._shown:
            raise not_mirrored(model)
        for key, shown in self._shown.items():
            if key.name == model.name:
                aliases = shown.aliases | {alias} if key == model else shown.aliases - {alias}
                self._shown[key] = replace(shown, aliases=aliases)

    def show(self, model: VersionKey) -> Shown | None:
        """Return what is shown of a version."""
        return self._shown.get(model)
