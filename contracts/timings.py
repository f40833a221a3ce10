"""Timings: how long both engines take over the same prompts, batch by batch, nothing captured.

The batch is the unit of independence: prompts that ran together share their time. What is compared are the two
engines' figures on the same batch, so that what makes one batch slower than another cancels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from pydantic import Field, TypeAdapter, ValidationError

from snapline.contracts.clauses.protocol import Measured
from snapline.contracts.engines.protocol import Batching, Engine, ProbeItem, Report, Timing
from snapline.lineage.documents import Received
from snapline.lineage.errors import IntegrityError

COLUMNS = (
    "position",
    "token",
    "tokens",
    "batched",
    "seconds_reference",
    "seconds_serving",
    "peak_reference",
    "peak_serving",
)
"""Columns of a timing's `Measured`; `position` and `token` are there for the witness and say nothing."""


TIMED_BATCH = 4
TIMED_TOKENS = 16


class PairedTiming(Received):
    """One batch as both engines answered it.

    Attributes:
        tokens: How many each engine generated.
        seconds_reference, seconds_serving: Wall clock.
        peak_reference, peak_serving: Peak memory in bytes, as `Timing` has it.
    """

    batching: Batching
    prompts: tuple[str, ...]
    tokens: int
    seconds_reference: float = Field(gt=0, allow_inf_nan=False)
    seconds_serving: float = Field(gt=0, allow_inf_nan=False)
    peak_reference: int = Field(gt=0)
    peak_serving: int = Field(gt=0)


_ADAPTER = TypeAdapter(tuple[PairedTiming, ...])


def paired(reference: Sequence[Timing], serving: Sequence[Timing], batching: Batching) -> tuple[PairedTiming, ...]:
    """Return the two engines' timings, batch by batch; batches that only one of them could answer are left out."""
    theirs = {timing.prompts: timing for timing in serving}
    return tuple(
        PairedTiming(
            batching=batching,
            prompts=ours.prompts,
            tokens=ours.tokens,
            seconds_reference=ours.seconds,
            seconds_serving=theirs[ours.prompts].seconds,
            peak_reference=ours.peak_bytes,
            peak_serving=theirs[ours.prompts].peak_bytes,
        )
        for ours in reference
        if ours.prompts in theirs and theirs[ours.prompts].tokens == ours.tokens
    )


def timings_to_json(timings: Sequence[PairedTiming]) -> str:
    """Return the timings as they are kept in a table of evidence."""
    return _ADAPTER.dump_json(tuple(timings)).decode()


def timings_of(evidence: pa.Table) -> tuple[PairedTiming, ...]:
    """Return the timings inside a table of evidence; none when none were taken.

    Raises:
        IntegrityError: They are malformed.
    """
    kept: Mapping[bytes, bytes] = evidence.schema.metadata or {}
    try:
        return _ADAPTER.validate_json(kept.get(b"timings", b"[]"))
    except ValidationError as error:
        raise IntegrityError(f"evidence with malformed timings: {error}", hint="Measure again.") from error


def measured_timings(timings: Sequence[PairedTiming]) -> Measured:
    """Return timings as what a clause reads: one row, and one unit, for each batch."""
    names = tuple(f"{timing.batching.value} {number}" for number, timing in enumerate(timings))
    columns = {name: np.array([getattr(timing, name) for timing in timings], np.float64) for name in COLUMNS[4:]}
    zeros = np.zeros(len(timings), np.int64)
    return Measured(
        prompts=names,
        starts=np.arange(len(timings), dtype=np.int64),
        columns=columns
        | {
            "position": zeros,
            "token": zeros,
            "tokens": np.array([timing.tokens for timing in timings], np.int64),
            "batched": np.array([timing.batching is Batching.BATCHED for timing in timings], np.bool_),
        },
    )


def time_both(
    engines: tuple[Engine, Engine], items: Sequence[ProbeItem], wanted: Sequence[tuple[Batching, int]], report: Report
) -> tuple[PairedTiming, ...]:
    """Return both engines' time over the same batches, one engine at a time, so that neither slows the other.

    A batch is `TIMED_BATCH` prompts, or one alone, and each generates `TIMED_TOKENS` tokens. No prompt is timed twice,
    so there may be fewer batches than wanted. One batch is run before, for what only a first run costs.
    """
    found: list[PairedTiming] = []
    for batching, runs in wanted:
        # Prompts alone are timed in one go; a batch is handed over by itself, because engines cut batches differently.
        size, group = (1, runs) if batching is Batching.ALONE else (TIMED_BATCH, TIMED_BATCH)
        there = items[: runs * size]
        for engine in engines if len(there) >= size else ():
            engine.timed(there[:size], TIMED_TOKENS, batching)
        for start in range(0, len(there) - size + 1, group):
            ours, theirs = (e.timed(there[start : start + group], TIMED_TOKENS, batching) for e in engines)
            found += paired(ours, theirs, batching)
            report(f"timed {len(found)} runs, {batching.value}")
    return tuple(found)
