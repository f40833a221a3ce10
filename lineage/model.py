"""Model versions: weights, and what they were made from."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from snapline.lineage.digest import Digest
from snapline.lineage.documents import Value
from snapline.lineage.errors import DefinitionError
from snapline.lineage.snapshot import Name


class Weights(Value):
    """Weights where they lie; `manifest` is the address of the per-file, per-tensor manifest object."""

    digest: Digest
    path: str
    manifest: Digest
    size_bytes: int


class VersionKey(Value):
    """One version of one model; written `name/3`."""

    name: Name
    version: Annotated[int, Field(ge=1)]

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"


class EdgeKind(StrEnum):
    """How one model came from another."""

    FINE_TUNED_FROM = "fine_tuned_from"
    DISTILLED_FROM = "distilled_from"
    ADAPTER_OF = "adapter_of"
    MERGED_FROM = "merged_from"
    QUANTIZED_FROM = "quantized_from"


class UseKind(StrEnum):
    """What a model's maker did with a snapshot."""

    TRAINED_ON = "trained_on"
    EVALUATED_ON = "evaluated_on"
    CALIBRATED_ON = "calibrated_on"


class Parent(Value):
    """An edge to the version this one was made from."""

    kind: EdgeKind
    model: VersionKey


class Use(Value):
    """An edge to a snapshot that was not trained on: by its id."""

    kind: UseKind
    snapshot: str


class ModelVersion(Value):
    """A recorded model version.

    Attributes:
        view: Name and digest of the view it materializes; None for an external base model.
        snapshots: Ids of the snapshots it was trained on.
        uses: Snapshots it was evaluated or calibrated on.
        contract: Name of the contract its gate requires; None when none was bound.
        materialize_seconds: How long its trainer took, when Snapline ran it; the planner's estimate of the next run.
    """

    key: VersionKey
    weights: Weights
    view_name: Name | None = None
    view: Digest | None = None
    snapshots: tuple[str, ...] = ()
    uses: tuple[Use, ...] = ()
    parents: tuple[Parent, ...] = ()
    contract: Name | None = None
    materialize_seconds: int | None = None

    @property
    def touched(self) -> tuple[str, ...]:
        """Ids of every snapshot whose rows this version saw, however it used them."""
        return (*self.snapshots, *(use.snapshot for use in self.uses))


class Reference(Value):
    """A model as a person names it: `name`, `name/3` or `name@champion`, with or without MLflow's `models:/`."""

    name: Name
    version: int | None = None
    alias: Name | None = None


_REFERENCE = re.compile(r"^(?:models:/)?(?P<name>[^/@\s]+)(?:/(?P<version>\d+)|@(?P<alias>[^/@\s]+))?$")


def parse_reference(text: str) -> Reference:
    """Return the model reference a person wrote.

    Raises:
        DefinitionError: It is none of the spellings.
    """
    match = _REFERENCE.match(text)
    try:
        if match:
            return Reference.model_validate(match.groupdict())
    except ValueError:
        pass
    raise DefinitionError(
        f"expected a model, found {text!r}", hint="Write name, name/3, name@champion or models:/name/3."
    )
