"""Take a cut of a series and record it in the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pyarrow
from pydantic import ValidationError

from snapline.lineage import query, take
from snapline.lineage.cut import Bucket, Cut, parse_instant
from snapline.lineage.errors import ConflictError, DefinitionError
from snapline.lineage.events import LineageEvent, SnapshotTaken, SourceCompared
from snapline.lineage.ledger import Ledger
from snapline.lineage.manifest import decode_manifest
from snapline.lineage.objects import ObjectStore
from snapline.lineage.snapshot import Comparison, Series, Snapshot
from snapline.lineage.state import State


@dataclass(frozen=True, slots=True)
class SeriesOptions:
    """What a person said of the series; None where nothing was said."""

    source: str | None = None
    time: str | None = None
    known: str | None = None
    key: str | None = None
    bucket: str | None = None


@dataclass(frozen=True, slots=True)
class CutOptions:
    """What a person said of the cut, as ISO text; None where nothing was said."""

    since: str | None = None
    until: str | None = None
    as_of: str | None = None


def take_and_record(
    name: str, series: SeriesOptions, cut: CutOptions, ledger: Ledger, objects: ObjectStore, now: datetime
) -> Snapshot:
    """Read the source once, record the snapshot, and return it.

    Raises:
        DefinitionError: An option is missing, malformed, or differs from what the series was declared with.
        ConflictError: The source changed while it was read, or the series was first taken otherwise meanwhile.
    """
    declared = declare(name, series, ledger.state())
    taken = take.take(declared, resolve_cut(declared, cut, ledger.state(), now), objects, now)

    def decide(state: State) -> list[LineageEvent]:
        if declare(name, series, state) != declared:
            raise ConflictError(
                f"somebody declared the series {name!r} otherwise meanwhile", hint="Look at it and run this again."
            )
        confirmed = _confirmations(taken, state, objects, now)
        if state.series.get(name, ())[-1:] == (taken.id,):
            return confirmed
        # A known cut keeps the manifest of its first take, or taking it again would hide what became late since.
        return [*confirmed, SnapshotTaken(at=now, snapshot=state.snapshots.get(taken.id, taken))]

    return ledger.commit(decide).snapshots[taken.id]


def _confirmations(taken: Snapshot, state: State, objects: ObjectStore, now: datetime) -> list[LineageEvent]:
    """Return what a take says of earlier snapshots of the same window whose members it found unchanged.

    The take read every row, so it is a comparison as good as any: models made from those snapshots need no other.
    """
    read = decode_manifest(objects.read(taken.manifest))
    events: list[LineageEvent] = []
    for identifier in state.series.get(taken.series.name, ()):
        earlier = state.snapshots[identifier]
        same_window = (earlier.cut.since, earlier.cut.until) == (taken.cut.since, taken.cut.until)
        if not same_window or earlier.digest != taken.digest:
            continue
        then = decode_manifest(objects.read(earlier.manifest))
        if then.bytes_read != read.bytes_read:
            late = take.arrived_since(then.left_out, read.left_out)
            comparison = Comparison(late=late, delta_rows=sum(change.rows_now for change in late))
            event = SourceCompared(at=now, snapshot=identifier, files=taken.manifest, comparison=comparison)
            known = state.comparisons.get(identifier)
            events += [] if known and known.model_copy(update={"at": now}) == event else [event]
    return events


def select(sql: str, state: State, objects: ObjectStore) -> pyarrow.Table:
    """Return what SQL selects from the newest snapshots, each a table by its name, its rows verified as they are read.

    Raises:
        DefinitionError: The SQL is wrong, or names no snapshot.
        ConflictError: A source no longer holds the rows of its snapshot.
    """
    named = query.tables_named(sql) & set(state.series)
    if not named:
        known = ", ".join(sorted(state.series)) or "none yet"
        raise DefinitionError(
            f"the query names no snapshot; there are: {known}", hint="SELECT ... FROM a snapshot's name."
        )
    tables = {}
    for name in named:
        snapshot = state.snapshot(name)
        manifest = decode_manifest(objects.read(snapshot.manifest))
        tables[name] = take.rows(snapshot, manifest, objects.algorithm)
    return query.run_view(sql, tables, [])


def declare(name: str, options: SeriesOptions, state: State) -> Series:
    """Return the series of a name: what its first take declared, or a new one from the options.

    Raises:
        DefinitionError: A needed option is missing, or one differs from the declared series.
    """
    ids = state.series.get(name)
    if ids:
        return _same(state.snapshots[ids[-1]].series, options)
    missing = [f"--{field}" for field in ("source", "time", "key") if getattr(options, field) is None]
    if missing:
        raise DefinitionError(
            f"the first take of {name!r} needs {', '.join(missing)}", hint="Later takes will remember them."
        )
    try:
        return Series(
            name=name,
            source=options.source or "",
            time=options.time or "",
            known=options.known,
            key=options.key or "",
            bucket=Bucket(options.bucket or Bucket.DAY),
        )
    except (ValidationError, ValueError) as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise DefinitionError(
            f"snapshot {name!r}: {problem}",
            hint="A name is letters, digits, '.', '_' and '-'; buckets are hour, day, week, month or year.",
        ) from error


def _same(declared: Series, options: SeriesOptions) -> Series:
    for field in ("source", "time", "known", "key", "bucket"):
        said, fixed = getattr(options, field), getattr(declared, field)
        if said is not None and said != fixed:
            raise DefinitionError(
                f"--{field}: the series {declared.name!r} was declared with {fixed}, not {said}",
                hint="A series keeps its source, columns and bucket; take another name for another series.",
            )
    return declared


def resolve_cut(series: Series, options: CutOptions, state: State, now: datetime) -> Cut:
    """Return the cut that options mean; what is left out is the newest snapshot's, and as-of is now.

    Raises:
        DefinitionError: The window is missing, malformed or empty, or as-of is given without a known column.
    """
    ids = state.series.get(series.name)
    last = state.snapshots[ids[-1]].cut if ids else None
    since = parse_instant(options.since) if options.since else last.since if last else None
    until = parse_instant(options.until) if options.until else last.until if last else None
    if since is None or until is None:
        raise DefinitionError("the first take needs --from and --until", hint="Write dates such as 2013-01-01.")
    if options.as_of and series.known is None:
        raise DefinitionError(
            f"--as-of needs a known column, and the series {series.name!r} has none",
            hint="Declare one with --known on the first take.",
        )
    if options.as_of and parse_instant(options.as_of) > now:
        raise DefinitionError(f"--as-of {options.as_of} has not come yet", hint="Give a past instant, or leave it out.")
    as_of = None if series.known is None else parse_instant(options.as_of) if options.as_of else now
    try:
        return Cut(since=since, until=until, as_of=as_of)
    except ValidationError as error:
        raise DefinitionError(
            error.errors()[0]["msg"].removeprefix("Value error, "),
            hint="--until is the first instant after the window.",
        ) from error
