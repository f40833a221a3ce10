"""Look at what a model was made from, as it is now, and name every difference from what the ledger binds.

Looking never changes anything. Rows are parsed only when asked for; otherwise a source whose bytes moved is reported as
unread, unless an earlier comparison already spoke of exactly these bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from snapline.lineage import weights
from snapline.lineage.erasure.affected import Settlement, affected, pending
from snapline.lineage.errors import ConflictError, DefinitionError, IntegrityError, NotFoundError, SnaplineError
from snapline.lineage.events import Erased, SourceCompared
from snapline.lineage.invalidation import Cause, Change, effect
from snapline.lineage.manifest import changed_files, decode_manifest, files_of
from snapline.lineage.model import ModelVersion, Use, UseKind
from snapline.lineage.objects import ObjectStore
from snapline.lineage.snapshot import Comparison, Snapshot
from snapline.lineage.sources.opening import open_source
from snapline.lineage.sources.protocol import readable
from snapline.lineage.staleness import SourceSeen, as_used, causes_of, commits_after, difference_causes, subject_of
from snapline.lineage.stat_cache import StatCache
from snapline.lineage.state import State
from snapline.lineage.view import RefreshPolicy

if TYPE_CHECKING:
    from snapline.lineage.sources.protocol import Source


@dataclass(frozen=True, slots=True)
class Depth:
    """How hard to look.

    Attributes:
        rows: Parse the source's rows wherever its bytes moved.
        full: Re-read every byte and every row, whatever the stamps say.
    """

    rows: bool = False
    full: bool = False


@dataclass(frozen=True, slots=True)
class Lens:
    """What looking needs: the objects, the stat cache, and the instant that counts as now."""

    objects: ObjectStore
    cache: StatCache | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Observation:
    """Every difference found, the comparisons made that the ledger does not hold yet, and what is known of each source.

    `seen` has one entry for each snapshot its view was materialized from, in their order.
    """

    causes: tuple[Cause, ...]
    compared: tuple[SourceCompared, ...] = ()
    seen: tuple[SourceSeen, ...] = ()


def policy_of(model: ModelVersion, state: State) -> RefreshPolicy:
    """Return the refresh policy in force: that of the newest definition of the model's view."""
    view = state.views.get(model.view_name) if model.view_name else None
    return view.definition.refresh if view else RefreshPolicy()


def observe(model: ModelVersion, state: State, lens: Lens, depth: Depth) -> Observation:
    """Return how a model's records, weights and sources differ from what the ledger binds."""
    causes = [*_weights(model, lens, depth), *_records(model, state, lens, depth), *_said(model, state)]
    if not model.snapshots:
        causes.append(Cause(Change.NO_CUT, str(model.key), "no cut: it was registered without a snapshot"))
    found = {
        identifier: _source(state.snapshots[identifier], state, lens, depth)
        for identifier in dict.fromkeys(model.touched)
    }
    seen = [found[identifier].seen for identifier in model.snapshots]
    causes += [cause for identifier in model.snapshots for cause in found[identifier].causes]
    causes += causes_of(str(model.key), seen, policy_of(model, state), lens.now)
    causes += _used(model, state, found)
    causes += _view(model, state)
    events = (one.event for one in found.values() if one.event is not None)
    compared = tuple(event for event in events if not _recorded(event, state))
    return Observation(tuple(dict.fromkeys(causes)), compared, tuple(seen))


def _recorded(event: SourceCompared, state: State) -> bool:
    known = state.comparisons.get(event.snapshot)
    return known is not None and known.model_copy(update={"at": event.at}) == event


def _weights(model: ModelVersion, lens: Lens, depth: Depth) -> list[Cause]:
    subject = f"weights of {model.key}"
    try:
        manifest = weights.decode_manifest(lens.objects.read(model.weights.manifest))
        differences = weights.check_weights(
            manifest, Path(model.weights.path), lens.objects.algorithm, cache=lens.cache, full=depth.full
        )
    except NotFoundError as error:
        return [Cause(Change.WEIGHTS_GONE, subject, error.message)]
    except IntegrityError as error:
        return [Cause(Change.RECORD_DAMAGED, subject, error.message)]
    except DefinitionError as error:
        return [Cause(Change.WEIGHTS_CHANGED, subject, error.message)]
    if not differences:
        return []
    return [
        Cause(Change.WEIGHTS_CHANGED, subject, f"{model.weights.path} holds other bytes than registered", differences)
    ]


def _records(model: ModelVersion, state: State, lens: Lens, depth: Depth) -> list[Cause]:
    view = state.view_versions.get(model.view) if model.view else None
    stored = (*view.code, *([view.environment] if view.environment else [])) if view else ()
    bound = [(f"view {model.view_name}", file.object) for file in stored]
    if depth.full:
        # No gate reads an index: it only tells differences apart that the digests have found.
        snapshots = [state.snapshots[identifier] for identifier in dict.fromkeys(model.touched)]
        bound += [(subject_of(snapshot), snapshot.membership) for snapshot in snapshots]
    return [
        Cause(Change.RECORD_DAMAGED, subject, problem)
        for subject, address in bound
        for problem in damaged(lens.objects, (address,))
    ]


def damaged(objects: ObjectStore, addresses: tuple[str, ...]) -> list[str]:
    """Return what is wrong with each object that is missing or holds other bytes."""
    problems = []
    for address in addresses:
        try:
            objects.read(address)
        except IntegrityError as error:
            problems.append(error.message)
    return problems


def _said(model: ModelVersion, state: State) -> list[Cause]:
    """Return what was recorded about a version that keeps it from being served."""
    causes = []
    for check in state.leakage.get(model.key, ()):
        if check.leaked:
            details = tuple(f"{finding.rule}: {finding.rows} rows" for finding in check.findings if finding.rows)
            message = f"rows it was made from or evaluated on break the leakage rules {check.name!r}"
            causes.append(Cause(Change.LEAKED, str(model.key), message, details))
    causes += [_erased(request, model, state) for request in pending(state, model.key)]
    retired = state.retired.get(model.key)
    if retired is not None:
        why = f": {retired.reason}" if retired.reason else ""
        causes.append(Cause(Change.RETIRED, str(model.key), f"retired on {retired.at.isoformat()}{why}"))
    return causes


def _erased(request: Erased, model: ModelVersion, state: State) -> Cause:
    """Return what a request means for a version it affects: what is left to do, or only that it is never served."""
    reason = f" ({request.reason})" if request.reason else ""
    message = f"erasure {request.erasure[:12]}{reason} asks for rows it was made from"
    (found,) = (one for one in affected(request, state) if one.key == model.key)
    if found.state is Settlement.PENDING:
        return Cause(Change.ERASURE_PENDING, str(model.key), message, found.path)
    without = f"; {found.by} was made without them" if found.by else ""
    return Cause(Change.ERASED, str(model.key), f"{message}{without}", found.path)


def _view(model: ModelVersion, state: State) -> list[Cause]:
    newest = state.views.get(model.view_name) if model.view_name else None
    if newest is None or newest.digest == model.view:
        return []
    return [
        Cause(Change.VIEW_CHANGED, f"view {model.view_name}", "defined anew since; a materialize would use the new one")
    ]


@dataclass(frozen=True, slots=True)
class _Found:
    """What looking at one source gave; causes are what kept it from being seen."""

    seen: SourceSeen
    causes: tuple[Cause, ...] = ()
    event: SourceCompared | None = None


# What is no longer asked of a cut once a later one of its window was used in its place.
_REPLACED = (Change.EVALUATION_RESTATED, Change.SOURCE_UNREAD)


def _used(model: ModelVersion, state: State, found: Mapping[str, _Found]) -> list[Cause]:
    """Return what differs in the snapshots a version used besides those of its view.

    A later take of the same window, used in the same way, replaces an earlier one, as long as nothing shuts over it.
    """
    causes: list[Cause] = []
    standing: set[tuple[object, ...]] = set()
    for use in sorted(model.uses, key=lambda use: _taken(use, state), reverse=True):
        cut = state.snapshots[use.snapshot]
        place = (use.kind, cut.series.name, cut.cut.since, cut.cut.until)
        one = found[use.snapshot]
        differ = as_used(use.kind, (*one.causes, *difference_causes(one.seen)))
        if place in standing:
            differ = [cause for cause in differ if cause.change not in _REPLACED]
        elif use.kind is not UseKind.TRAINED_ON and not any(effect(c.change, RefreshPolicy()).shuts for c in differ):
            standing.add(place)
        causes += differ
    return causes


def _taken(use: Use, state: State) -> int:
    """Return the place of a use's snapshot among the takes of its series, oldest first."""
    return state.series[state.snapshots[use.snapshot].series.name].index(use.snapshot)


# What a source that cannot be held against its cut means, and what a person is told before the reason.
_UNSEEN: tuple[tuple[type[SnaplineError], Change, str], ...] = (
    (NotFoundError, Change.SOURCE_GONE, ""),
    (IntegrityError, Change.RECORD_DAMAGED, ""),
    (DefinitionError, Change.RESTATED, "the source can no longer be cut this way: "),
    (ConflictError, Change.SOURCE_UNREAD, "it kept changing while it was read: "),
)


def _source(snapshot: Snapshot, state: State, lens: Lens, depth: Depth) -> _Found:
    try:
        source = open_source(snapshot.series.source, lens.objects.algorithm)
    except DefinitionError as error:
        return _unseen(snapshot, Change.SOURCE_UNREAD, f"it cannot be read here: {error.message}")
    except NotFoundError as error:
        return _unseen(snapshot, Change.SOURCE_GONE, error.message)
    try:
        return _held_against(source, snapshot, state, lens, depth)
    except tuple(kind for kind, _, _ in _UNSEEN) as error:
        change, told = next((change, told) for kind, change, told in _UNSEEN if isinstance(error, kind))
        return _unseen(snapshot, change, f"{told}{error.message}")


def _unseen(snapshot: Snapshot, change: Change, message: str) -> _Found:
    return _Found(SourceSeen(snapshot), (Cause(change, subject_of(snapshot), message),))


def _held_against(source: Source, snapshot: Snapshot, state: State, lens: Lens, depth: Depth) -> _Found:
    commit = source.commit()
    lag = commits_after(source.commits(), snapshot.commit) if source.travels else None
    if not depth.full:
        files = files_of(snapshot.manifest, lens.objects, lens.cache)
        moved = changed_files(files, source, commit)
        if not moved:
            newer = sum(file.later for file in files)
            return _Found(_seen(source, snapshot, Comparison(commit=snapshot.commit, lag=lag, newer=newer), lag))
        earlier = state.comparisons.get(snapshot.id)
        if earlier is not None and not changed_files(files_of(earlier.files, lens.objects, lens.cache), source, commit):
            return _Found(_seen(source, snapshot, earlier.comparison, lag))
        if not depth.rows:
            message = "its bytes changed since the cut and its rows were not compared since; run snapline verify"
            cause = Cause(Change.SOURCE_UNREAD, subject_of(snapshot), message, moved)
            return _Found(SourceSeen(snapshot, lag=lag, keeps_history=source.travels), (cause,))
    event = _compared(snapshot, state, lens, depth)
    if _is_as_cut(event, snapshot, lens):
        same = event.comparison.model_copy(update={"commit": snapshot.commit})
        return _Found(_seen(source, snapshot, same, lag))
    return _Found(_seen(source, snapshot, event.comparison, lag), event=event)


def _seen(source: Source, snapshot: Snapshot, comparison: Comparison, lag: int | None) -> SourceSeen:
    orphaned = source.travels and comparison.restated and not readable(source, snapshot.commit)
    return SourceSeen(snapshot, lag, comparison, orphaned, source.travels)


def _compared(snapshot: Snapshot, state: State, lens: Lens, depth: Depth) -> SourceCompared:
    """Compare a snapshot with its source's rows, once more if the source changed meanwhile."""
    from snapline.lineage.series import Desk, compared  # parses rows, which a gate never pays for

    manifest = decode_manifest(lens.objects.read(snapshot.manifest))
    desk = Desk(lens.objects, lens.now)
    try:
        return compared(snapshot, manifest, state, desk, depth.full)
    except ConflictError:
        return compared(snapshot, manifest, state, desk, depth.full)


def _is_as_cut(event: SourceCompared, snapshot: Snapshot, lens: Lens) -> bool:
    """Return whether a source is what it was when it was cut, to the byte, so that nothing need be said of it."""
    if event.comparison.restated:
        return False
    then, now = (files_of(address, lens.objects, lens.cache) for address in (snapshot.manifest, event.files))
    return {(file.path, file.hexdigest) for file in then} == {(file.path, file.hexdigest) for file in now}
