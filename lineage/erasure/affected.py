"""Which model versions an erasure reaches, why, and whether each is settled: pure, over what the ledger says.

A version is *affected* by an erasure if

    it trained, evaluated or calibrated on one of the snapshots that may have an erased row, or
    it came from an affected version, in whatever way (fine-tuned, distilled, adapter, merged, quantized), or
    it says nothing of what it was made from and its weights are those of an affected version: it is a copy.

An affected version is *settled* once it is retired, or retrained: a later version of the same model is not affected,
and says what it was made from (snapshots or parents; weights that say nothing cannot show that the rows are gone). What
was affected stays so: settling lets an erasure close, and never makes an affected version fit to serve.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter

from snapline.lineage.errors import NotFoundError
from snapline.lineage.events import Erased
from snapline.lineage.model import ModelVersion, VersionKey, parse_reference
from snapline.lineage.state import State


class Settlement(StrEnum):
    """What became of an affected version."""

    PENDING = "pending"
    RETRAINED = "retrained"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class AffectedModel:
    """A version an erasure reaches.

    Attributes:
        path: The edges that lead from it to a snapshot, each as `delays/2 fine_tuned_from base/1`.
        by: The later version that was made without the rows; None unless it was retrained.
        aliases: Aliases that stand on it now.
    """

    key: VersionKey
    path: tuple[str, ...]
    state: Settlement
    by: VersionKey | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do about pending versions: a command to run, or None where a person must do it another way."""

    models: tuple[VersionKey, ...]
    command: str | None
    why: str


def erasures_of(series: str, state: State) -> tuple[Erased, ...]:
    """Return every request about a series, in the order they were made; closed ones too, for keys stay erased."""
    found = (request for request in state.erasures.values() if series in request.series)
    return tuple(sorted(found, key=lambda request: (request.at, request.erasure)))


def erasures_in(snapshot: str, state: State) -> tuple[Erased, ...]:
    """Return every request a row of which a snapshot may have; its rows may be read for nothing new."""
    return tuple(request for request in state.erasures.values() if snapshot in request.snapshots)


def pending(state: State, key: VersionKey) -> tuple[Erased, ...]:
    """Return every request that affects a version, open or closed: while there is one, its gate is shut.

    Walks from the version up, so what it costs depends on its ancestors, not on how many models there are.
    """
    if not state.erasures:
        return ()
    touched: set[str] = set()
    seen, waiting = {key}, [key]
    while waiting:
        model = _version(state, waiting.pop())
        touched.update(model.touched)
        above = [parent.model for parent in model.parents]
        if _says_nothing(model):
            above = [twin.key for twin in _all(state) if twin.weights.digest == model.weights.digest]
        waiting += [found for found in above if found not in seen]
        seen.update(above)
    return tuple(request for request in state.erasures.values() if touched.intersection(request.snapshots))


def affected(erasure: Erased, state: State) -> tuple[AffectedModel, ...]:
    """Return every version an erasure reaches, by name and version, with a shortest path that makes it so."""
    paths = _paths(erasure, state)
    served: dict[VersionKey, list[str]] = defaultdict(list)
    for (_, alias), stack in state.holders.items():
        if stack:
            served[stack[-1].model].append(alias)
    return tuple(
        _settled(key, paths, state, tuple(sorted(served.get(key, ()))))
        for key in sorted(paths, key=lambda key: (key.name, key.version))
    )


def open_erasures(state: State) -> tuple[Erased, ...]:
    """Return the requests that are not closed, oldest first."""
    found = (request for request in state.erasures.values() if request.erasure not in state.closed)
    return tuple(sorted(found, key=lambda request: (request.at, request.erasure)))


def refresh_steps(models: Sequence[AffectedModel], state: State) -> tuple[Step, ...]:
    """Return what would settle the pending ones among some affected versions, bases before what is made from them."""
    waiting: dict[str, list[VersionKey]] = defaultdict(list)
    for model in models:
        if model.state is Settlement.PENDING:
            waiting[model.key.name].append(model.key)
    reached = {model.key for model in models}
    return tuple(
        _step(state.models[name][-1], tuple(waiting[name]), reached, state) for name in _bases_first(waiting, state)
    )


def _paths(erasure: Erased, state: State) -> dict[VersionKey, tuple[str, ...]]:
    hit = frozenset(erasure.snapshots)
    below: dict[VersionKey, list[tuple[str, VersionKey]]] = defaultdict(list)
    copies: dict[str, list[VersionKey]] = defaultdict(list)
    paths: dict[VersionKey, tuple[str, ...]] = {}
    for model in _all(state):
        for parent in model.parents:
            below[parent.model].append((parent.kind.value, model.key))
        if _says_nothing(model):
            copies[model.weights.digest].append(model.key)
        edge = next(((kind, found) for kind, found in _uses(model) if found in hit), None)
        if edge is not None:
            series = state.snapshots[edge[1]].series.name
            paths[model.key] = (f"{model.key} {edge[0]} {series}@{edge[1][:12]}",)
    waiting = deque(paths)
    while waiting:
        key = waiting.popleft()
        twins = [("same_weights_as", twin) for twin in copies[_version(state, key).weights.digest]]
        for kind, child in [*below[key], *twins]:
            if child not in paths:
                paths[child] = (f"{child} {kind} {key}", *paths[key])
                waiting.append(child)
    return paths


def _settled(
    key: VersionKey, paths: Mapping[VersionKey, tuple[str, ...]], state: State, aliases: tuple[str, ...]
) -> AffectedModel:
    if key in state.retired:
        return AffectedModel(key, paths[key], Settlement.RETIRED, None, aliases)
    later = (model for model in state.models[key.name][key.version :] if model.key not in paths)
    by = next((model.key for model in later if not _says_nothing(model)), None)
    return AffectedModel(key, paths[key], Settlement.RETRAINED if by else Settlement.PENDING, by, aliases)


def _bases_first(names: Collection[str], state: State) -> list[str]:
    """Return model names so that what another one's newest version came from stands before it."""
    above = {name: {parent.model.name for parent in state.models[name][-1].parents} - {name} for name in sorted(names)}
    try:
        return [name for name in TopologicalSorter(above).static_order() if name in names]
    except CycleError:
        return sorted(names)


def _step(newest: ModelVersion, versions: tuple[VersionKey, ...], reached: set[VersionKey], state: State) -> Step:
    name = newest.key.name
    view = state.views.get(newest.view_name) if newest.view_name else None
    if view is None or newest.view_name != name:
        why = f"{name} is made elsewhere: retrain it without the rows and register it, or retire what is affected"
        return Step(versions, None, why)
    written = view.definition.base_model
    base = _base(written, state)
    if base is not None and base in reached:
        if parse_reference(written or "").version is not None:
            return Step(
                versions, None, f"{name} starts from {base}, which is affected: define its view on another base"
            )
        why = f"once {written} is a version made without the rows; now it is {base}, which is affected"
        return Step(versions, f"snapline materialize {name}", why)
    inputs = ", ".join(dict.fromkeys(view.definition.inputs.values()))
    return Step(versions, f"snapline materialize {name}", f"takes {inputs} anew, without the erased rows")


def _base(written: str | None, state: State) -> VersionKey | None:
    if written is None:
        return None
    with suppress(NotFoundError):
        return state.resolve(parse_reference(written)).key
    return None


def _uses(model: ModelVersion) -> Iterator[tuple[str, str]]:
    yield from (("trained_on", snapshot) for snapshot in model.snapshots)
    yield from ((use.kind.value, use.snapshot) for use in model.uses)


def _says_nothing(model: ModelVersion) -> bool:
    """Return whether a version was recorded without anything it was made from."""
    return not model.snapshots and not model.parents


def _all(state: State) -> Iterator[ModelVersion]:
    return (model for versions in state.models.values() for model in versions)


def _version(state: State, key: VersionKey) -> ModelVersion:
    return state.models[key.name][key.version - 1]
