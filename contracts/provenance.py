"""Provenance: everything a table of evidence depends on, kept inside it."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pydantic import Field, ValidationError

from snapline.lineage.digest import Digest
from snapline.lineage.documents import Received
from snapline.lineage.errors import IntegrityError

RECIPE: Final = "divergence-v2"


class Provenance(Received):
    """What was measured, and how.

    Attributes:
        recipe: Name of the measuring procedure; another procedure's evidence is never judged as this one's.
        weights, probes: Digests of the model's weights and of the probe set.
        reference, serving: Digests of what was installed on either side.
        temperature: Logits were divided by it.
        comparisons: How many prompts each comparison took, by its `Comparison.key`; they are the first ones of
            `slices.sample`.
        timings: How many runs were timed, by kind.
        horizon: The most tokens of an answer that was drawn.
        lengths: Prompt and answer length in tokens, by prompt id.
        sampled: Length in tokens of the answer the serving engine drew, by prompt id.
        kernel: What computed the measures.
    """

    recipe: str = RECIPE
    weights: Digest
    probes: Digest
    reference: Digest
    serving: Digest
    temperature: str
    comparisons: dict[str, int]
    timings: dict[str, int] = Field(default_factory=dict)
    horizon: int = 0
    lengths: dict[str, tuple[int, int]] = Field(default_factory=dict)
    sampled: dict[str, int] = Field(default_factory=dict)
    kernel: str = ""

    def covers(self, wanted: Provenance) -> bool:
        """Return whether this evidence holds all that `wanted` asks for: the same inputs, and at least its figures."""
        loose: dict[str, Any] = {
            name: type(self).model_fields[name].get_default(call_default_factory=True)
            for name in ("timings", "horizon", "lengths", "sampled", "kernel")
        } | {"comparisons": {}}
        same = self.model_copy(update=loose) == wanted.model_copy(update=loose)
        return (
            same
            and self.horizon >= wanted.horizon
            and all(self.comparisons.get(key, -1) >= count for key, count in wanted.comparisons.items())
            and all(self.timings.get(key, -1) >= count for key, count in wanted.timings.items())
        )


def provenance_of(evidence: pa.Table) -> Provenance:
    """Return the provenance inside a table of evidence.

    Raises:
        IntegrityError: There is none, or it is malformed.
    """
    try:
        return Provenance.model_validate_json((evidence.schema.metadata or {})[b"provenance"])
    except (KeyError, ValidationError) as error:
        raise IntegrityError(f"evidence without provenance: {error}", hint="Measure again.") from error
