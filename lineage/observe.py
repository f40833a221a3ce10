"""Look at what a model was made from, as it is now, and name every difference from what the ledger binds.

Looking never changes anything. Rows are parsed only when asked for; otherwise a source whose bytes moved is reported as
unread, unless an earlier comparison already spoke of exactly these bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from snapline.lineage import weights
from snapline.lineage.errors import DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.events import SourceCompared
from snapline.lineage.invalidation import Cause, Change
from snapline.lineage.manifest import changed_files, decode_manifest, encode_manifest, files_of
from snapline.lineage.model import ModelVersion
from snapline.lineage.objects import ObjectStore
from snapline.lineage.snapshot import Comparison, Manifest, Snapshot
from snapline.lineage.stat_cache import StatCache
from snapline.lineage.state import State
from snapline.lineage.view import RefreshPolicy


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
    """Every difference found, and the comparisons made that the ledger does not hold yet."""

    causes: tuple[Cause, ...]
    compared: tuple[SourceCompared, ...] = ()


def policy_of(model: ModelVersion, state: State) -> RefreshPolicy:
    """Return the refresh policy in force: that of the newest definition of the model's view."""
    view = state.views.get(model.view_name) if model.view_name else None
    return view.definition.refresh if view else RefreshPolicy()


def observe(model: ModelVersion, state: State, lens: Lens, depth: Depth) -> Observation:
    """Return how a model's records, weights and sources differ from what the ledger binds."""
    causes = [*_weights(model, lens, depth), *_records(model, state, lens)]
    compared: list[SourceCompared] = []
    if not model.snapshots:
        causes.append(Cause(Change.NO_CUT, str(model.key), "no cut: it was registered without a snapshot"))
    policy = policy_of(model, state)
    for identifier in model.snapshots:
        snapshot = state.snapshots[identifier]
        found, event = _source(snapshot, state, lens, depth, policy)
        causes += [*found, *_age(snapshot, policy, lens.now)]
        compared += [event] if event and not _recorded(event, state) else []
    causes += _view(model, state)
    return Observation(tuple(causes), tuple(compared))


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


def _records(model: ModelVersion, state: State, lens: Lens) -> list[Cause]:
    view = state.view_versions.get(model.view) if model.view else None
    stored = (*view.code, *([view.environment] if view.environment else [])) if view else ()
    return [
        Cause(Change.RECORD_DAMAGED, f"view {model.view_name}", problem)
        for problem in damaged(lens.objects, tuple(file.object for file in stored))
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


def _age(snapshot: Snapshot, policy: RefreshPolicy, now: datetime) -> list[Cause]:
    age = now - snapshot.cut.until
    if policy.max_age is None or age <= policy.max_age:
        return []
    message = f"its cut ends {snapshot.cut.until.isoformat()}, more than the policy's max_age of {policy.max_age} ago"
    return [Cause(Change.AGED, f"snapshot {snapshot.series.name}", message)]


def _view(model: ModelVersion, state: State) -> list[Cause]:
    newest = state.views.get(model.view_name) if model.view_name else None
    if newest is None or newest.digest == model.view:
        return []
    return [
        Cause(Change.VIEW_CHANGED, f"view {model.view_name}", "defined anew since; a materialize would use the new one")
    ]


def _source(
    snapshot: Snapshot, state: State, lens: Lens, depth: Depth, policy: RefreshPolicy
) -> tuple[list[Cause], SourceCompared | None]:
    subject = f"snapshot {snapshot.series.name}@{snapshot.id[:12]}"
    try:
        return _held_against_source(snapshot, state, lens, depth, policy)
    except NotFoundError as error:
        return [Cause(Change.SOURCE_GONE, subject, error.message)], None
    except IntegrityError as error:
        return [Cause(Change.RECORD_DAMAGED, subject, error.message)], None
    except DefinitionError as error:
        return [Cause(Change.RESTATED, subject, f"the source can no longer be cut this way: {error.message}")], None


def _held_against_source(
    snapshot: Snapshot, state: State, lens: Lens, depth: Depth, policy: RefreshPolicy
) -> tuple[list[Cause], SourceCompared | None]:
    subject = f"snapshot {snapshot.series.name}@{snapshot.id[:12]}"
    if depth.full:
        return _compare(snapshot, lens, policy, subject)
    files = files_of(snapshot.manifest, lens.objects, lens.cache)
    moved = changed_files(files, Path(snapshot.series.source), lens.objects.algorithm)
    if not moved:
        return [], None
    known = _earlier_comparison(snapshot, state, lens)
    if known is not None:
        return _differences(snapshot, known, policy, subject), None
    if depth.rows:
        return _compare(snapshot, lens, policy, subject)
    message = "its bytes changed since the cut and its rows were not compared since; run snapline verify"
    return [Cause(Change.SOURCE_UNREAD, subject, message, moved)], None


def _earlier_comparison(snapshot: Snapshot, state: State, lens: Lens) -> Comparison | None:
    earlier = state.comparisons.get(snapshot.id)
    if earlier is None:
        return None
    files = files_of(earlier.files, lens.objects, lens.cache)
    return None if changed_files(files, Path(snapshot.series.source), lens.objects.algorithm) else earlier.comparison


def _compare(
    snapshot: Snapshot, lens: Lens, policy: RefreshPolicy, subject: str
) -> tuple[list[Cause], SourceCompared | None]:
    from snapline.lineage import take  # parses rows, which a gate never does, so it never pays for the import

    manifest = decode_manifest(lens.objects.read(snapshot.manifest))
    comparison, files = take.compare(snapshot, manifest, lens.objects.algorithm)
    read = Manifest(columns=(), buckets=(), files=files)
    if not comparison.restated and read.bytes_read == manifest.bytes_read:
        return [], None
    address = lens.objects.put(encode_manifest(read))
    event = SourceCompared(at=lens.now, snapshot=snapshot.id, files=address, comparison=comparison)
    return _differences(snapshot, comparison, policy, subject), event


def _differences(snapshot: Snapshot, comparison: Comparison, policy: RefreshPolicy, subject: str) -> list[Cause]:
    causes = []
    if comparison.restated:
        details = [
            f"{b.label}: members changed ({b.rows_then} rows then, {b.rows_now} now)" for b in comparison.changed
        ]
        details += [f"{b.label}: {b.rows_now} late rows, known after {snapshot.cut.as_of}" for b in comparison.late]
        buckets = sorted({bucket.label for bucket in (*comparison.changed, *comparison.late)})
        places = f"{len(buckets)} bucket{'s' if len(buckets) > 1 else ''}"
        message = f"rows inside the cut changed: at most {comparison.delta_rows}, in {places}"
        causes.append(Cause(Change.RESTATED, subject, message, tuple(details)))
    else:
        causes.append(Cause(Change.APPENDED_OUTSIDE, subject, "the source changed outside the cut only"))
    if policy.max_delta_rows is not None and comparison.delta_rows > policy.max_delta_rows:
        message = f"{comparison.delta_rows} rows changed; the policy allows {policy.max_delta_rows}"
        causes.append(Cause(Change.DELTA_EXCEEDED, subject, message))
    return causes
