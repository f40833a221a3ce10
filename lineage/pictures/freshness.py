"""How fresh each model was over time, by what the ledger said at each instant.

A model is its newest version. Between two entries nothing new is known, and still a cut ages: a stretch ends where an
entry says something about the version, and where its age passes what the policy allows. What only looking at the
sources now would tell is no part of this; that is `status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from snapline.lineage.erasure.affected import pending
from snapline.lineage.events import LineageEvent
from snapline.lineage.invalidation import Cause, Change, ModelState, worst_state
from snapline.lineage.ledger import Record
from snapline.lineage.model import ModelVersion, VersionKey
from snapline.lineage.staleness import SourceSeen, causes_of
from snapline.lineage.state import State, apply
from snapline.lineage.view import RefreshPolicy


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which nothing new was known of a model.

    Attributes:
        oldest: Where the window of the version's oldest cut ends, so that its age at an instant is the difference; None
            for a version without a cut.
        retired: Whether the version was retired by then.
    """

    since: datetime
    until: datetime
    version: VersionKey
    state: ModelState
    oldest: datetime | None
    retired: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to a model: the kind of event, whether it is bad news, and a few words."""

    at: datetime
    kind: str
    bad: bool
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """A model's stretches, without gaps from its first version to the end, and what happened to it.

    Attributes:
        max_age: What the policy in force at the end allows.
    """

    model: str
    stretches: tuple[Stretch, ...]
    marks: tuple[Mark, ...]
    max_age: timedelta | None


def timelines(records: Sequence[Record], now: datetime) -> tuple[Timeline, ...]:
    """Return the timeline of every model, by name, up to an instant."""
    state = State()
    stretches: dict[str, list[Stretch]] = {}
    marks: dict[str, list[Mark]] = {}
    known: dict[str, tuple[datetime, tuple[object, ...]]] = {}
    before: dict[str, State] = {}
    latest = min((record.event.at for record in records), default=now)
    for record in records:
        # Clocks disagree; an entry counts as no earlier than those before it.
        latest = max(latest, record.event.at)
        state = apply(state, record.event)
        for name in _concerned(record.event, state):
            basis = _basis(state.models[name][-1], state)
            if name in known and known[name][1] == basis:
                continue
            if name in known:
                stretches[name] += _stretches(before[name], name, known[name][0], latest)
            stretches.setdefault(name, [])
            known[name], before[name] = (latest, basis), state
        for name, mark in _marks(record.event, latest, state):
            marks.setdefault(name, []).append(mark)
    for name, (since, _) in known.items():
        stretches[name] += _stretches(before[name], name, since, max(now, since))
    return tuple(
        Timeline(
            name,
            _joined(stretches[name]),
            tuple(marks.get(name, ())),
            _policy(state.models[name][-1], state).max_age,
        )
        for name in sorted(stretches)
    )


def state_then(model: ModelVersion, state: State, now: datetime) -> ModelState:
    """Return what a version was at an instant, by what the ledger said."""
    seen = [
        SourceSeen(state.snapshots[identifier], compared.comparison.lag, compared.comparison)
        if (compared := state.comparisons.get(identifier))
        else SourceSeen(state.snapshots[identifier])
        for identifier in model.snapshots
    ]
    policy = _policy(model, state)
    causes = causes_of(str(model.key), seen, policy, now)
    view = state.views.get(model.view_name or "")
    if any(check.leaked for check in state.leakage.get(model.key, ())):
        causes.append(Cause(Change.LEAKED, str(model.key), ""))
    if pending(state, model.key):
        causes.append(Cause(Change.ERASURE_PENDING, str(model.key), ""))
    if view is not None and view.digest != model.view:
        causes.append(Cause(Change.VIEW_CHANGED, str(model.key), ""))
    return worst_state(tuple(causes), policy)


def _concerned(event: LineageEvent, state: State) -> Iterable[str]:
    """Return the models whose state an event may have changed, by name; `state` is the one after it."""
    match event.kind:
        case "model-registered":
            return (event.model.key.name,)
        case "linked" | "leakage-checked" | "retired":
            # A link to what must be erased reaches whatever was made from the version it was added to.
            return state.models if event.kind == "linked" and state.erasures else (event.model.name,)
        case "source-compared":
            return [name for name, versions in state.models.items() if event.snapshot in versions[-1].snapshots]
        case "view-defined":
            view = event.view.definition.name
            return [name for name, versions in state.models.items() if versions[-1].view_name == view]
        case "erased" | "erasure-closed":
            return state.models
    return ()


def _policy(model: ModelVersion, state: State) -> RefreshPolicy:
    view = state.views.get(model.view_name) if model.view_name else None
    return view.definition.refresh if view else RefreshPolicy()


def _basis(model: ModelVersion, state: State) -> tuple[object, ...]:
    """Return all that a version's state depends on, but for the time."""
    return (
        model,
        tuple(state.comparisons.get(identifier) for identifier in model.snapshots),
        state.views.get(model.view_name or ""),
        state.leakage.get(model.key),
        state.retired.get(model.key),
        state.erasures,
        state.closed,
    )


def _stretches(state: State, name: str, since: datetime, until: datetime) -> Iterable[Stretch]:
    """Return what a model's newest version was from one instant to another, while the ledger said nothing new."""
    model = state.models[name][-1]
    policy = _policy(model, state)
    ends = [state.snapshots[identifier].cut.until for identifier in model.snapshots]
    aged = sorted({end + policy.max_age for end in ends}) if policy.max_age is not None else []
    # An age that equals the limit is allowed still, so that the next stretch begins just after.
    turns = [since, *(turn + timedelta(microseconds=1) for turn in aged if since <= turn < until), until]
    for start, end in pairwise(turns):
        retired = model.key in state.retired
        yield Stretch(start, end, model.key, state_then(model, state, start), min(ends, default=None), retired)


def _joined(stretches: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """Return stretches with those that say the same as the one before made one with it."""
    joined: list[Stretch] = []
    for one in [stretch for stretch in stretches if stretch.since < stretch.until] or stretches[-1:]:
        last = joined[-1] if joined else None
        if last is not None and (last.version, last.state, last.retired) == (one.version, one.state, one.retired):
            joined[-1] = Stretch(last.since, one.until, one.version, one.state, one.oldest, one.retired)
        else:
            joined.append(one)
    return tuple(joined)


def _marks(event: LineageEvent, at: datetime, state: State) -> Iterable[tuple[str, Mark]]:
    """Return what an event says of each model, by name; `state` is the one after it."""
    match event.kind:
        case "model-registered":
            yield event.model.key.name, Mark(at, event.kind, False, f"{event.model.key} registered")
        case "promoted":
            back = ", rolled back" if event.rollback else ""
            yield event.model.name, Mark(at, event.kind, False, f"{event.model} holds {event.alias}{back}")
        case "attested":
            yield event.model.name, Mark(at, event.kind, False, f"{event.model} got a signed statement")
        case "leakage-checked":
            said = "leaks" if event.leaked else "leaks nothing"
            yield event.model.name, Mark(at, event.kind, event.leaked, f"{event.model} {said}")
        case "retired":
            yield event.model.name, Mark(at, event.kind, True, f"{event.model} retired")
        case _:
            yield from _marks_of_inputs(event, at, state)


def _marks_of_inputs(event: LineageEvent, at: datetime, state: State) -> Iterable[tuple[str, Mark]]:
    """Return what an event about snapshots or views says of the models whose newest version was made from them."""
    match event.kind:
        case "view-defined":
            for name in _concerned(event, state):
                yield name, Mark(at, event.kind, False, f"view {event.view.definition.name} defined")
        case "source-compared":
            restated, delta = event.comparison.restated, event.comparison.delta_rows
            said = f"{delta} rows differ" if restated else "cut unchanged"
            for name in _concerned(event, state):
                yield name, Mark(at, event.kind, restated, f"compared with its source: {said}")
        case "erased":
            for name, versions in state.models.items():
                if set(event.snapshots) & set(versions[-1].touched):
                    yield name, Mark(at, event.kind, True, f"erasure {event.erasure[:12]} asked for")
