"""Audit a model version for leakage: find its rows, hold them against rules, and make the event to record."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.events import LeakageChecked, LineageEvent
from snapline.lineage.leakage.check import LeakageReport, check
from snapline.lineage.leakage.examples import Inputs
from snapline.lineage.leakage.rules import Chosen, Rules
from snapline.lineage.model import ModelVersion, UseKind
from snapline.lineage.series import Desk, rows_of
from snapline.lineage.snapshot import Snapshot
from snapline.lineage.state import State


@dataclass(frozen=True, slots=True)
class Subjects:
    """The snapshots whose rows are held against the rules, and what should be said about the choice."""

    train: tuple[Snapshot, ...]
    evaluation: tuple[Snapshot, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found, of which snapshots, and the event that records it."""

    subjects: Subjects
    report: LeakageReport
    event: LeakageChecked


def choose(rules: Rules, model: ModelVersion, state: State) -> Subjects:
    """Return the snapshots the rules name, or else those the model was trained and evaluated on.

    Raises:
        DefinitionError: Neither names training rows.
        NotFoundError: The rules name a snapshot that is not there.
    """
    document = rules.document
    used = {kind: [use.snapshot for use in model.uses if use.kind is kind] for kind in UseKind}
    trained, evaluated = (
        [state.snapshots[identifier] for identifier in dict.fromkeys(identifiers)]
        for identifiers in ((*model.snapshots, *used[UseKind.TRAINED_ON]), used[UseKind.EVALUATED_ON])
    )
    remarks: list[str] = []

    def chosen(field: str, own: Sequence[Snapshot], verb: str) -> tuple[Snapshot, ...]:
        named: Chosen | None = getattr(document, field)
        if named is None:
            return tuple(own)
        of_series = tuple(snapshot for snapshot in own if snapshot.series.name == named.snapshot)
        if of_series:
            return of_series
        try:
            found = state.snapshot(named.snapshot)
        except NotFoundError as error:
            place = rules.place(field, "snapshot")
            raise NotFoundError(f"{place}: {error.message}", hint=error.hint) from error
        if found not in own:
            remarks.append(f"nothing records that {model.key} was {verb} on {label(found)}")
        return (found,)

    train = chosen("train", trained, "trained")
    if not train:
        raise DefinitionError(
            f"{rules.name}: {model.key} records no snapshot it was trained on",
            hint="Name one in the rules: train: {snapshot: NAME}.",
        )
    return Subjects(train, chosen("evaluation", evaluated, "evaluated"), tuple(remarks))


def label(snapshot: Snapshot) -> str:
    """Return what messages call a snapshot."""
    return f"{snapshot.series.name}@{snapshot.id[:12]}"


def audit(model: ModelVersion, rules: Rules, state: State, desk: Desk) -> Audit:
    """Hold a version's rows against rules, and store the rules and the offending rows; nothing is recorded yet.

    The rows are those of the snapshots, before the query of any view.

    Raises:
        DefinitionError: The rules do not fit the rows, or there are no training rows to name.
        NotFoundError: A snapshot or its source is not there.
        ConflictError: A source no longer holds a snapshot's rows.
    """
    subjects = choose(rules, model, state)
    rows: dict[str, pa.Table] = {}
    for snapshot in (*subjects.train, *subjects.evaluation):
        if snapshot.id not in rows:
            rows[snapshot.id] = rows_of(snapshot, state, desk)
    train, evaluation = (
        [_inputs(snapshot, rows[snapshot.id]) for snapshot in side] for side in (subjects.train, subjects.evaluation)
    )
    report = check(rules, train, evaluation)
    event = LeakageChecked(
        at=desk.now,
        model=model.key,
        name=rules.document.name,
        rules=desk.objects.put(rules.data),
        rows=desk.objects.put(_parquet(report.rows)),
        findings=report.findings,
        notes=(*report.unchecked, *subjects.remarks, *report.remarks),
    )
    return Audit(subjects, report, event)


def unrecorded_check(event: LeakageChecked, state: State) -> list[LineageEvent]:
    """Return the event unless the newest check under those rules already says the same."""
    known = (check.model_copy(update={"at": event.at}) for check in state.leakage.get(event.model, ()))
    return [] if event in known else [event]


def _inputs(snapshot: Snapshot, table: pa.Table) -> Inputs:
    return Inputs(
        snapshot=label(snapshot),
        table=table,
        key=snapshot.series.key,
        time=snapshot.series.time,
        until=snapshot.cut.until,
        read_as_of=snapshot.cut.as_of or snapshot.commit.at,
    )


def _parquet(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    return stream.getvalue()
