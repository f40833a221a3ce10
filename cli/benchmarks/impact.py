"""What asking for everything downstream of one model costs, in a large graph."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from snapline.cli.benchmarks.measuring import Row, median_seconds
from snapline.lineage.impact import GraphTables, Subject, downstream

TARGET_SECONDS = 0.3


def measure(models: int, edges: int) -> list[Row]:
    """Return the seconds of an impact query, from tables that exist to the answer, over random ancestry."""
    tables = _graph(models, edges)
    root = Subject("m0", ("model:m0/1",))
    reached = downstream(tables, root).num_rows
    seconds = median_seconds(lambda: downstream(tables, root), repeats=5)
    what = f"{models:,} models, {edges:,} edges: {reached:,} affected"
    met = seconds < TARGET_SECONDS
    return [Row("impact", what, seconds * 1000, "ms", target=f"under {TARGET_SECONDS * 1000:.0f} ms", met=met)]


def _graph(models: int, edges: int) -> GraphTables:
    """Return models that each came from some that were there before them."""
    random = np.random.default_rng(0)
    child = random.integers(1, models, edges)
    parent = (random.random(edges) * child).astype(np.int64)
    names = [f"model:m{number}/1" for number in range(models)]
    nodes = pa.table({"id": names, "kind": ["model"] * models, "label": names})
    columns = {"child": pa.array(child, pa.int32()), "parent": pa.array(parent, pa.int32())}
    kinds = pa.array(np.zeros(edges), pa.int32())
    return GraphTables(nodes, pa.table(columns | {"kind": kinds}).sort_by("parent"), ("fine_tuned_from",))
