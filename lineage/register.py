"""Register weights as a version of a model."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.events import ContractBound, LineageEvent, ModelRegistered, Recorded
from snapline.lineage.ledger import Ledger
from snapline.lineage.model import EdgeKind, ModelVersion, Parent, VersionKey, Weights, parse_reference
from snapline.lineage.objects import ObjectStore
from snapline.lineage.stat_cache import StatCache
from snapline.lineage.state import State, unrecorded
from snapline.lineage.weights import Report, encode_manifest, measure_weights


@dataclass(frozen=True, slots=True)
class Origin:
    """What weights were made from; snapshots and parents are references as written.

    Attributes:
        view_digest: The definition that really ran, of all the view ever had; None means the newest.
    """

    view: str | None = None
    snapshots: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    view_digest: str | None = None


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
    """Record a version and return it; the same weights, view, snapshots and parents return the one there is.

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
    def identity(version: ModelVersion) -> tuple[object, ...]:
        return (version.weights.digest, version.view, version.snapshots, version.parents)

    return next((v for v in state.models.get(model.key.name, ()) if identity(v) == identity(model)), None)


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
    parents = [state.resolve(parse_reference(text)).key for text in origin.parents]
    if view is not None:
        _check_inputs(set(view.definition.inputs.values()), [s.series.name for s in snapshots], origin.view or "")
        parents = _check_base(view.definition.base_model, parents, state)
    version = len(state.models.get(registration.name, ())) + 1
    try:
        return ModelVersion(
            key=VersionKey(name=registration.name, version=version),
            weights=registration.weights,
            view_name=origin.view,
            view=view.digest if view else None,
            snapshots=tuple(snapshot.id for snapshot in snapshots),
            parents=tuple(Parent(kind=EdgeKind.FINE_TUNED_FROM, model=key) for key in parents),
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


def _check_base(base: str | None, parents: list[VersionKey], state: State) -> list[VersionKey]:
    if base is None:
        return parents
    expected = state.resolve(parse_reference(base)).key
    if parents and parents != [expected]:
        raise DefinitionError(
            f"the view's base model is {expected}, the parent given is {', '.join(map(str, parents))}",
            hint="Leave --parent out, or define the view with the other base model.",
        )
    return [expected]
