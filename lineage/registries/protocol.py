"""What a registry is: the place people browse, which mirrors what the ledger says.

The ledger is the truth. Everything a registry shows can be written again from it, and nothing is ever decided from what
a registry shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from snapline.lineage.digest import hex_part
from snapline.lineage.errors import SnaplineError
from snapline.lineage.model import ModelVersion, VersionKey
from snapline.lineage.snapshot import Snapshot

TAG_PREFIX = "snapline."
VERSION_TAG = f"{TAG_PREFIX}version"
HOME_TAG = f"{TAG_PREFIX}home"
TAG_LIMIT = 64
DESCRIPTION_LIMIT = 4_500
ARTIFACT_LIMIT_BYTES = 500_000


class MirrorError(SnaplineError):
    """A registry could not be read or written; the ledger is whole and the mirror can be rebuilt from it."""


@dataclass(frozen=True, slots=True)
class ProbeSet:
    """The prompts a version's metrics were measured on; `count` is how many."""

    name: str
    digest: str
    count: int


@dataclass(frozen=True, slots=True)
class MirrorRecord:
    """Everything a registry shows of one model version.

    Attributes:
        model: The version; its weights are referenced where they lie and never copied.
        snapshots: The snapshots it was made from.
        tags: Short facts by name; a name begins `snapline.`, a value is what a browser shows uncut.
        description: Markdown whose first line is plain, because lists show that line unrendered.
        metrics: Finite figures by name.
        probes: What the metrics were measured on; None when there are none.
        artifacts: Documents by file name.

    Raises:
        MirrorError: A value is outside what registries show; the message names it.
    """

    model: ModelVersion
    snapshots: tuple[Snapshot, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    probes: ProbeSet | None = None
    artifacts: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tags", "metrics", "artifacts"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        self._check_tags()
        self._check_description()
        for name, value in self.metrics.items():
            if not abs(value) < float("inf"):
                raise MirrorError(f"metric {name} is {value}", hint="Leave out figures that were not measured.")
        for name, data in self.artifacts.items():
            if not name or "/" in name or "\\" in name or name.startswith("."):
                raise MirrorError(f"artifact {name!r} is not a plain file name", hint="Use a name such as report.md.")
            if len(data) > ARTIFACT_LIMIT_BYTES:
                raise MirrorError(
                    f"artifact {name} has {len(data)} bytes, the limit is {ARTIFACT_LIMIT_BYTES}",
                    hint="Browsers hang on larger ones; show a summary and point to the rest.",
                )

    def _check_tags(self) -> None:
        for name, value in self.tags.items():
            if not name.startswith(TAG_PREFIX) or name in (VERSION_TAG, HOME_TAG):
                raise MirrorError(
                    f"tag {name!r} is not the caller's to set",
                    hint=f"Begin it with {TAG_PREFIX}; {VERSION_TAG} and {HOME_TAG} are the registry's own.",
                )
            if not 0 < len(value) <= TAG_LIMIT:
                raise MirrorError(
                    f"tag {name} has {len(value)} characters, expected 1 to {TAG_LIMIT}", hint="Longer ones are cut."
                )

    def _check_description(self) -> None:
        if len(self.description) > DESCRIPTION_LIMIT:
            raise MirrorError(
                f"the description has {len(self.description)} characters, the limit is {DESCRIPTION_LIMIT}",
                hint="Put the rest into an artifact.",
            )
        first = self.description.partition("\n")[0]
        if first.startswith(("#", "|", ">", "-", "*", "`", "<")):
            raise MirrorError(
                f"the description's first line is not plain: {first!r}",
                hint="Lists show the first line as it is written; begin with a sentence.",
            )


@dataclass(frozen=True, slots=True)
class Shown:
    """What a registry shows of one version now.

    Attributes:
        uri: The version's address in the registry, such as `models:/name/3`.
        sources: The source document of every snapshot, in the record's order.
        metrics: The newest value of each metric.
    """

    uri: str
    tags: Mapping[str, str]
    description: str
    aliases: frozenset[str]
    sources: tuple[Mapping[str, str], ...]
    metrics: Mapping[str, float]
    artifacts: Mapping[str, bytes]


class Registry(Protocol):
    """Where people browse models.

    A registry numbers versions in the order it first sees them. So that its numbers are the ledger's, mirror the
    versions of a model in order.
    """

    def mirror(self, record: MirrorRecord) -> str:
        """Make the registry show `record`, in place of what it showed of that version, and return the version's URI.

        Mirroring a record twice changes nothing. Whatever somebody deleted from the registry is made again. A metric
        the record no longer has keeps its last value, because registries keep the history of figures; so a metric's
        name should say what it was measured under.

        Raises:
            MirrorError: The registry is missing, failed or refused.
        """

    def set_alias(self, model: VersionKey, alias: str) -> None:
        """Move an alias onto a mirrored version, and read it back.

        Raises:
            MirrorError: The version is not mirrored, the alias is not one the registry allows, or it did not move.
        """

    def show(self, model: VersionKey) -> Shown | None:
        """Return what the registry shows of a version; None when it shows nothing.

        Raises:
            MirrorError: The registry is missing or failed.
        """


def source_document(snapshot: Snapshot) -> dict[str, str]:
    """Return where a snapshot's rows came from, as the plain strings every registry can keep beside a version."""
    series, cut = snapshot.series, snapshot.cut
    document = {
        "snapshot": series.name,
        "id": snapshot.id,
        "digest": snapshot.digest,
        "source": series.source,
        "since": cut.since.isoformat(),
        "until": cut.until.isoformat(),
        "as_of": cut.as_of.isoformat() if cut.as_of else None,
        "time": series.time,
        "known": series.known,
        "key": series.key,
        "bucket": series.bucket.value,
        "buckets": str(snapshot.buckets),
        "rows": str(snapshot.rows),
    }
    return {name: value for name, value in document.items() if value is not None}


def snapshot_label(snapshot: Snapshot) -> str:
    """Return 36 characters: the first 20 hex digits of the content digest, a dash, the first 15 of the snapshot's id.

    The id is part of it because registries treat equal labels as one data set and show the first one's source for
    both, and two sources that hold the same rows share their content digest.
    """
    return f"{hex_part(snapshot.digest)[:20]}-{snapshot.id[:15]}"


def not_mirrored(model: VersionKey) -> MirrorError:
    """Return the error of asking a registry about a version it does not show."""
    return MirrorError(f"{model} is not in the registry", hint="Run snapline mirror --rebuild.")
