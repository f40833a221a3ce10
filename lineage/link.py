"""Edges between models and what they came from: read as people write them, and recorded after registration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from snapline.lineage.errors import DefinitionError
from snapline.lineage.events import LineageEvent, Linked
from snapline.lineage.ledger import Ledger
from snapline.lineage.model import EdgeKind, ModelVersion, Parent, Reference, Use, UseKind, VersionKey, parse_reference
from snapline.lineage.state import State

KINDS = (*UseKind, *EdgeKind)


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of one version: snapshots it used, and versions it came from; each once."""

    uses: tuple[Use, ...] = ()
    parents: tuple[Parent, ...] = ()


def resolve_edges(texts: Sequence[str], state: State) -> Edges:
    """Return the edges that `KIND=REFERENCE` texts name; a snapshot or a model, as the kind says.

    Raises:
        DefinitionError: A text has no `=`, its kind is none of `KINDS`, or its reference cannot be one.
        NotFoundError: There is no such snapshot or model.
    """
    uses: dict[Use, None] = {}
    parents: dict[Parent, None] = {}
    for text in texts:
        kind, equals, reference = text.partition("=")
        if not equals or not reference or kind not in KINDS:
            raise DefinitionError(
                f"expected an edge KIND=REFERENCE, found {text!r}", hint=f"KIND is one of {', '.join(KINDS)}."
            )
        if kind in list(UseKind):
            uses[Use(kind=UseKind(kind), snapshot=state.snapshot(reference).id)] = None
        else:
            parents[Parent(kind=EdgeKind(kind), model=state.resolve(parse_reference(reference)).key)] = None
    return Edges(tuple(uses), tuple(parents))


def link(reference: Reference, texts: Sequence[str], ledger: Ledger, now: datetime) -> tuple[ModelVersion, Edges]:
    """Record edges of a version; return it as it is then, and the edges it did not have before.

    Raises:
        DefinitionError: An edge is malformed, leads to the version itself or to one made from it, or contradicts the
            base model of the version's view.
        NotFoundError: The version, or what an edge leads to, is not there.
    """
    found: list[tuple[VersionKey, Edges]] = []

    def decide(state: State) -> list[LineageEvent]:
        model = state.resolve(reference)
        added = _missing(model, resolve_edges(texts, state))
        for parent in added.parents:
            _check_parent(model, parent, state)
        found.append((model.key, added))
        if not added.uses and not added.parents:
            return []
        return [Linked(at=now, model=model.key, uses=added.uses, parents=added.parents)]

    state = ledger.commit(decide)
    key, added = found[-1]
    return state.models[key.name][key.version - 1], added


def _missing(model: ModelVersion, edges: Edges) -> Edges:
    """Return the edges a version lacks; a snapshot of its view counts as trained on."""
    known = {*model.uses, *(Use(kind=UseKind.TRAINED_ON, snapshot=identifier) for identifier in model.snapshots)}
    return Edges(
        tuple(use for use in edges.uses if use not in known),
        tuple(parent for parent in edges.parents if parent not in model.parents),
    )


def _check_parent(model: ModelVersion, parent: Parent, state: State) -> None:
    if parent.model == model.key:
        raise DefinitionError(
            f"{model.key} cannot be {_words(parent.kind)} itself", hint="Name the version it really came from."
        )
    chain = _way(parent.model, model.key, state)
    if chain:
        raise DefinitionError(
            f"{model.key} cannot be {_words(parent.kind)} {parent.model}, which came from it: "
            + " from ".join(map(str, chain)),
            hint="A version cannot come from its own descendant; name another one.",
        )
    base = state.view_versions[model.view].definition.base_model if model.view else None
    if base is not None and parent.kind is EdgeKind.FINE_TUNED_FROM:
        expected = ", ".join(str(known.model) for known in model.parents if known.kind is parent.kind)
        raise DefinitionError(
            f"the view's base model is {expected}, the parent given is {parent.model}",
            hint="Define the view with the other base model and materialize it.",
        )


def _way(start: VersionKey, goal: VersionKey, state: State) -> list[VersionKey]:
    """Return a chain of parents that leads from one version up to another; empty when there is none."""
    came: dict[VersionKey, VersionKey | None] = {start: None}
    waiting = [start]
    while waiting:
        here = waiting.pop()
        if here == goal:
            chain = []
            step: VersionKey | None = here
            while step is not None:
                chain.append(step)
                step = came[step]
            return chain[::-1]
        for parent in state.models[here.name][here.version - 1].parents:
            if parent.model not in came:
                came[parent.model] = here
                waiting.append(parent.model)
    return []


def _words(kind: EdgeKind) -> str:
    return kind.value.replace("_", " ")
