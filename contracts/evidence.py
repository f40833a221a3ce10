"""Evidence: one row per measured position, kept as Parquet so that a verdict can be rebuilt from it.

`pair` says which two programs a row compares: `serving` is the reference against the serving engine, `batching` the
serving engine alone against itself in a batch, and `noise-floor` the reference alone against itself in a batch.
"""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa


class Pair(StrEnum):
    """Which two programs a row of evidence compares."""

    SERVING = "serving"
    BATCHING = "batching"
    NOISE_FLOOR = "noise-floor"


MEASURES = (
    "half_span",
    "tv",
    "kl_reference_serving",
    "kl_serving_reference",
    "margin",
    "entropy",
    "logp_reference",
    "logp_serving",
)

SCHEMA = pa.schema(
    [
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("pair", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("token", pa.int32(), nullable=False),
        *(pa.field(name, pa.float64(), nullable=False) for name in MEASURES),
        pa.field("flip", pa.bool_(), nullable=False),
        pa.field("identical", pa.bool_(), nullable=False),
    ]
)
