"""Certify a model for a target: measure, judge, sign.

Evidence is measured once for a set of inputs. When nothing it depends on changed, a new contract is judged on the
evidence there is; otherwise both engines run. Nothing is issued if an input moved while we measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path as FilePath
from typing import Protocol

import pyarrow as pa

from snapline.contracts.certificate import (
    PREDICATE_TYPE,
    BoundDocument,
    BoundEngine,
    BoundSnapshot,
    Certificate,
    issue,
    weaker,
)
from snapline.contracts.contract import KernelContract
from snapline.contracts.engines.protocol import Engine, EngineIdentity, EngineSpec, LocalEngine, Path, ProbeItem
from snapline.contracts.errors import IncomparableError
from snapline.contracts.evidence import Pair, evidence_from_parquet, evidence_to_parquet
from snapline.contracts.figures import decimal_text
from snapline.contracts.gate import TargetNow, readable, remeasure_due
from snapline.contracts.inspection import Inspector
from snapline.contracts.judge import judge, noise_floor
from snapline.contracts.lint import require_attainable
from snapline.contracts.logits import LogitsKeeper
from snapline.contracts.measure import Around, Keep, Logits, keep_nothing, measure, require_as_asked
from snapline.contracts.probe import ANSWERS, PROMPTS, probes_from_parquet
from snapline.contracts.procedure import Procedure, procedure_of
from snapline.contracts.provenance import Provenance, provenance_of
from snapline.contracts.records import digest_now, read_contract
from snapline.contracts.selfchecks import varied
from snapline.contracts.slices import with_lengths
from snapline.contracts.targets import DISTRIBUTIONS, Target, TargetIdentity, identify, objections
from snapline.contracts.timings import timings_to_json
from snapline.contracts.verdict import combine
from snapline.lineage.errors import ConflictError, DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.events import Attested, LineageEvent, Recorded
from snapline.lineage.invalidation import Change
from snapline.lineage.ledger import Ledger
from snapline.lineage.model import ModelVersion
from snapline.lineage.signing import SigningKey
from snapline.lineage.state import State, unrecorded

Progress = Callable[[str, int, int], None]


class Engines(Protocol):
    """Starts engines; the command line decides where and how."""

    def start(self, spec: EngineSpec, model: FilePath, on_progress: Progress) -> AbstractContextManager[LocalEngine]:
        """Return a started engine that stops when the context ends."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What certifying works with.

    Attributes:
        key: Signs what is issued.
        now: The instant of issue.
        keeper: Keeps full logits for a while, when something is measured; None lets them go.
    """

    inspector: Inspector
    ledger: Ledger
    engines: Engines
    key: SigningKey
    now: datetime
    on_progress: Progress
    keeper: LogitsKeeper | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be certified."""

    model: ModelVersion
    target_name: str
    target: Target
    contract: Recorded
    probes: str | None = None


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate, the address of its envelope, and whether engines ran for it."""

    certificate: Certificate
    envelope: str
    measured: bool


@dataclass(frozen=True, slots=True)
class _Inputs:
    request: Request
    contract: KernelContract
    reference: Target
    identity: TargetIdentity
    probes: Recorded
    table: pa.Table
    procedure: Procedure
    wanted: Provenance


@dataclass(frozen=True, slots=True)
class _Evidence:
    address: str
    table: pa.Table
    provenance: Provenance
    reference: BoundEngine
    serving: BoundEngine


def certify(request: Request, bench: Bench) -> Issued:
    """Return a certificate for a model at a target, recorded in the ledger whatever its verdict.

    Raises:
        DefinitionError: The contract is malformed, or no measurement could ever meet it.
        NotFoundError: The contract's probe set is not there.
        IntegrityError: The weights, or a record the certificate would bind, are not those registered.
        IncomparableError: The target is outside what the contract allows to serve, or engines cannot be compared.
        EngineError: An engine is missing or failed.
        ConflictError: An input moved while we measured.
    """
    started = time.monotonic()
    inputs = _prepare(request, bench)
    _require_intact(request.model, bench)
    evidence = _stored(inputs, bench)
    measured = evidence is None
    if evidence is None:
        evidence = _measure(inputs, bench)
    certificate = _judge(inputs, evidence, bench)
    _require_unmoved(inputs, bench)
    envelope = bench.inspector.lens.objects.put(issue(certificate, bench.key))
    seconds = max(1, round(time.monotonic() - started)) if measured else None
    _record(inputs, certificate, envelope, seconds, bench)
    return Issued(certificate, envelope, measured)


def _prepare(request: Request, bench: Bench) -> _Inputs:
    objects, state = bench.inspector.lens.objects, bench.inspector.state
    contract = read_contract(request.contract, objects)
    require_attainable(contract)
    identity = identify(request.target)
    if outside := objections(contract, identity):
        raise IncomparableError(
            f"target {request.target_name!r} is outside contract {contract.name!r}: {'; '.join(outside)}",
            hint="Change the target, or certify under a contract that allows it.",
        )
    name = request.probes or contract.probes
    probes = state.records.get(("probes", name))
    if probes is None:
        known = ", ".join(sorted(n for what, n in state.records if what == "probes")) or "none yet"
        raise NotFoundError(f"no probe set {name!r}; there are: {known}", hint="Add it: snapline probes add.")
    reference = _reference(contract, request.target)
    procedure = procedure_of(contract, probes.count or 0)
    wanted = Provenance(
        weights=request.model.weights.digest,
        probes=probes.digest,
        reference=identify(reference).digest,
        serving=identity.digest,
        temperature=decimal_text(contract.temperature),
        comparisons={comparison.key: comparison.prompts for comparison in procedure.comparisons},
        timings={batching.value: runs for batching, runs in procedure.timings},
        horizon=procedure.horizon if Path.DECODE_SAMPLED in contract.paths else 0,
    )
    table = probes_from_parquet(objects.read(probes.object))
    return _Inputs(request, contract, reference, identity, probes, table, procedure, wanted)


def _reference(contract: KernelContract, target: Target) -> Target:
    asked = contract.reference
    if asked.engine not in DISTRIBUTIONS:
        known = " or ".join(DISTRIBUTIONS)
        raise DefinitionError(
            f"contract {contract.name!r}: reference.engine: expected {known}, found {asked.engine!r}",
            hint="Name an engine Snapline can run.",
        )
    return Target.model_validate(asked.model_dump() | {"device": target.device})


def _require_intact(model: ModelVersion, bench: Bench) -> None:
    gone = {
        Change.WEIGHTS_GONE: NotFoundError,
        Change.WEIGHTS_CHANGED: IntegrityError,
        Change.RECORD_DAMAGED: IntegrityError,
    }
    for cause in bench.inspector.observe(model).causes:
        if cause.change in gone:
            raise gone[cause.change](
                f"{cause.subject}: {cause.message}" + (f": {'; '.join(cause.details[:3])}" if cause.details else ""),
                hint="Put the bytes back; nothing is certified on others.",
            )


def _stored(inputs: _Inputs, bench: Bench) -> _Evidence | None:
    """Return evidence that an earlier certificate rests on, if it was measured on exactly these inputs."""
    known, _ = readable(inputs.request.model, bench.inspector.state, bench.inspector.read)
    here = TargetNow(inputs.request.target_name, inputs.identity)
    if remeasure_due(inputs.request.model, inputs.contract.name, here, bench.inspector.state, known):
        return None
    for certificate in {certificate.evidence: certificate for _, certificate in reversed(known)}.values():
        table = evidence_from_parquet(bench.inspector.lens.objects.read(certificate.evidence))
        found = provenance_of(table)
        if found.covers(inputs.wanted):
            return _Evidence(certificate.evidence, table, found, certificate.reference, certificate.serving)
    return None


def _measure(inputs: _Inputs, bench: Bench) -> _Evidence:
    folder, objects = FilePath(inputs.request.model.weights.path), bench.inspector.lens.objects
    specs = inputs.reference.spec(), inputs.request.target.spec()

    def start_variant(pair: Pair, changed: str) -> AbstractContextManager[Engine]:
        return bench.engines.start(varied(specs[1], pair, changed), folder, bench.on_progress)

    with (
        bench.engines.start(specs[0], folder, bench.on_progress) as reference,
        bench.engines.start(specs[1], folder, bench.on_progress) as serving,
    ):
        for spec, engine in zip(specs, (reference, serving), strict=True):
            require_as_asked(spec, engine.identity, reference.identity.vocabulary)
        _require_installed(inputs.identity, serving.identity)
        items = tokenized(inputs.table, reference)
        around = Around(start_variant, lambda what: bench.on_progress(what, 0, 0), _keeping(bench.keeper))
        found = measure((reference, serving), items, inputs.procedure, around)
        sides = BoundEngine(**reference.identity.as_document()), BoundEngine(**serving.identity.as_document())
    lengths = {item.id: (len(item.prompt), len(item.answer)) for item in items}
    provenance = inputs.wanted.model_copy(
        update={"lengths": lengths, "sampled": dict(found.sampled), "kernel": found.kernel}
    )
    metadata = {"provenance": provenance.model_dump_json(), "timings": timings_to_json(found.timings)}
    data = evidence_to_parquet(found.rows, metadata)
    address = objects.put(data)
    if bench.keeper is not None:
        bench.keeper.close(address)
    return _Evidence(address, evidence_from_parquet(data), provenance, *sides)


def _keeping(keeper: LogitsKeeper | None) -> Keep:
    if keeper is None:
        return keep_nothing

    def keep(side: str, path: str, logits: Logits) -> None:
        for prompt, rows in logits.items():
            keeper.keep(prompt, side, path, rows)

    return keep


def _require_installed(installed: TargetIdentity, ran: EngineIdentity) -> None:
    """Raise unless what ran is what the target's packages say: the gate will know the target by those alone."""
    if ran.version != installed.version:
        raise IncomparableError(
            f"{installed.engine} {installed.version} is installed at the target, but {ran.version} ran",
            hint="Another copy hides the installed one: look at the interpreter's import path.",
        )


def tokenized(probes: pa.Table, engine: LocalEngine) -> list[ProbeItem]:
    """Return a probe table as token ids: its own where it has them, otherwise those of the model's tokenizer."""
    columns = {name: probes[name].to_pylist() for name in probes.column_names if name in (*PROMPTS, *ANSWERS)}
    prompts, answers = columns.get("token_ids"), columns.get("answer_ids")
    if prompts is None or answers is None:
        texts = columns.get("messages") or columns.get("text") or []
        encoded = engine.tokenize(texts, columns.get("answer", []))
        prompts, answers = prompts or encoded[0], answers or encoded[1]
    ids = probes["id"].to_pylist()
    return [ProbeItem(id, tuple(p), tuple(a)) for id, p, a in zip(ids, prompts, answers, strict=True)]


def _judge(inputs: _Inputs, evidence: _Evidence, bench: Bench) -> Certificate:
    request, contract, state = inputs.request, inputs.contract, bench.inspector.state
    judged = judge(contract, with_lengths(inputs.table, evidence.provenance), evidence.table)
    model = request.model
    return Certificate(
        model=str(model.key),
        weights=model.weights.digest,
        snapshots=tuple(BoundSnapshot(id=i, digest=state.snapshots[i].digest) for i in model.snapshots),
        view=model.view,
        contract=_bound(request.contract),
        probes=_bound(inputs.probes),
        wanted_probes=contract.probes,
        prompts=inputs.table.num_rows,
        confidence=decimal_text(contract.confidence),
        target=request.target_name,
        target_identity=inputs.identity,
        reference=evidence.reference,
        serving=evidence.serving,
        evidence=evidence.address,
        evidence_class=weaker(evidence.reference.evidence_class, evidence.serving.evidence_class),
        noise_floor=noise_floor(evidence.table),
        verdict=combine(finding.verdict for finding in judged.findings),
        findings=judged.findings,
        searched=judged.searched,
        diagnostics={path: dict(figures) for path, figures in judged.diagnostics.items()},
        issued_at=bench.now,
    )


def _bound(record: Recorded) -> BoundDocument:
    return BoundDocument(name=record.name, digest=record.digest, object=record.object)


def _require_unmoved(inputs: _Inputs, bench: Bench) -> None:
    """Raise unless weights, engines and contract are still what was measured."""
    _require_intact(inputs.request.model, bench)
    moved = []
    if identify(inputs.request.target) != inputs.identity:
        moved.append("what is installed at the target")
    if identify(inputs.reference).digest != inputs.wanted.reference:
        moved.append("what is installed for the reference")
    if digest_now(inputs.request.contract, bench.inspector.lens.objects) != inputs.contract.digest:
        moved.append(f"the contract {inputs.request.contract.path}")
    if moved:
        raise ConflictError(
            f"{' and '.join(moved)} changed while we measured; nothing was issued",
            hint="Run it again on what is there now.",
        )


def _record(inputs: _Inputs, certificate: Certificate, envelope: str, seconds: int | None, bench: Bench) -> None:
    attested = Attested(
        at=bench.now,
        model=inputs.request.model.key,
        predicate_type=PREDICATE_TYPE,
        envelope=envelope,
        retained=certificate.retained,
        seconds=seconds,
    )

    def decide(state: State) -> list[LineageEvent]:
        for bound in (inputs.request.contract, inputs.probes):
            before, now = (s.records.get((bound.what, bound.name)) for s in (bench.inspector.state, state))
            if now != before and (now is None or now.digest != bound.digest):
                raise ConflictError(
                    f"{bound.what} {bound.name!r} was recorded anew while we measured; nothing was issued",
                    hint="Run it again on what is recorded now.",
                )
        return [*unrecorded(inputs.request.contract, state), attested]

    bench.ledger.commit(decide)
