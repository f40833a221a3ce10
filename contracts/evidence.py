"""Evidence: one row per measured position, kept as Parquet so that a verdict can be rebuilt from it.

`pair` says which two programs a row compares, the left one called the reference: `serving` is the reference engine
against the serving engine, `noise-floor` the reference engine alone against itself in a batch. All others hold the
serving engine against itself, as it runs and with one thing changed. On the path `decode-sampled` the tokens are those
the serving engine drew.
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
    ORDER = "order"
    REPEAT = "repeat"
    PREFIX_CACHE = "prefix-cache"
    CHUNKED_PREFILL = "chunked-prefill"
    THREADS = "threads"
    TENSOR_PARALLEL = "tensor-parallel"
    CUDA_GRAPHS = "cuda-graphs"
    TIMING = "timing"
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
    "top_reference",
    "top_serving",
)
TOKENS = ("greedy_reference", "greedy_serving")
FACTS = ("flip", "identical")
COLUMNS = ("position", "token", *MEASURES, *TOKENS, *FACTS)

SCHEMA = pa.schema(
    [
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("pair", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("token", pa.int32(), nullable=False),
        *(pa.field(name, pa.float64(), nullable=False) for name in MEASURES),
        *(pa.field(name, pa.int32(), nullable=False) for name in TOKENS),
        *(pa.field(name, pa.bool_(), nullable=False) for name in FACTS),
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
