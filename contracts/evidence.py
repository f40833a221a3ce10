"""Evidence: one row per measured position, kept as Parquet so that a verdict can be rebuilt from it.

`pair` says which two programs a row compares: `serving` is the reference against the serving engine, `batching` the
serving engine alone against itself in a batch, and `noise-floor` the reference alone against itself in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import pyarrow as pa
import pyarrow.parquet as pq

from snapline.lineage.errors import IntegrityError


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


def evidence_to_parquet(table: pa.Table, metadata: Mapping[str, str]) -> bytes:
    """Return the evidence as the bytes of a Parquet file; the same table and metadata give the same bytes."""
    sink = pa.BufferOutputStream()
    named = table.cast(SCHEMA).combine_chunks().replace_schema_metadata(dict(sorted(metadata.items())))
    pq.write_table(named, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def evidence_from_parquet(data: bytes) -> pa.Table:
    """Return the evidence held in the bytes of a Parquet file, with its metadata.

    Raises:
        IntegrityError: The bytes are not Parquet, or not evidence.
    """
    try:
        table = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise IntegrityError(f"the evidence is not readable as Parquet: {error}", hint="Certify again.") from error
    if not table.schema.equals(SCHEMA):
        raise IntegrityError(
            f"expected evidence with the columns {SCHEMA.names}, found {table.schema.names}, or other types",
            hint="Certify again.",
        )
    return table
