"""Provenance: everything a table of evidence depends on, kept inside it."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pydantic import Field, ValidationError

from snapline.lineage.digest import Digest
from snapline.lineage.documents import Received
from snapline.lineage.errors import IntegrityError

RECIPE: Final = "divergence-v1"


class Provenance(Received):
    """What was measured, and how.

    Attributes:
        recipe: Name of the measuring procedure; another procedure's evidence is never judged as this one's.
        weights, probes: Digests of the model's weights and of the probe set.
        reference, serving: Digests of what was installed on either side.
        temperature: Logits were divided by it.
        paths: The kernels that were exercised.
        lengths: Prompt and answer length in tokens, by prompt id.
    """

    recipe: str = RECIPE
    weights: Digest
    probes: Digest
    reference: Digest
    serving: Digest
    temperature: str
    paths: tuple[str, ...]
    lengths: dict[str, tuple[int, int]] = Field(default_factory=dict)

    def covers(self, wanted: Provenance) -> bool:
        """Return whether this evidence holds all that `wanted` asks for: the same inputs, and at least its paths."""
        loose: dict[str, Any] = {"paths": (), "lengths": {}}
        same = self.model_copy(update=loose) == wanted.model_copy(update=loose)
        return same and set(wanted.paths) <= set(self.paths)


def provenance_of(evidence: pa.Table) -> Provenance:
    """Return the provenance inside a table of evidence.

    Raises:
        IntegrityError: There is none, or it is malformed.
    """
    try:
        return Provenance.model_validate_json((evidence.schema.metadata or {})[b"provenance"])
    except (KeyError, ValidationError) as error:
        raise IntegrityError(f"evidence without provenance: {error}", hint="Measure again.") from error
