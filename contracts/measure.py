"""Run a reference and a serving engine over the same tokens, and write down how far apart they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from snapline.contracts.engines.protocol import Batching, Engine, EngineIdentity, EngineSpec, Path, ProbeItem, Report
from snapline.contracts.errors import EngineFailedError, IncomparableError
from snapline.contracts.evidence import MEASURES, SCHEMA, Pair

Logits = Mapping[str, Any]

CHUNK_LOGITS = 1 << 26
"""How many logits one score may return at a time, about; it bounds memory whatever the vocabulary."""


@dataclasses.dataclass(frozen=True, slots=True)
class Procedure:
    """How to measure.

    Attributes:
        paths: The serving engine's paths to measure, each once.
        temperature: Divides both engines' logits.
        chunk: How many prompts are scored at a time at most: it is the batch that `batched` means.
    """

    paths: tuple[Path, ...]
    temperature: float = 1.0
    chunk: int = 32


def measure(
    reference: Engine,
    serving: Engine,
    items: Sequence[ProbeItem],
    procedure: Procedure,
    report: Report,
) -> pa.Table:
    """Return the evidence, one row per measured position, in the order of chunk, path, pair, item and position.

    Each path of the serving engine in a batch is compared with the reference and with itself alone. The reference is
    compared with itself alone on the first chunk, which is the noise floor: a figure for orientation, not a verdict. A
    prompt that an engine did not score, or a position with a
    NaN, has no row: whoever judges sees it missing.

    Raises:
        IncomparableError: The engines' vocabularies differ in size.
        EngineFailedError: An engine returned logits of another shape than the answer asks for.
    """
    ours, theirs = reference.identity.vocabulary, serving.identity.vocabulary
    if ours != theirs:
        raise IncomparableError(
            f"the reference's vocabulary has {ours} tokens, the serving engine's {theirs}",
            hint="Serve the very model that the reference runs.",
        )
    tables = [SCHEMA.empty_table()]
    measured = 0
    with ThreadPoolExecutor(max_workers=1) as beside:
        for chunk in _chunks(items, procedure.chunk, ours):
            tables.extend(_measure_chunk((reference, serving), chunk, procedure, beside, first=measured == 0))
            measured += len(chunk)
            report(f"measured {measured} of {len(items)} prompts")
    return pa.concat_tables(tables)


def require_as_asked(spec: EngineSpec, identity: EngineIdentity, vocabulary: int) -> None:
    """Raise unless what started is what was asked for.

    Raises:
        IncomparableError: The engine, dtype, device or vocabulary that runs is another one.
    """
    asked = {"engine": spec.engine, "dtype": spec.dtype, "device": spec.device, "vocabulary": vocabulary}
    if ":" not in spec.device:
        identity = dataclasses.replace(identity, device=identity.device.partition(":")[0])
    for name, value in asked.items():
        found = getattr(identity, name)
        if found != value:
            raise IncomparableError(
                f"{spec.engine}: asked for {name} {value}, but {found} runs",
                hint="Change the target or the contract so that both say what really runs.",
            )


def _chunks(items: Sequence[ProbeItem], most: int, vocabulary: int) -> Iterator[list[ProbeItem]]:
    """Yield the items in order, in runs of at most `most` prompts and about `CHUNK_LOGITS` logits."""
    chunk: list[ProbeItem] = []
    positions = 0
    for item in items:
        if chunk and (len(chunk) == most or (positions + len(item.answer)) * vocabulary > CHUNK_LOGITS):
            yield chunk
            chunk, positions = [], 0
        chunk.append(item)
        positions += len(item.answer)
    if chunk:
        yield chunk


def _measure_chunk(
    engines: tuple[Engine, Engine],
    chunk: Sequence[ProbeItem],
    procedure: Procedure,
    beside: Executor,
    *,
    first: bool,
) -> Iterator[pa.Table]:
    """Yield one table per pair and path. The reference works beside the serving engine, each in its own process."""
    reference, serving = engines

    def scored(engine: Engine, path: Path, batching: Batching) -> Logits:
        return _checked(chunk, engine.score(chunk, path, batching), engine.identity)

    def compared(left: Logits, right: Logits, path: Path, pair: Pair) -> pa.Table:
        measured = [item for item in chunk if item.id in left and item.id in right]
        rows = [_rows(item, left[item.id], right[item.id], procedure.temperature) for item in measured]
        return pa.concat_tables([SCHEMA.empty_table(), *(_labelled(table, path, pair) for table in rows)])

    expected = beside.submit(scored, reference, Path.PREFILL, Batching.BATCHED)
    alone = beside.submit(scored, reference, Path.PREFILL, Batching.ALONE) if first else None
    for path in procedure.paths:
        batched = scored(serving, path, Batching.BATCHED)
        yield compared(expected.result(), batched, path, Pair.SERVING)
        yield compared(scored(serving, path, Batching.ALONE), batched, path, Pair.BATCHING)
    if alone is not None:
        yield compared(alone.result(), expected.result(), Path.PREFILL, Pair.NOISE_FLOOR)


def _checked(chunk: Sequence[ProbeItem], logits: Logits, identity: EngineIdentity) -> Logits:
    for item in chunk:
        expected = (len(item.answer), identity.vocabulary)
        found = tuple(logits[item.id].shape) if item.id in logits else expected
        if found != expected:
            raise EngineFailedError(
                f"{identity.engine}: expected logits of shape {expected} for probe {item.id!r}, found {found}",
                hint="The engine is broken; measure with another version of it.",
            )
    return logits


def _rows(item: ProbeItem, left: Any, right: Any, temperature: float) -> pa.Table:
    """Return the measures of one prompt, positions with a NaN left out."""
    from snapline.contracts.kernels.reference import divergence

    found = divergence(left, right, item.answer, temperature)
    columns = {name: pa.array(getattr(found, name).numpy()) for name in (*MEASURES, "flip", "identical")}
    count = len(item.answer)
    columns |= {
        "prompt": pa.array([item.id] * count, pa.string()),
        "position": pa.array(range(count), pa.int32()),
        "token": pa.array(item.answer, pa.int32()),
    }
    missing = reduce(pc.or_, (pc.is_nan(columns[name]) for name in MEASURES))
    return pa.table(columns).filter(pc.invert(missing))


def _labelled(table: pa.Table, path: Path, pair: Pair) -> pa.Table:
    labels = {"path": pa.repeat(path.value, len(table)), "pair": pa.repeat(pair.value, len(table))}
    columns = {**dict(zip(table.column_names, table.columns, strict=True)), **labels}
    return pa.table({name: columns[name] for name in SCHEMA.names}).cast(SCHEMA)
