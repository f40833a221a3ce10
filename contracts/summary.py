"""What a table of evidence holds, at a glance: rows by pair and path, and the unbounded figures of each path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from snapline.contracts.clauses import DIAGNOSTICS
from snapline.contracts.engines.protocol import Path
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import decimal_text, rounded
from snapline.contracts.judge import measured

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many prompts and positions one pair and path has."""

    pair: str
    path: str
    prompts: int
    rows: int


def row_counts(evidence: pa.Table) -> list[RowCount]:
    """Return the counts by pair, in the order of `evidence.Pair`, then path."""
    counted = evidence.group_by(["pair", "path"]).aggregate([("prompt", "count_distinct"), ("prompt", "count")])
    found = [
        RowCount(row["pair"], row["path"], row["prompt_count_distinct"], row["prompt_count"])
        for row in counted.to_pylist()
    ]
    order = [pair.value for pair in Pair]
    return sorted(found, key=lambda count: (order.index(count.pair) if count.pair in order else len(order), count.path))


def diagnostics(evidence: pa.Table) -> dict[str, dict[str, str]]:
    """Return every unbounded figure of the serving engine against the reference by path, as decimal strings.

    Of all rows that hold numbers, whether or not the prompt they belong to is complete.
    """
    found = {}
    for path in Path:
        chosen = evidence.filter((pc.field("pair") == Pair.SERVING.value) & (pc.field("path") == path.value))
        lengths = dict.fromkeys(chosen["prompt"].to_pylist(), 0)
        for prompt in chosen["prompt"].to_pylist():
            lengths[prompt] += 1
        seen = measured(evidence, Pair.SERVING, path, lengths)
        if seen.rows:
            found[path.value] = {name: decimal_text(rounded(figure(seen))) for name, figure in DIAGNOSTICS.items()}
    return found
