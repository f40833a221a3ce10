"""Register weights as a version of a model."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.events import ContractBound, LineageEvent, ModelRegistered, Recorded
from snapline.lineage.ledger import Ledger
from snapline.lineage.link import Edges, resolve_edges
from snapline.lineage.model import EdgeKind, ModelVersion, Parent, Use, UseKind, VersionKey, Weights, parse_reference
from snapline.lineage.objects import ObjectStore
from snapline.lineage.snapshot import Snapshot
from snapline.lineage.stat_cache import StatCache
from snapline.lineage.state import State, unrecorded
from snapline.lineage.weights import Report, encode_manifest, measure_weights


@dataclass(frozen=True, slots=True)
class Origin:
    """What weights were made from; snapshots and parents are references as written.

    Attributes:
        parents: Versions it was fine-tuned from.
        view_digest: The definition that really ran, of all the view ever had; None means the newest.
        edges: Anything else it came from, as `KIND=REFERENCE`; see `link.KINDS`.
    """

    view: str | None = None
    snapshots: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    view_digest: str | None = None
    edges: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Registration:
    """A version to record; everything but the version number is known."""

    name: str
    weights: Weights
    origin: Origin
    contract: Recorded | None = None
    materialize_seconds: int | None = None


def measure(
    folder: Path, objects: ObjectStore, cache: StatCache | None, allow_pickle: bool, on_progress: Report
) -> Weights:
    """Return the weights in a folder, digested in full, with their manifest stored."""
    real = folder.resolve()
    manifest = measure_weights(real, objects.algorithm, cache=cache, allow_pickle=allow_pickle, on_progress=on_progress)
    return Weights(
        digest=manifest.digest,
        path=str(real),
        manifest=objects.put(encode_manifest(manifest)),
        size_bytes=manifest.size_bytes,
    )


def register(registration: Registration, ledger: Ledger, now: datetime) -> ModelVersion:
    """Record a version and return it; the same weights, view, snapshots and edges return the one there is.

    Edges that were linked to that version later do not make it another one.

    Raises:
        DefinitionError: The origin contradicts the view, there is no such view, or the name cannot be one.
        NotFoundError: A snapshot or parent is not there.
    """
    keys: list[VersionKey] = []

    def decide(state: State) -> list[LineageEvent]:
        model = _version(registration, state)
        events: list[LineageEvent] = []
        contract = registration.contract
        if contract is not None:
            events += unrecorded(contract, state)
        known = _known(model, state)
        keys.append((known or model).key)
        if known is None:
            events.append(ModelRegistered(at=now, model=model))
        elif contract is not None and known.contract != contract.name:
            events.append(ContractBound(at=now, model=known.key, contract=contract.name))
        return events

    state = ledger.commit(decide)
    # Not looked up by its origin: a reference such as a bare name may mean another version once this one is there.
    key = keys[-1]
    return state.models[key.name][key.version - 1]


def _known(model: ModelVersion, state: State) -> ModelVersion | None:
    """Return the version that says all this already: one that says no more, if there is one."""

    def same(version: ModelVersion) -> bool:
        alike = (version.weights.digest, version.view, version.snapshots)
        return (
            alike == (model.weights.digest, model.view, model.snapshots)
            and set(model.uses) <= set(version.uses)
            and set(model.parents) <= set(version.parents)
        )

    found = [version for version in state.models.get(model.key.name, ()) if same(version)]
    return min(found, key=lambda version: len(version.uses) + len(version.parents), default=None)


def _version(registration: Registration, state: State) -> ModelVersion:
    origin = registration.origin
    if bool(origin.view) != bool(origin.snapshots):
        raise DefinitionError(
            "a view and its snapshots belong together: found "
            + ("a view without a snapshot" if origin.view else "a snapshot without a view"),
            hint="Give both --view and --snapshot, or neither for an external base model.",
        )
    view = state.views.get(origin.view) if origin.view else None
    if origin.view_digest is not None:
        view = state.view_versions[origin.view_digest]
    if origin.view and view is None:
        known = ", ".join(sorted(state.views)) or "none yet"
        raise NotFoundError(f"no view {origin.view!r}; there are: {known}", hint="Define it: snapline view define.")
    snapshots = tuple(sorted((state.snapshot(text) for text in origin.snapshots), key=lambda s: s.series.name))
    tuned = (f"{EdgeKind.FINE_TUNED_FROM}={text}" for text in origin.parents)
    edges = resolve_edges((*tuned, *origin.edges), state)
    if view is not None:
        _check_inputs(set(view.definition.inputs.values()), [s.series.name for s in snapshots], origin.view or "")
        edges = _with_base(view.definition.base_model, edges, state)
    version = len(state.models.get(registration.name, ())) + 1
    try:
        return ModelVersion(
            key=VersionKey(name=registration.name, version=version),
            weights=registration.weights,
            view_name=origin.view,
            view=view.digest if view else None,
            snapshots=tuple(snapshot.id for snapshot in snapshots),
            uses=tuple(use for use in edges.uses if not _is_training(use, snapshots)),
            parents=edges.parents,
            contract=registration.contract.name if registration.contract else None,
            materialize_seconds=registration.materialize_seconds,
        )
    except ValidationError as error:
        raise DefinitionError(
            f"model name {registration.name!r}: {error.errors()[0]['msg']}",
            hint="A name is letters, digits, '.', '_' and '-'.",
        ) from error


def _check_inputs(wanted: set[str], given: list[str], view: str) -> None:
    if set(given) != wanted or len(given) != len(wanted):
        raise DefinitionError(
            f"view {view!r} reads the snapshots {', '.join(sorted(wanted))}; given: {', '.join(given) or 'none'}",
            hint="Give each of them once with --snapshot.",
        )


def _with_base(base: str | None, edges: Edges, state: State) -> Edges:
    """Return the edges with the one to the view's base model among them."""
    if base is None:
        return edges
    expected = Parent(kind=EdgeKind.FINE_TUNED_FROM, model=state.resolve(parse_reference(base)).key)
    tuned = [parent for parent in edges.parents if parent.kind is EdgeKind.FINE_TUNED_FROM]
    if tuned and tuned != [expected]:
        given = ", ".join(str(parent.model) for parent in tuned)
        raise DefinitionError(
            f"the view's base model is {expected.model}, the parent given is {given}",
            hint="Leave --parent out, or define the view with the other base model.",
        )
    return Edges(edges.uses, tuple(dict.fromkeys((expected, *edges.parents))))


def _is_training(use: Use, snapshots: tuple[Snapshot, ...]) -> bool:
    return use.kind is UseKind.TRAINED_ON and use.snapshot in {snapshot.id for snapshot in snapshots}
