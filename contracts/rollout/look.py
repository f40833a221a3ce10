"""A look at a serving log: score its monitored requests again, add them to the monitor, judge, and act on the verdict.

What is recorded of a look is one commit: the monitor as it is afterwards, and what the contract's escalation set off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from math import isnan
from pathlib import Path as FilePath
from typing import Any

from snapline.contracts.certify import Engines, Progress
from snapline.contracts.engines.protocol import Batching, Engine, EngineSpec, Path, ProbeItem
from snapline.contracts.errors import EngineFailedError
from snapline.contracts.inspection import Inspector
from snapline.contracts.rollout.documents import StageName
from snapline.contracts.rollout.escalate import Declared, escalate
from snapline.contracts.rollout.log import read_log
from snapline.contracts.rollout.monitor import Scored, extended, monitored, to_parquet
from snapline.contracts.rollout.observability import require_possible
from snapline.contracts.rollout.record import ServingRecord
from snapline.contracts.rollout.routes import within
from snapline.contracts.rollout.stages import Course, Desk, unmoved
from snapline.contracts.targets import Target
from snapline.contracts.verdict import Finding, Verdict, combine
from snapline.lineage.errors import DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.events import Escalated, LineageEvent, Observed, StageEntered
from snapline.lineage.invalidation import Change
from snapline.lineage.model import ModelVersion

MONITOR = "monitor"
"""The purpose under which a request's hash decides whether it is scored again."""
CHUNK_REQUESTS = 32
CHUNK_LOGITS = 1 << 26


@dataclass(frozen=True, slots=True)
class Bench:
    """What looking at a log works with, besides the ledger.

    Attributes:
        target: Where the rollout serves; the reference runs on the same kind of device.
    """

    desk: Desk
    inspector: Inspector
    target: Target
    engines: Engines
    on_progress: Progress


@dataclass(frozen=True, slots=True)
class Look:
    """What a look gave.

    Attributes:
        logged: How many requests the log holds; `counted` of them were new to the monitor, `rescored` of those were
            scored by the reference now, and `passed_over` says why the others were not counted.
        events: What was recorded because of the verdict.
    """

    stage: StageName
    log: str
    logged: int
    counted: int
    rescored: int
    passed_over: Mapping[str, int]
    findings: tuple[Finding, ...]
    events: tuple[Escalated | StageEntered, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict over every finding."""
        return combine(finding.verdict for finding in self.findings)


def observe(course: Course, log: FilePath, served: int | None, bench: Bench) -> Look:
    """Read a log into the present stage's monitor, and act on what it then says; a log read before adds nothing.

    Args:
        served: How many requests the engines answered in the log's time, by their own count; None when nobody said.

    Raises:
        NotFoundError: There is no such file; the weights are gone.
        DefinitionError: The rollout serves nothing, or the file is no log.
        IntegrityError: The weights are not those registered.
        ConflictError: The rollout moved meanwhile, or its contract was recorded anew.
        EngineError: The reference is missing or failed.
    """
    stage, desk = course.require_running(), bench.desk
    if stage is StageName.OFFLINE:
        raise DefinitionError(
            f"rollout {course.name!r} is offline, where nothing is served", hint="Advance it: snapline rollout advance."
        )
    choice = _Choice(course)
    found = read_log(log, desk.objects.algorithm, choice.wants)
    tally = found.tally.model_copy(update={"served": served})
    require_possible(tally, desk.now)
    scored = rescored(found.wanted, course, bench)
    monitor = extended(course.monitor, scored.requests, monitored(course.contract), tally)
    findings = replace(course, monitor=monitor).findings(desk.now)
    declared = Declared(course.contract.escalation, [part.name for part in course.contract.slices], course.stages.order)
    events = escalate(declared, findings, course.rollout, desk.now)
    observed = Observed(
        at=desk.now,
        rollout=course.name,
        stage=stage.value,
        monitor=desk.objects.put(to_parquet(monitor)),
        log=found.digest,
        requests=len(found.wanted),
    )
    looks = course.rollout.looks
    said = bool(looks) and looks[-1].monitor == observed.monitor
    recorded: list[LineageEvent] = [*([] if said else [observed]), *events]
    desk.ledger.commit(unmoved(course.rollout, recorded))
    counts = len(found.wanted), scored.now
    return Look(stage, found.digest, tally.requests, *counts, dict(choice.passed_over), findings, events)


@dataclass(slots=True)
class _Choice:
    """Which requests of a log a stage's monitor counts, and why not the others."""

    course: Course
    passed_over: Counter[str] = field(default_factory=Counter)
    _known: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._known = self.course.monitor.ids

    def wants(self, record: ServingRecord) -> bool:
        """Return whether a request is to be counted."""
        why = self._objection(record)
        if why:
            self.passed_over[why] += 1
        return not why

    def _objection(self, record: ServingRecord) -> str:
        if record.route == "reference":
            return "answered by the reference"
        if record.at < self.course.rollout.now.at:
            return "answered before the stage was entered"
        if drawn_otherwise(record, self.course.contract.temperature):
            return "drawn at another temperature, or from a truncated distribution"
        if not within(MONITOR, record.id, self.course.promised.monitor):
            return "outside the monitored share"
        return "counted already" if record.id in self._known else ""


def drawn_otherwise(record: ServingRecord, temperature: Decimal) -> bool:
    """Return whether an answer says that it was not drawn as the contract's promises assume.

    The promises are about draws from the untruncated distribution at the contract's temperature. A request for others
    says so by its tags `temperature`, a number, and `truncated: "true"` for any of top-p, top-k, min-p, penalties and
    biases; one without these tags claims to be such a draw.
    """
    try:
        asked = Decimal(record.tags.get("temperature", temperature))
    except InvalidOperation:
        return True
    return asked != temperature or record.tags.get("truncated") == "true"


@dataclass(frozen=True, slots=True)
class Rescored:
    """Requests with the reference's figures, and how many of them the reference scored now."""

    requests: tuple[Scored, ...]
    now: int


def rescored(records: Sequence[ServingRecord], course: Course, bench: Bench) -> Rescored:
    """Return requests with the reference's log-probability of each token.

    What the log says already is taken from it; the reference starts only for the others, on the exact token ids.
    """
    known = {record.id: record.reference_logprob for record in records}
    missing = [r for r in records if r.reference_logprob is None and r.sampled_logprob is not None]
    if missing:
        require_intact(course.model, bench.inspector)
        spec, folder = reference_spec(course, bench.target), FilePath(course.model.weights.path)
        with bench.engines.start(spec, folder, bench.on_progress) as engine:
            temperature = float(course.contract.temperature)
            for chunk in chunks(missing, engine.identity.vocabulary):
                known |= score(engine, chunk, temperature)
                bench.on_progress(f"scored {sum(known[r.id] is not None for r in missing)} requests again", 0, 0)
    return Rescored(tuple(Scored(record, known[record.id]) for record in records), len(missing))


def reference_spec(course: Course, target: Target) -> EngineSpec:
    """Return the contract's reference, on the target's kind of device."""
    asked = course.contract.reference.model_dump()
    return Target.model_validate(asked | {"device": target.device}).spec()


def require_intact(model: ModelVersion, inspector: Inspector) -> None:
    """Raise unless a version's weights are those registered: the reference would score with others.

    Raises:
        NotFoundError: They are gone.
        IntegrityError: They differ.
    """
    errors = {Change.WEIGHTS_GONE: NotFoundError, Change.WEIGHTS_CHANGED: IntegrityError}
    for cause in inspector.observe(model).causes:
        if cause.change in errors:
            details = f": {'; '.join(cause.details[:3])}" if cause.details else ""
            raise errors[cause.change](f"{cause.subject}: {cause.message}{details}", hint="Put the bytes back.")


def chunks(records: Sequence[ServingRecord], vocabulary: int) -> Iterator[list[ServingRecord]]:
    """Yield requests in order, in runs that bound how many logits are held at once."""
    chunk: list[ServingRecord] = []
    for record in records:
        positions = sum(len(one.token_ids) for one in (*chunk, record))
        if chunk and (len(chunk) == CHUNK_REQUESTS or positions * vocabulary > CHUNK_LOGITS):
            yield chunk
            chunk = []
        chunk.append(record)
    if chunk:
        yield chunk


def score(engine: Engine, records: Sequence[ServingRecord], temperature: float) -> dict[str, tuple[float, ...] | None]:
    """Return the log-probability of each emitted token by request, in float64; None where the engine gave none.

    Raises:
        DefinitionError: A request holds a token outside the model's vocabulary.
        EngineFailedError: The engine failed, or returned another shape.
    """
    items = [ProbeItem(record.id, record.prompt_ids, record.token_ids) for record in records]
    logits = engine.score(items, Path.PREFILL, Batching.BATCHED)
    return {item.id: _log_probabilities(logits.get(item.id), item, temperature) for item in items}


def _log_probabilities(logits: Any, item: ProbeItem, temperature: float) -> tuple[float, ...] | None:
    if logits is None:
        return None
    if logits.ndim != 2 or len(logits) != len(item.answer):
        raise EngineFailedError(
            f"expected logits for the {len(item.answer)} tokens of request {item.id!r}, found {tuple(logits.shape)}",
            hint="The reference is broken; measure with another version of it.",
        )
    rows = (logits.double() / temperature).log_softmax(dim=-1)
    found = tuple(float(row[token]) for row, token in zip(rows, item.answer, strict=True))
    return None if any(map(isnan, found)) else found
