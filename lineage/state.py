"""What is true now: the fold of the ledger's events.

`apply` is pure and total over well-formed events; `fold` applies many. Maps are persistent, so every past state can be
kept and compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from immutables import Map

from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import NotFoundError
from snapline.lineage.events import (
    Attested,
    ContractBound,
    Erased,
    ErasureClosed,
    Escalated,
    Initialized,
    LeakageChecked,
    LineageEvent,
    Linked,
    ModelRegistered,
    Observed,
    Promoted,
    Recorded,
    Retired,
    SnapshotTaken,
    SourceCompared,
    StageEntered,
    ViewDefined,
)
from snapline.lineage.model import ModelVersion, Reference, VersionKey
from snapline.lineage.snapshot import Snapshot
from snapline.lineage.view import View


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout as it stands.

    Attributes:
        entered: Every stage it entered since it was last started, oldest first; the last has stage None once aborted.
        looks: Logs that were read in the present stage, oldest first.
        escalations: Everything a violation set off since the start.
    """

    entered: tuple[StageEntered, ...]
    looks: tuple[Observed, ...] = ()
    escalations: tuple[Escalated, ...] = ()

    @property
    def now(self) -> StageEntered:
        """Where it is."""
        return self.entered[-1]

    @property
    def blocked(self) -> bool:
        """Whether a violation shut the version's gate."""
        return any(escalation.blocks for escalation in self.escalations)

    @property
    def reference_slices(self) -> frozenset[str]:
        """Slices whose traffic goes to the reference."""
        return frozenset(name for escalation in self.escalations for name in escalation.reference_slices)


@dataclass(frozen=True, slots=True)
class State:
    """Everything the ledger says, indexed for the questions people ask.

    Attributes:
        snapshots: Every snapshot by id.
        series: Ids of each series' snapshots, oldest first.
        comparisons: The newest comparison of each snapshot with its source, by snapshot id.
        views: The newest definition of each view; `view_versions` has every one by digest.
        models: Versions of each model, oldest first, so `models[name][2]` is `name/3`.
        records: The newest contract or probe set by (what, name).
        attestations: Statements about each version, oldest first.
        holders: For each (name, alias), the stack of promotions; a rollback pops.
        leakage: The newest leakage check of each version under each name of rules.
        erasures: Every erasure request by id; `closed` has the closing of those that are done.
        retired: Versions that must not be served again.
        rollouts: Every rollout by name.
    """

    algorithm: BulkAlgorithm = BulkAlgorithm.BLAKE3
    salt: str = ""
    snapshots: Map[str, Snapshot] = field(default_factory=Map)
    series: Map[str, tuple[str, ...]] = field(default_factory=Map)
    comparisons: Map[str, SourceCompared] = field(default_factory=Map)
    views: Map[str, View] = field(default_factory=Map)
    view_versions: Map[str, View] = field(default_factory=Map)
    models: Map[str, tuple[ModelVersion, ...]] = field(default_factory=Map)
    records: Map[tuple[str, str], Recorded] = field(default_factory=Map)
    attestations: Map[VersionKey, tuple[Attested, ...]] = field(default_factory=Map)
    holders: Map[tuple[str, str], tuple[Promoted, ...]] = field(default_factory=Map)
    leakage: Map[VersionKey, tuple[LeakageChecked, ...]] = field(default_factory=Map)
    erasures: Map[str, Erased] = field(default_factory=Map)
    closed: Map[str, ErasureClosed] = field(default_factory=Map)
    retired: Map[VersionKey, Retired] = field(default_factory=Map)
    rollouts: Map[str, Rollout] = field(default_factory=Map)

    def resolve(self, reference: Reference) -> ModelVersion:
        """Return the version a reference names; a bare name means the newest version.

        Raises:
            NotFoundError: No such model, version or alias; the message names what there is.
        """
        versions = self.models.get(reference.name)
        if not versions:
            known = ", ".join(sorted(self.models)) or "none yet"
            raise NotFoundError(
                f"no model {reference.name!r}; there are: {known}", hint="Register or materialize it first."
            )
        number = reference.version if reference.version is not None else len(versions)
        if reference.alias is not None:
            stack = self.holders.get((reference.name, reference.alias), ())
            if not stack:
                raise NotFoundError(
                    f"model {reference.name!r} has no alias {reference.alias!r}", hint="Promote a version to it first."
                )
            number = stack[-1].model.version
        if not 1 <= number <= len(versions):
            raise NotFoundError(
                f"model {reference.name!r} has versions 1 to {len(versions)}, not {number}", hint="Name one of them."
            )
        return versions[number - 1]

    def snapshot(self, text: str) -> Snapshot:
        """Return the snapshot `NAME` (its newest) or `NAME@ID` (exactly one; a unique prefix of an id will do).

        Raises:
            NotFoundError: No such series or id, or a prefix of several.
        """
        name, _, prefix = text.partition("@")
        ids = self.series.get(name)
        if not ids:
            known = ", ".join(sorted(self.series)) or "none yet"
            raise NotFoundError(
                f"no snapshot {name!r}; there are: {known}", hint="Take it first: snapline snapshot take."
            )
        matches = [ids[-1]] if not prefix else [found for found in ids if found.startswith(prefix)]
        if len(matches) != 1:
            begins = ", ".join(found[:12] for found in ids)
            raise NotFoundError(
                f"{text!r} names {len(matches)} snapshots of {name!r}; its ids begin {begins}",
                hint="Write NAME@ID, with as much of an id as only one has.",
            )
        return self.snapshots[matches[0]]


def apply(state: State, event: LineageEvent) -> State:  # noqa: PLR0911, PLR0912 - one return per kind of event
    """Return the state after `event`."""
    match event:
        case Initialized():
            return replace(state, algorithm=event.algorithm, salt=event.salt)
        case SnapshotTaken(snapshot=snapshot):
            name, ids = snapshot.series.name, state.series.get(snapshot.series.name, ())
            others = tuple(found for found in ids if found != snapshot.id)
            return replace(
                state,
                snapshots=state.snapshots.set(snapshot.id, snapshot),
                series=state.series.set(name, (*others, snapshot.id)),
            )
        case SourceCompared():
            return replace(state, comparisons=state.comparisons.set(event.snapshot, event))
        case ViewDefined(view=view):
            return replace(
                state,
                views=state.views.set(view.definition.name, view),
                view_versions=state.view_versions.set(view.digest, view),
            )
        case ModelRegistered(model=model):
            return replace(state, models=_push(state.models, model.key.name, model))
        case ContractBound(model=key, contract=contract):
            return _amended(state, key, {"contract": contract})
        case Linked(model=key):
            model = state.models[key.name][key.version - 1]
            uses = tuple(dict.fromkeys((*model.uses, *event.uses)))
            parents = tuple(dict.fromkeys((*model.parents, *event.parents)))
            return _amended(state, key, {"uses": uses, "parents": parents})
        case Recorded():
            return replace(state, records=state.records.set((event.what, event.name), event))
        case Attested():
            return replace(state, attestations=_push(state.attestations, event.model, event))
        case Promoted():
            return replace(state, holders=_move_alias(state.holders, event))
        case LeakageChecked():
            kept = tuple(check for check in state.leakage.get(event.model, ()) if check.name != event.name)
            return replace(state, leakage=state.leakage.set(event.model, (*kept, event)))
        case Erased():
            return replace(state, erasures=state.erasures.set(event.erasure, event))
        case ErasureClosed():
            return replace(state, closed=state.closed.set(event.erasure, event))
        case Retired():
            return replace(state, retired=state.retired.set(event.model, event))
        case StageEntered() | Observed() | Escalated():
            return replace(state, rollouts=state.rollouts.set(event.rollout, _rolled(state, event)))


def _rolled(state: State, event: StageEntered | Observed | Escalated) -> Rollout:
    known = state.rollouts.get(event.rollout)
    if isinstance(event, StageEntered):
        # A rollout that ended starts over under its name; one that goes on keeps what happened in it.
        if known is None or known.now.stage is None:
            return Rollout((event,))
        return replace(known, entered=(*known.entered, event), looks=())
    if known is None:
        raise ValueError(f"the ledger has no rollout {event.rollout!r} before what happened in it")
    if isinstance(event, Observed):
        return replace(known, looks=(*known.looks, event))
    return replace(known, escalations=(*known.escalations, event))


def _amended(state: State, key: VersionKey, update: dict[str, Any]) -> State:
    versions = list(state.models[key.name])
    versions[key.version - 1] = versions[key.version - 1].model_copy(update=update)
    return replace(state, models=state.models.set(key.name, tuple(versions)))


def fold(events: Iterable[LineageEvent], start: State | None = None) -> State:
    """Return the state after all `events`, in order."""
    state = start or State()
    for event in events:
        state = apply(state, event)
    return state


def unrecorded(record: Recorded, state: State) -> list[LineageEvent]:
    """Return the record as the event that is missing from the ledger; nothing when it is there already."""
    known = state.records.get((record.what, record.name))
    same = known is not None and known.model_copy(update={"at": record.at}) == record
    return [] if same else [record]


def _push(index: Map[Any, tuple[Any, ...]], key: object, item: object) -> Map[Any, tuple[Any, ...]]:
    return index.set(key, (*index.get(key, ()), item))


Holders = Map[tuple[str, str], tuple[Promoted, ...]]


def _move_alias(holders: Holders, event: Promoted) -> Holders:
    place = (event.model.name, event.alias)
    stack = holders.get(place, ())
    if event.rollback:
        return holders.set(place, stack[:-1])
    if stack and stack[-1].model == event.model:
        return holders.set(place, (*stack[:-1], event))
    return holders.set(place, (*stack, event))
