"""Define a view from its document and record it in the ledger."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from snapline.lineage.documents import load
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.events import LineageEvent, ViewDefined
from snapline.lineage.ledger import Ledger
from snapline.lineage.model import parse_reference
from snapline.lineage.objects import ObjectStore
from snapline.lineage.sources.opening import open_source
from snapline.lineage.state import State
from snapline.lineage.trainer import store_code
from snapline.lineage.view import View, ViewDefinition


def define_and_record(file: Path, ledger: Ledger, objects: ObjectStore, now: datetime) -> View:
    """Record the view a file defines and return it; the same definition twice records nothing new.

    Raises:
        DefinitionError: The document is malformed, or asks for what its sources cannot give.
        NotFoundError: The file, its code, an input snapshot or the base model is not there.
    """
    definition = load(file, ViewDefinition)
    view = store_code(definition, file.parent, objects)

    def decide(state: State) -> list[LineageEvent]:
        check_references(definition, state, str(file))
        newest = state.views.get(definition.name)
        same = newest is not None and newest.digest == view.digest and newest.definition == definition
        return [] if same else [ViewDefined(at=now, view=view)]

    ledger.commit(decide)
    return view


def check_references(definition: ViewDefinition, state: State, name: str) -> None:
    """Raise unless every snapshot and model a view names is known and can keep its policy."""
    if definition.base_model is not None:
        state.resolve(parse_reference(definition.base_model))
    for series in definition.inputs.values():
        if not state.series.get(series):
            known = ", ".join(sorted(state.series)) or "none yet"
            raise NotFoundError(
                f"{name}: inputs: no snapshot {series!r}; there are: {known}",
                hint="Take it first: snapline snapshot take.",
            )
    if definition.refresh.max_lag is not None:
        _refuse_sources_without_history(definition, state, name)


def _refuse_sources_without_history(definition: ViewDefinition, state: State, name: str) -> None:
    for series in dict.fromkeys(definition.inputs.values()):
        source = state.snapshots[state.series[series][-1]].series.source
        if not open_source(source, state.algorithm).travels:
            raise DefinitionError(
                f"{name}: refresh.max_lag: counts source commits, and {source} keeps none",
                hint="Use max_age or max_delta_rows.",
            )
