"""Run a reference and a serving engine over the same tokens, and write down how far apart they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from snapline.contracts.engines.protocol import (
    Batching,
    Engine,
    EngineIdentity,
    EngineSpec,
    Path,
    ProbeItem,
    Report,
    Sampled,
    Sampling,
)
from snapline.contracts.errors import EngineFailedError, IncomparableError
from snapline.contracts.evidence import FACTS, MEASURES, SCHEMA, TOKENS, Pair
from snapline.contracts.procedure import Comparison, Procedure
from snapline.contracts.selfchecks import StartVariant, compare_with_itself
from snapline.contracts.slices import sample
from snapline.contracts.timings import PairedTiming, time_both

Logits = Mapping[str, Any]
Keep = Callable[[str, str, Logits], None]
Scored = tuple[Sequence[ProbeItem], Logits, Logits]

CHUNK_LOGITS = 1 << 26
"""How many logits one score may return at a time, about; it bounds memory whatever the vocabulary and the prompts: two
chunks are held at once, each on every path."""


def keep_nothing(*_: object) -> None:
    """Let logits go once they were compared."""


@dataclasses.dataclass(frozen=True, slots=True)
class Around:
    """What measuring works with beside two engines.

    Attributes:
        start_variant: Starts the serving engine with one thing changed.
        report: Told how far it is.
        keep: Given a side, a path and both engines' logits by prompt id as they come.
    """

    start_variant: StartVariant
    report: Report
    keep: Keep = keep_nothing


@dataclasses.dataclass(frozen=True, slots=True)
class Measurements:
    """What two engines showed.

    Attributes:
        rows: The evidence, one row per measured position.
        sampled: How many tokens the serving engine drew, by prompt id.
        timings: Both engines' time over the same batches.
        kernel: What computed the measures.
    """

    rows: pa.Table
    sampled: Mapping[str, int]
    timings: tuple[PairedTiming, ...]
    kernel: str


def measure(
    engines: tuple[Engine, Engine],
    items: Sequence[ProbeItem],
    procedure: Procedure,
    around: Around,
) -> Measurements:
    """Return what the procedure asks for.

    First the reference against the serving engine on every path, all prompts, chunk by chunk; then the serving engine
    against itself on a sample; then both engines' time. The reference is held against itself on the first chunk, which
    is the noise floor: a figure for orientation, not a verdict. A prompt that an engine did not score, or a position
    with a NaN, has no row: whoever judges sees it missing.

    Args:
        engines: The reference and the serving engine.

    Raises:
        IncomparableError: The engines' vocabularies differ in size.
        EngineFailedError: An engine returned logits of another shape than the answer asks for.
    """
    ours, theirs = (engine.identity.vocabulary for engine in engines)
    if ours != theirs:
        raise IncomparableError(
            f"the reference's vocabulary has {ours} tokens, the serving engine's {theirs}",
            hint="Serve the very model that the reference runs.",
        )
    from snapline.contracts.kernels.choose import backend_on_cpu  # engines hand over their logits there

    drawn: dict[str, int] = {}
    tables = [SCHEMA.empty_table(), *_against_reference(engines, items, procedure, around, drawn)]
    batches = chosen(items, procedure)
    for comparison, found in compare_with_itself(engines[1], batches, procedure, around.start_variant):
        tables.append(rows_of(comparison, found, procedure.temperature))
        around.report(f"compared {comparison.key} on {len(found[0])} prompts")
    timings = time_both(engines, items, procedure.timings, around.report)
    return Measurements(pa.concat_tables(tables).combine_chunks(), drawn, timings, str(backend_on_cpu()))


def _against_reference(
    engines: tuple[Engine, Engine],
    items: Sequence[ProbeItem],
    procedure: Procedure,
    around: Around,
    drawn: dict[str, int],
) -> Iterator[pa.Table]:
    """Yield the tables of each chunk in turn; the reference may be one chunk behind the serving engine."""
    with ThreadPoolExecutor(max_workers=1) as beside:
        before: _Chunk | None = None
        measured = 0
        for chunk in chunks(items, procedure.chunk, engines[0].identity.vocabulary):
            run = _Chunk(engines, chunk, procedure, beside)
            run.serve(first=before is None)
            if before is not None:
                yield from before.tables(drawn, around.keep)
            before = run
            measured += len(chunk)
            around.report(f"measured {measured} of {len(items)} prompts")
        if before is not None:
            yield from before.tables(drawn, around.keep)


def chosen(items: Sequence[ProbeItem], procedure: Procedure) -> dict[str, list[list[ProbeItem]]]:
    """Return the sampled items of each comparison of the serving engine with itself, by key, in batches."""
    by_id = {item.id: item for item in items}
    found = {}
    for comparison in procedure.comparisons:
        if comparison.pair is not Pair.SERVING:
            wanted = [by_id[identifier] for identifier in sample(list(by_id), comparison.prompts)]
            found[comparison.key] = [wanted[i : i + procedure.chunk] for i in range(0, len(wanted), procedure.chunk)]
    return found


def require_as_asked(spec: EngineSpec, identity: EngineIdentity, vocabulary: int) -> None:
    """Raise unless what started is what was asked for.

    Raises:
        IncomparableError: The engine, dtype, device, vocabulary or a setting that runs is another one.
    """
    asked = {"engine": spec.engine, "dtype": spec.dtype, "device": spec.device, "vocabulary": vocabulary}
    if ":" not in spec.device:
        identity = dataclasses.replace(identity, device=identity.device.partition(":")[0])
    running = {name: getattr(identity, name) for name in asked} | dict(identity.settings)
    asked |= {
        "prefix_caching": str(spec.prefix_caching).lower(),
        "chunked_prefill": str(spec.chunked_prefill).lower(),
        "execution": "compiled" if spec.cuda_graphs else "eager",
        "tensor_parallel": str(spec.tensor_parallel),
    }
    asked |= {} if spec.threads is None else {"threads": str(spec.threads)}
    for name, value in asked.items():
        found = running.get(name, value)
        if found != value:
            raise IncomparableError(
                f"{spec.engine}: asked for {name} {value}, but {found} runs",
                hint="Change the target or the contract so that both say what really runs.",
            )


def chunks(items: Sequence[ProbeItem], most: int, vocabulary: int) -> Iterator[list[ProbeItem]]:
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


class _Chunk:
    """Some prompts on both engines: the serving engine first, while the reference works beside it.

    The reference's figures are waited for when the tables are asked for, so that the serving engine can go on with the
    next prompts meanwhile.
    """

    def __init__(
        self, engines: tuple[Engine, Engine], items: Sequence[ProbeItem], procedure: Procedure, beside: Executor
    ) -> None:
        self._reference, self._serving = engines
        self._items, self._procedure, self._beside = items, procedure, beside
        paths = [c.path for c in procedure.comparisons if c.pair is Pair.SERVING]
        self._given = [path for path in paths if path is not Path.DECODE_SAMPLED]
        self._draws = Path.DECODE_SAMPLED in paths
        self._first = False
        self._served: dict[Path, Logits] = {}
        self._ours: dict[Batching, Future[Logits]] = {}
        self._drawn: Sequence[ProbeItem] = ()

    def serve(self, *, first: bool) -> None:
        """Run the serving engine on every path, and leave the reference its work; the first has the noise floor."""
        self._first = first
        ways = ((Batching.BATCHED, bool(self._given) or first), (Batching.ALONE, first))
        self._ours = {way: self._ask(self._items, way) for way, wanted in ways if wanted}
        for path in self._given:
            self._served[path] = scored(self._serving, self._items, path, Batching.BATCHED)
        if self._draws:
            self._draw()

    def tables(self, drawn: dict[str, int], keep: Keep) -> Iterator[pa.Table]:
        """Yield one table per path, and the noise floor of the first chunk; `drawn` gets the lengths of answers."""
        for path in self._given:
            yield self._table(path, (self._items, self._ours[Batching.BATCHED].result(), self._served[path]))
            keep("serving", path.value, self._served[path])
        if self._given:
            keep("reference", Path.PREFILL.value, self._ours[Batching.BATCHED].result())
        if self._draws:
            drawn.update((item.id, len(item.answer)) for item in self._drawn)
            sides = self._again.result(), self._served[Path.DECODE_SAMPLED]
            yield self._table(Path.DECODE_SAMPLED, (self._drawn, *sides))
            for side, rows in zip(("reference", "serving"), sides, strict=True):
                keep(side, Path.DECODE_SAMPLED.value, rows)
        if self._first:
            floor = Comparison(Pair.NOISE_FLOOR, Path.PREFILL, len(self._items))
            alone, together = (self._ours[way].result() for way in (Batching.ALONE, Batching.BATCHED))
            yield rows_of(floor, (self._items, alone, together), self._procedure.temperature)

    def _ask(self, items: Sequence[ProbeItem], batching: Batching) -> Future[Logits]:
        return self._beside.submit(scored, self._reference, items, Path.PREFILL, batching)

    def _draw(self) -> None:
        """Let the serving engine answer, and leave the reference to score the very tokens it drew."""
        sampling = Sampling(self._procedure.horizon, self._procedure.temperature)
        answers: Mapping[str, Sampled] = self._serving.sample(self._items, sampling, Batching.BATCHED)
        self._drawn = [
            dataclasses.replace(item, answer=answers[item.id].tokens) for item in self._items if item.id in answers
        ]
        rows = {item.id: answers[item.id].logits for item in self._drawn}
        self._served[Path.DECODE_SAMPLED] = checked(self._drawn, rows, self._serving.identity)
        self._again = self._ask(self._drawn, Batching.BATCHED)

    def _table(self, path: Path, found: Scored) -> pa.Table:
        return rows_of(Comparison(Pair.SERVING, path, len(self._items)), found, self._procedure.temperature)


def scored(engine: Engine, items: Sequence[ProbeItem], path: Path, batching: Batching) -> Logits:
    """Return an engine's logits of the items' answers, once their shapes were looked at."""
    return checked(items, engine.score(items, path, batching), engine.identity)


def checked(items: Sequence[ProbeItem], logits: Logits, identity: EngineIdentity) -> Logits:
    """Return the logits, if each has the shape its answer asks for.

    Raises:
        EngineFailedError: One has another.
    """
    for item in items:
        expected = (len(item.answer), identity.vocabulary)
        found = tuple(logits[item.id].shape) if item.id in logits else expected
        if found != expected:
            raise EngineFailedError(
                f"{identity.engine}: expected logits of shape {expected} for probe {item.id!r}, found {found}",
                hint="The engine is broken; measure with another version of it.",
            )
    return logits


def rows_of(comparison: Comparison, found: Scored, temperature: float) -> pa.Table:
    """Return the evidence of a comparison: one row for each position that both programs scored."""
    items, left, right = found
    both = [item for item in items if item.id in left and item.id in right]
    rows = [_rows(item, left[item.id], right[item.id], temperature) for item in both]
    return pa.concat_tables([SCHEMA.empty_table(), *(_labelled(table, comparison) for table in rows)])


def _rows(item: ProbeItem, left: Any, right: Any, temperature: float) -> pa.Table:
    """Return the measures of one prompt, positions with a NaN left out."""
    from snapline.contracts.kernels.choose import divergence

    found = divergence(left, right, item.answer, temperature)
    columns = {name: pa.array(getattr(found, name).numpy()) for name in (*MEASURES, *TOKENS, *FACTS)}
    count = len(item.answer)
    columns |= {
        "prompt": pa.array([item.id] * count, pa.string()),
        "position": pa.array(range(count), pa.int32()),
        "token": pa.array(item.answer, pa.int32()),
    }
    missing = reduce(pc.or_, (pc.is_nan(columns[name]) for name in MEASURES))
    return pa.table(columns).filter(pc.invert(missing))


def _labelled(table: pa.Table, comparison: Comparison) -> pa.Table:
    labels = {"path": comparison.path.value, "pair": comparison.pair.value}
    columns = dict(zip(table.column_names, table.columns, strict=True))
    columns |= {name: pa.repeat(value, len(table)) for name, value in labels.items()}
    return pa.table({name: columns[name] for name in SCHEMA.names}).cast(SCHEMA)
