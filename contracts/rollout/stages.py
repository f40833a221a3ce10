"""A rollout's course through its stages: offline, shadow, canary, full.

Offline is entered with nothing, and left while the gate is open. Shadow and canary are left with a stage certificate,
which `advance` issues when everything the stage's monitor is held against is CERTIFIED, and while the gate is still
open. The certificate and the entry it allows are one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from snapline.contracts.certificate import BoundDocument
from snapline.contracts.contract import KernelContract
from snapline.contracts.figures import decimal_text
from snapline.contracts.gate import GateDecision, GateOpen
from snapline.contracts.records import read_contract
from snapline.contracts.rollout.certificate import PREDICATE_TYPE, StageCertificate, issue
from snapline.contracts.rollout.documents import Stage, StageName, Stages
from snapline.contracts.rollout.escalate import held_until
from snapline.contracts.rollout.judging import Cells, judge_monitor, watched
from snapline.contracts.rollout.monitor import Facts, Monitor, from_parquet, monitored, opened
from snapline.contracts.rollout.observability import check_observability
from snapline.contracts.verdict import Finding, Verdict, combine
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.events import Attested, ContractBound, LineageEvent, Recorded, StageEntered
from snapline.lineage.ledger import Ledger
from snapline.lineage.model import ModelVersion
from snapline.lineage.objects import ObjectStore
from snapline.lineage.signing import SigningKey
from snapline.lineage.state import Rollout, State, unrecorded


@dataclass(frozen=True, slots=True)
class Desk:
    """What moving a rollout works with: the ledger and its state, the objects, and the instant that counts as now."""

    state: State
    ledger: Ledger
    objects: ObjectStore
    now: datetime


@dataclass(frozen=True, slots=True)
class Course:
    """A rollout as it stands, with the contract it follows and what the present stage's monitor holds."""

    rollout: Rollout
    model: ModelVersion
    record: Recorded
    contract: KernelContract
    stages: Stages
    monitor: Monitor

    @property
    def name(self) -> str:
        """The rollout's name."""
        return self.rollout.now.rollout

    @property
    def stage(self) -> StageName | None:
        """Where it is; None once it ended."""
        return StageName(self.rollout.now.stage) if self.rollout.now.stage else None

    @property
    def promised(self) -> Stage:
        """What the contract says of the present stage."""
        found = getattr(self.stages, self.stage.value) if self.stage else None
        return found or Stage()

    @property
    def moved(self) -> bool:
        """Whether the contract was recorded anew since the monitor was begun."""
        return self.monitor.facts.contract != self.record.digest

    @property
    def serving_since(self) -> datetime:
        """When it first entered a stage in which it serves."""
        return next((e.at for e in self.rollout.entered if e.stage != StageName.OFFLINE), self.rollout.now.at)

    def findings(self, now: datetime) -> tuple[Finding, ...]:
        """Return what the monitor, and the newest log, say now.

        Nothing of a stage in which nothing is served, nor under another contract than the monitor's.
        """
        if self.moved or self.stage in {None, StageName.OFFLINE}:
            return ()
        cells = Cells(
            monitored(self.contract), watched(self.contract), self.contract.confidence, self.promised.min_requests
        )
        said = self.contract.observability
        log = check_observability(said, self.monitor.facts.tally, self.serving_since, now) if said else ()
        return (*judge_monitor(self.monitor, cells), *log)

    def after(self, stage: StageName | None) -> StageName | None:
        """Return the stage after one; None after the last."""
        return dict(pairwise(self.stages.order)).get(stage) if stage else None

    def require_running(self) -> StageName:
        """Return the present stage, if the rollout goes on under the contract it began it with.

        Raises:
            DefinitionError: It ended.
            ConflictError: The contract was recorded anew.
        """
        if self.stage is None:
            raise DefinitionError(f"rollout {self.name!r} ended", hint=f"Start it again: rollout start {self.name}.")
        if self.moved:
            raise ConflictError(
                f"contract {self.record.name!r} was recorded anew since rollout {self.name!r} entered {self.stage}",
                hint="What was seen under another contract proves nothing: abort the rollout and start it again.",
            )
        return self.stage


def course(name: str, state: State, objects: ObjectStore) -> Course:
    """Return a rollout as it stands.

    Raises:
        NotFoundError: There is no such rollout, or its contract is not recorded.
        IntegrityError: The contract's or the monitor's object does not hold.
        DefinitionError: The contract no longer declares stages, or no longer the present one.
    """
    rollout = known(name, state)
    now = rollout.now
    record = state.records.get(("contract", now.contract))
    if record is None:
        raise NotFoundError(f"contract {now.contract!r} is not recorded", hint="Record it: snapline certify.")
    contract = read_contract(record, objects)
    stages = stages_of(contract)
    if now.stage is not None and now.stage not in stages.order:
        raise DefinitionError(
            f"rollout {name!r} is in {now.stage}, which contract {contract.name!r} no longer declares",
            hint="Declare it again, or abort the rollout.",
        )
    model = state.models[now.model.name][now.model.version - 1]
    return Course(rollout, model, record, contract, stages, _monitor(rollout, contract, record, objects))


def known(name: str, state: State) -> Rollout:
    """Return a rollout by its name.

    Raises:
        NotFoundError: There is none.
    """
    rollout = state.rollouts.get(name)
    if rollout is None:
        names = ", ".join(sorted(state.rollouts)) or "none yet"
        raise NotFoundError(f"no rollout {name!r}; there are: {names}", hint="Start it: snapline rollout start.")
    return rollout


def _monitor(rollout: Rollout, contract: KernelContract, record: Recorded, objects: ObjectStore) -> Monitor:
    if rollout.looks:
        return from_parquet(objects.read(rollout.looks[-1].monitor))
    clauses = tuple(clause.name for clause in monitored(contract))
    now = rollout.now
    return opened(Facts(rollout=now.rollout, stage=now.stage or "", contract=record.digest, clauses=clauses))


def stages_of(contract: KernelContract) -> Stages:
    """Return a contract's stages.

    Raises:
        DefinitionError: It declares none, or one whose monitor would have nothing to hold.
    """
    if contract.stages is None:
        raise DefinitionError(
            f"contract {contract.name!r} declares no stages", hint="Write stages: {shadow: {...}, canary: {...}}."
        )
    between = [name for name in contract.stages.order if name in {StageName.SHADOW, StageName.CANARY}]
    if between and not (monitored(contract) and watched(contract)):
        raise DefinitionError(
            f"contract {contract.name!r} has the stage {between[0]}, but nothing a monitor can hold there",
            hint="Promise tv_answer on a slice of prompts, with decode-sampled among the paths.",
        )
    return contract.stages


def start(name: str, model: ModelVersion, target: str, record: Recorded, desk: Desk) -> StageEntered:
    """Begin a rollout offline, and return the entry. The contract is bound to the version's gate if none was.

    Raises:
        DefinitionError: The contract declares no usable stages, or is not the one the version's gate requires.
        ConflictError: The rollout goes on already.
    """
    stages_of(read_contract(record, desk.objects))
    entered = StageEntered(
        at=desk.now, rollout=name, model=model.key, target=target, contract=record.name, stage=StageName.OFFLINE.value
    )

    def decide(state: State) -> Sequence[LineageEvent]:
        earlier = state.rollouts.get(name)
        if earlier is not None and earlier.now.stage is not None:
            raise ConflictError(
                f"rollout {name!r} goes on: {earlier.now.model} is in {earlier.now.stage} for {earlier.now.target}",
                hint=f"End it first: snapline rollout abort {name}.",
            )
        bound = state.models[model.key.name][model.key.version - 1].contract
        if bound not in {None, record.name}:
            raise DefinitionError(
                f"the gate of {model.key} requires contract {bound!r}, not {record.name!r}",
                hint="Roll it out under the contract its gate requires.",
            )
        binding = [] if bound else [ContractBound(at=desk.now, model=model.key, contract=record.name)]
        return [*unrecorded(record, state), *binding, entered]

    desk.ledger.commit(decide)
    return entered


def abort(name: str, reason: str | None, desk: Desk) -> StageEntered:
    """End a rollout, and return the end; the reference answers everything from now on.

    Raises:
        NotFoundError: There is no such rollout.
        DefinitionError: It ended already.
    """
    rollout = known(name, desk.state)
    if rollout.now.stage is None:
        raise DefinitionError(f"rollout {name!r} ended already", hint=f"Start it again: rollout start {name}.")
    ended = rollout.now.model_copy(update={"at": desk.now, "stage": None, "envelope": None, "reason": reason})
    desk.ledger.commit(unmoved(rollout, [ended]))
    return ended


@dataclass(frozen=True, slots=True)
class Advance:
    """What trying to advance gave.

    Attributes:
        entered: The stage that was entered; None when the present one keeps the rollout.
        held: Until when an escalation holds the stage; None when none does.
        certificate: Address of the attestation that let it in.
    """

    stage: StageName
    verdict: Verdict
    findings: tuple[Finding, ...]
    entered: StageName | None = None
    certificate: str | None = None
    held: datetime | None = None


def advance(found: Course, decision: GateDecision, target_digest: str, key: SigningKey, desk: Desk) -> Advance:
    """Enter the next stage, if the present one allows it; otherwise say what is missing, and record nothing.

    Args:
        decision: The gate's, for the rollout's model and target, on what is there now.
        target_digest: Identity of what is installed at the target.

    Raises:
        DefinitionError: The rollout ended, or is in its last stage.
        RequirementError: The gate is shut.
        ConflictError: The ledger moved meanwhile, or the contract was recorded anew.
    """
    stage = found.require_running()
    wanted = found.after(stage)
    if wanted is None:
        raise DefinitionError(f"rollout {found.name!r} is in {stage}, its last stage", hint="There is none to enter.")
    gate = GateOpen(decision)
    if stage is StageName.OFFLINE:
        gate.check(desk.state)
        _enter(found, wanted, decision.envelope, (), gate, desk)
        return Advance(stage, Verdict.CERTIFIED, (), wanted, decision.envelope)
    findings = found.findings(desk.now)
    verdict = combine(finding.verdict for finding in findings)
    held = held_until(found.rollout, desk.now)
    if verdict is not Verdict.CERTIFIED or held is not None:
        return Advance(stage, verdict, findings, held=held)
    gate.check(desk.state)
    certificate = _certificate(found, findings, (str(decision.envelope), target_digest), desk.now)
    envelope = desk.objects.put(issue(certificate, key))
    attested = Attested(
        at=desk.now,
        model=found.model.key,
        predicate_type=PREDICATE_TYPE,
        envelope=envelope,
        retained=certificate.retained,
    )
    _enter(found, wanted, envelope, (attested,), gate, desk)
    return Advance(stage, verdict, findings, wanted, envelope)


def _certificate(
    found: Course, findings: tuple[Finding, ...], gate: tuple[str, str], now: datetime
) -> StageCertificate:
    kernel, target_digest = gate
    entered, record = found.rollout.now, found.record
    return StageCertificate(
        rollout=found.name,
        stage=found.require_running(),
        model=str(found.model.key),
        weights=found.model.weights.digest,
        contract=BoundDocument(name=record.name, digest=record.digest, object=record.object),
        target=entered.target,
        target_digest=target_digest,
        kernel=kernel,
        monitor=found.rollout.looks[-1].monitor,
        requests=found.monitor.rows.num_rows,
        confidence=decimal_text(found.contract.confidence),
        verdict=combine(finding.verdict for finding in findings),
        findings=findings,
        issued_at=now,
    )


def _enter(
    found: Course,
    stage: StageName,
    envelope: str | None,
    first: Sequence[LineageEvent],
    gate: GateOpen,
    desk: Desk,
) -> None:
    moved = {"at": desk.now, "stage": stage.value, "envelope": envelope, "reason": None}
    entered = found.rollout.now.model_copy(update=moved)
    desk.ledger.commit(unmoved(found.rollout, [*first, entered]), requires=(gate,))


def unmoved(rollout: Rollout, events: Sequence[LineageEvent]) -> Callable[[State], Sequence[LineageEvent]]:
    """Return a decision on events about a rollout, which refuses when somebody moved it since it was looked at."""

    def decide(state: State) -> Sequence[LineageEvent]:
        name = rollout.now.rollout
        if state.rollouts.get(name) != rollout:
            raise ConflictError(f"somebody moved rollout {name!r} meanwhile", hint="Look at it, and run this again.")
        return events

    return decide
