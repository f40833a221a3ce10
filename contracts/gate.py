"""The gate: may this version ship to this target? Anything that is not a clear yes is no.

`examine` finds the certificate that speaks for a model at a target and every cause that keeps it from speaking.
`decide` turns causes into one decision. Both are pure: what is there now comes in as values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from snapline.contracts.certificate import PREDICATE_TYPE, Certificate
from snapline.contracts.targets import TargetIdentity
from snapline.contracts.verdict import Verdict
from snapline.lineage.erasure.affected import pending
from snapline.lineage.errors import ConflictError, IntegrityError, RequirementError
from snapline.lineage.events import Attested, Escalated
from snapline.lineage.invalidation import Cause, Change, Why, effect
from snapline.lineage.model import ModelVersion
from snapline.lineage.state import Rollout, State
from snapline.lineage.view import RefreshPolicy

ReadCertificate = Callable[[Attested], Certificate]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a version's certificates say under one contract, for what is installed at a target now.

    Attributes:
        found: The newest certificate for exactly that identity; None when there is none.
        causes: What keeps it from being a yes.
    """

    contract: str
    found: tuple[Attested, Certificate] | None
    causes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class Examined:
    """The standing under every contract that counts, and what is wrong before any contract is looked at."""

    standings: tuple[Standing, ...]
    general: tuple[Cause, ...] = ()

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Everything that keeps the gate from opening."""
        return (*self.general, *(cause for standing in self.standings for cause in standing.causes))

    @property
    def envelope(self) -> str | None:
        """Address of the last certificate that a yes would rest on."""
        return next((s.found[0].envelope for s in reversed(self.standings) if s.found), None)


@dataclass(frozen=True, slots=True)
class GateDecision:
    """Whether the gate is open; `why` is the strongest reason it is not.

    Attributes:
        notes: Causes that do not shut the gate, for people to know.
        envelope: Address of the certificate a yes rests on.
        basis: Everything of the ledger it rests on.
    """

    model: ModelVersion
    target: str
    causes: tuple[Cause, ...]
    notes: tuple[Cause, ...]
    why: Why | None
    envelope: str | None
    basis: tuple[object, ...]

    @property
    def open(self) -> bool:
        """True only on a clear yes."""
        return self.why is None and self.envelope is not None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the gate is shut, one sentence each."""
        return tuple(
            f"{cause.subject}: {cause.message}" + (f" ({'; '.join(cause.details[:5])})" if cause.details else "")
            for cause in self.causes
        )


@dataclass(frozen=True, slots=True)
class TargetNow:
    """A target's name and what is installed there; `problem` says why the identity could not be read."""

    name: str
    identity: TargetIdentity | None
    problem: str = ""


def examine(model: ModelVersion, target: TargetNow, state: State, read: ReadCertificate) -> Examined:
    """Return the certificates that speak for a model at a target, and what keeps others from speaking.

    The contract bound at registration is the one that counts. Without one, every contract the version was ever held to
    at this target counts, be it by the target's name or by what is installed there.
    """
    known, damage = readable(model, state, read)
    subject = f"certificate of {model.key} for {target.name}"
    if damage:
        return Examined((), tuple(damage))
    here = _at(target, known)
    blocks = _blocks(_rollouts_at(model, target, state, here))
    if target.identity is None:
        return Examined((), (Cause(Change.TARGET_UNREADABLE, subject, target.problem), *blocks))
    wanted = contracts_that_count(model, here)
    if not wanted:
        return Examined((), (Cause(Change.NEVER_CERTIFIED, subject, "there is none"), *blocks))
    standings = []
    for name in wanted:
        standing = _standing(name, known, target.identity, state, subject)
        due = _asked(remeasure_due(model, name, target, state, known))
        standings.append(replace(standing, causes=(*standing.causes, *due)))
    return Examined(tuple(standings), tuple(blocks))


def rollouts_of(model: ModelVersion, state: State) -> tuple[Rollout, ...]:
    """Return a version's rollouts, by name; those that ended too."""
    return tuple(rollout for _, rollout in sorted(state.rollouts.items()) if rollout.now.model == model.key)


def remeasure_due(
    model: ModelVersion, contract: str, target: TargetNow, state: State, known: Sequence[tuple[Attested, Certificate]]
) -> Escalated | None:
    """Return the newest escalation that asks to measure under a contract again, unless engines ran for it since.

    Args:
        known: The version's certificates that hold.
    """
    here = _at(target, known)
    asked = [
        event
        for rollout in _rollouts_at(model, target, state, here)
        if rollout.now.contract == contract
        for event in rollout.escalations
        if "remeasure" in event.acts
    ]
    newest = max(asked, key=lambda event: event.at, default=None)
    measured = [attested.at for attested, cert in here if cert.contract.name == contract and attested.seconds]
    return None if newest is None or any(at > newest.at for at in measured) else newest


def contracts_that_count(model: ModelVersion, known: Sequence[tuple[Attested, Certificate]]) -> tuple[str, ...]:
    """Return the contract bound to a version, or else every contract it was ever held to."""
    return (model.contract,) if model.contract else tuple(sorted({cert.contract.name for _, cert in known}))


def decide(
    model: ModelVersion,
    target: str,
    causes: Sequence[Cause],
    examined: Examined,
    policy: RefreshPolicy,
    basis: tuple[object, ...],
) -> GateDecision:
    """Return the decision over everything that was found; `basis` is what `basis_of` gave when it was found."""
    everything = (*causes, *examined.causes)
    shutting = tuple(cause for cause in everything if effect(cause.change, policy).shuts)
    notes = tuple(cause for cause in everything if cause not in shutting)
    order = list(Why)
    whys = [why for cause in shutting if (why := effect(cause.change, policy).shuts)]
    why = min(whys, key=order.index, default=None if examined.envelope else Why.UNKNOWN)
    return GateDecision(model, target, shutting, notes, why, examined.envelope, basis)


def basis_of(model: ModelVersion, state: State) -> tuple[object, ...]:
    """Return everything of the ledger that a decision about a version rests on."""
    return (
        state.models[model.key.name][model.key.version - 1],
        state.attestations.get(model.key),
        state.views.get(model.view_name) if model.view_name else None,
        tuple(state.comparisons.get(identifier) for identifier in model.touched),
        state.leakage.get(model.key),
        state.retired.get(model.key),
        tuple((rollout.entered, rollout.escalations) for rollout in rollouts_of(model, state)),
        pending(state, model.key),
        state.records,
    )


@dataclass(frozen=True, slots=True)
class GateOpen:
    """The requirement that a decision, made on what is there now, still stands when the ledger moves."""

    decision: GateDecision

    def check(self, state: State) -> None:
        """Refuse unless the gate was open and nothing the decision rests on was recorded anew.

        Raises:
            RequirementError: The gate is shut.
            ConflictError: The ledger moved under the decision.
        """
        gate = f"the gate of {self.decision.model.key} for {self.decision.target}"
        if not self.decision.open:
            raise RequirementError(
                f"{gate} is shut",
                reasons=self.decision.reasons,
                hint="Run snapline plan to see what would open it.",
            )
        if basis_of(self.decision.model, state) != self.decision.basis:
            raise ConflictError(f"what {gate} rests on was recorded anew since it was found open", hint="Run it again.")


def readable(
    model: ModelVersion, state: State, read: ReadCertificate
) -> tuple[list[tuple[Attested, Certificate]], list[Cause]]:
    """Return a version's certificates that hold, oldest first, and what is wrong with the others."""
    known: list[tuple[Attested, Certificate]] = []
    damage: list[Cause] = []
    for attested in state.attestations.get(model.key, ()):
        if attested.predicate_type != PREDICATE_TYPE:
            continue
        try:
            certificate = read(attested)
        except IntegrityError as error:
            damage.append(Cause(Change.RECORD_DAMAGED, f"certificate of {model.key}", error.message))
            continue
        if certificate.weights != model.weights.digest or certificate.model != str(model.key):
            damage.append(Cause(Change.RECORD_DAMAGED, f"certificate of {model.key}", "it speaks of other weights"))
            continue
        known.append((attested, certificate))
    return known, damage


def _standing(
    contract: str,
    known: Sequence[tuple[Attested, Certificate]],
    identity: TargetIdentity,
    state: State,
    subject: str,
) -> Standing:
    about = [pair for pair in known if pair[1].contract.name == contract and _on_wanted_probes(pair[1])]
    fitting = [pair for pair in reversed(about) if pair[1].target_identity.digest == identity.digest]
    current = (pair for pair in fitting if not _replaced(pair[1], state, subject))
    found = next(current, fitting[0] if fitting else None)
    if found is None:
        return Standing(contract, None, (_absence(about, identity, contract, subject),))
    return Standing(contract, found, (*_replaced(found[1], state, subject), *_objections(found[1], subject)))


def _at(target: TargetNow, known: Sequence[tuple[Attested, Certificate]]) -> list[tuple[Attested, Certificate]]:
    """Return the certificates for a target, be it by the target's name or by what is installed there."""
    return [pair for pair in known if pair[1].target == target.name or pair[1].target_identity == target.identity]


def _rollouts_at(
    model: ModelVersion, target: TargetNow, state: State, here: Sequence[tuple[Attested, Certificate]]
) -> tuple[Rollout, ...]:
    """Return a version's rollouts to a target; one names the certificate for the target that it left `offline` with."""
    envelopes = {attested.envelope for attested, _ in here}
    return tuple(
        rollout
        for rollout in rollouts_of(model, state)
        if rollout.now.target == target.name or envelopes & {entered.envelope for entered in rollout.entered}
    )


def _blocks(rollouts: Sequence[Rollout]) -> list[Cause]:
    return [
        Cause(
            Change.ROLLOUT_BLOCKED,
            f"rollout {event.rollout}",
            f"{event.clause} on {event.slice} was {event.verdict} on {event.at.isoformat()}",
            (event.reason,),
        )
        for rollout in rollouts
        for event in rollout.escalations
        if event.blocks
    ]


def _asked(due: Escalated | None) -> list[Cause]:
    if due is None:
        return []
    message = f"{due.clause} on {due.slice} was {due.verdict} on {due.at.isoformat()}; nobody measured since"
    return [Cause(Change.REMEASURE_ASKED, f"rollout {due.rollout}", message, (due.reason,))]


def _on_wanted_probes(certificate: Certificate) -> bool:
    return certificate.probes.name == certificate.wanted_probes


def _absence(
    about: Sequence[tuple[Attested, Certificate]], identity: TargetIdentity, contract: str, subject: str
) -> Cause:
    if not about:
        return Cause(Change.NEVER_CERTIFIED, subject, f"there is none under contract {contract!r}")
    then, now = about[-1][1].target_identity.model_dump(), identity.model_dump()
    moved = tuple(f"{name} was {then[name]}, is {now[name]}" for name in now if now[name] != then[name])
    message = f"none for what is installed there now, under contract {contract!r}"
    return Cause(Change.ENGINE_CHANGED, subject, message, moved)


def _replaced(certificate: Certificate, state: State, subject: str) -> list[Cause]:
    """Return which of the documents a certificate binds are no longer those in force."""
    causes = []
    for what, bound, change in (
        ("contract", certificate.contract, Change.CONTRACT_CHANGED),
        ("probes", certificate.probes, Change.PROBES_CHANGED),
    ):
        record = state.records.get((what, bound.name))
        if record is None or record.digest != bound.digest:
            causes.append(Cause(change, subject, f"{what} {bound.name!r} changed since it was issued"))
    return causes


def _objections(certificate: Certificate, subject: str) -> list[Cause]:
    """Return what keeps a certificate from being a yes by what it says itself."""
    if certificate.verdict is Verdict.CERTIFIED:
        return []
    change = Change.REFUTED if certificate.verdict is Verdict.REFUTED else Change.UNDECIDED
    deciding = (f for f in certificate.findings if f.verdict is certificate.verdict)
    details = tuple(f"{f.clause} on {f.slice}, {f.path}: {f.reason}" for f in deciding)
    return [Cause(change, subject, f"{certificate.verdict} under contract {certificate.contract.name!r}", details)]
