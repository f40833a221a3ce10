"""Materialize a view: cut its inputs, run its trainer on their rows, and register what it wrote."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import pyarrow.parquet

from snapline.lineage import query
from snapline.lineage.cut import bucket_start
from snapline.lineage.errors import DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.events import Recorded
from snapline.lineage.ledger import Ledger
from snapline.lineage.model import ModelVersion, parse_reference
from snapline.lineage.objects import ObjectStore
from snapline.lineage.register import Origin, Registration, measure, register
from snapline.lineage.series import CutOptions, Desk, SeriesOptions, rows_of, take_and_record
from snapline.lineage.snapshot import Snapshot
from snapline.lineage.stat_cache import StatCache
from snapline.lineage.state import State
from snapline.lineage.trainer import adopt_output, run_trainer
from snapline.lineage.view import View
from snapline.lineage.weights import check_weights, decode_manifest


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where and with what trainers run.

    Attributes:
        root: The home's folder; work and weights are kept under it.
        python: The interpreter that `python` in a trainer's argv means.
        environment: What the trainer inherits, before Snapline's own variables.
        on_output: Receives each line the trainer prints.
        on_progress: Receives (what, done, total).
    """

    root: Path
    python: str
    environment: Mapping[str, str]
    on_output: Callable[[str], None]
    on_progress: Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Tools:
    """What materializing reads and keeps with, and the instant that counts as now."""

    objects: ObjectStore
    cache: StatCache | None
    now: datetime


def materialize(
    name: str, cut: CutOptions, contract: Recorded | None, ledger: Ledger, workshop: Workshop, tools: Tools
) -> ModelVersion:
    """Take the view's snapshots, run its trainer, and return the registered version.

    Raises:
        NotFoundError: No such view, or an input is gone.
        IntegrityError: The base model's weights are not those registered.
        TrainerError: The trainer failed or wrote no weights; nothing is registered.
    """
    state = ledger.state()
    view = state.views.get(name)
    if view is None:
        known = ", ".join(sorted(state.views)) or "none yet"
        raise NotFoundError(f"no view {name!r}; there are: {known}", hint="Define it: snapline view define.")
    base = _base(view, state)
    base_folder = _verified(base, tools) if base else None
    desk = Desk(tools.objects, tools.now, workshop.on_progress)
    taken = {
        series: take_and_record(series, SeriesOptions(), _slid(cut, view, series, state, tools.now), ledger, desk)
        for series in dict.fromkeys(view.definition.inputs.values())
    }
    snapshots = {table: taken[series] for table, series in view.definition.inputs.items()}
    place = workshop.root / "work"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=f"{name}-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        data = _training_data(view, snapshots, work, ledger.state(), desk)
        started = time.monotonic()
        output = run_trainer(view, tools.objects, data, base_folder, work, workshop)
        seconds = max(1, round(time.monotonic() - started))
        measured = measure(output, tools.objects, None, False, workshop.on_progress)
        kept = adopt_output(output, workshop.root / "weights", measured.digest)
    weights = measured.model_copy(update={"path": str(kept)})
    # What really ran, whatever the view's name and its base model's mean by now.
    origin = Origin(
        view=name,
        snapshots=tuple(f"{series}@{snapshot.id}" for series, snapshot in taken.items()),
        parents=(str(base.key),) if base else (),
        view_digest=view.digest,
    )
    return register(Registration(name, weights, origin, contract, seconds), ledger, tools.now)


def _base(view: View, state: State) -> ModelVersion | None:
    reference = view.definition.base_model
    return state.resolve(parse_reference(reference)) if reference is not None else None


def _verified(base: ModelVersion, tools: Tools) -> Path:
    """Return the folder of a base model's weights, once they are those registered."""
    folder = Path(base.weights.path)
    manifest = decode_manifest(tools.objects.read(base.weights.manifest))
    differences = check_weights(manifest, folder, tools.objects.algorithm, cache=tools.cache, full=False)
    if differences:
        raise IntegrityError(
            f"the base model {base.key} holds other bytes than registered: {'; '.join(differences[:3])}",
            hint=f"Restore {folder}.",
        )
    return folder


def _slid(cut: CutOptions, view: View, series: str, state: State, now: datetime) -> CutOptions:
    """Return the cut of a view with a sliding window: the last whole buckets before now, unless one was named."""
    slide, ids = view.definition.refresh.slide, state.series.get(series)
    if slide is None or not ids or cut.since or cut.until:
        return cut
    until = bucket_start(now, state.snapshots[ids[-1]].series.bucket)
    return replace(cut, since=(until - slide).isoformat(), until=until.isoformat())


def _training_data(view: View, snapshots: Mapping[str, Snapshot], work: Path, state: State, desk: Desk) -> Path:
    tables = {table: rows_of(snapshot, state, desk) for table, snapshot in snapshots.items()}
    keys = [snapshot.series.key for snapshot in snapshots.values()]
    rows = query.run_view(view.definition.query, tables, list(dict.fromkeys(keys)))
    if rows.num_rows == 0:
        raise DefinitionError(
            f"the query of view {view.definition.name!r} selects no row of its snapshots",
            hint="Widen the window or the query.",
        )
    path = work / "training_data.parquet"
    pyarrow.parquet.write_table(rows, path)
    return path
