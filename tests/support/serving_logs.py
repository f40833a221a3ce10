"""Serving logs made to measure: requests an engine answered, and the files they are logged in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from snapline.contracts.rollout.log import LOG_SCHEMA
from snapline.contracts.rollout.record import ServingRecord
from snapline.lineage.cut import parse_instant

FIRST = parse_instant("2026-11-30T12:00:00Z")
FULL = {"margin": [1.0, 2.0], "batch_size": 2, "cache_hit": False, "latency_seconds": 0.25, "route": "serving"}


def request(number: int, drift: float = 0.0, /, **said: Any) -> dict[str, Any]:
    """One logged request of two tokens that the serving engine finds `drift` nats likelier than the reference does.

    Requests are a second apart. What `said` gives as None is left out.
    """
    logged = {
        "id": f"r{number}",
        "at": (FIRST + timedelta(seconds=number)).isoformat(),
        "prompt_ids": [1, 2, 3],
        "token_ids": [4, 5],
        "sampled_logprob": [-1.0, -2.0],
        "reference_logprob": [-1.0, -2.0 - drift],
        "tags": {"language": "en" if number % 2 else "de"},
    }
    return {name: value for name, value in (logged | FULL | said).items() if value is not None}


def requests(drifts: Iterable[float], start: int = 0, **said: Any) -> list[dict[str, Any]]:
    return [request(start + place, float(drift), **said) for place, drift in enumerate(drifts)]


def records(rows: Sequence[dict[str, Any]]) -> list[ServingRecord]:
    return [ServingRecord.model_validate(row) for row in rows]


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    import json

    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """The same requests as a table of the documented schema."""
    columns = {name: [row.get(name) for row in rows] for name in LOG_SCHEMA.names}
    columns["at"] = [datetime.fromisoformat(row["at"]) for row in rows]
    columns["tags"] = [list(row.get("tags", {}).items()) for row in rows]
    return pa.table(columns, schema=LOG_SCHEMA)


def write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    pq.write_table(as_table(rows), path)
    return path


def write_arrow(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    with pa.ipc.new_file(path, LOG_SCHEMA) as stream:
        stream.write_table(as_table(rows))
    return path


def drift_of(distance: float) -> float:
    """The drift at which max(0, 1 - W) of a request is `distance`."""
    return float(-np.log1p(-distance))
