"""Take a cut of a series and record it in the ledger."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import pyarrow
from pydantic import ValidationError

from snapline.lineage import query
from snapline.lineage.comparing import compare
from snapline.lineage.cut import Bucket, Cut, parse_instant
from snapline.lineage.erasure.affected import erasures_in, erasures_of
from snapline.lineage.erasure.tombstones import tombstones_of
from snapline.lineage.errors import ConflictError, DefinitionError, RequirementError
from snapline.lineage.events import LineageEvent, SnapshotTaken, SourceCompared
from snapline.lineage.files import SourceFile
from snapline.lineage.ledger import Ledger
from snapline.lineage.manifest import decode_manifest, encode_manifest
from snapline.lineage.objects import ObjectStore
from snapline.lineage.reading import OnProgress
from snapline.lineage.snapshot import Manifest, Series, Snapshot
from snapline.lineage.state import State
from snapline.lineage.take import Archive, take
from snapline.lineage.take import rows as take_rows


@dataclass(frozen=True, slots=True)
class SeriesOptions:
    """What a person said of the series; None where nothing was said."""

    source: str | None = None
    time: str | None = None
    known: str | None = None
    known_until: str | None = None
    key: str | None = None
    bucket: str | None = None


@dataclass(frozen=True, slots=True)
class CutOptions:
    """What a person said of the cut, as ISO text; None where nothing was said.

    `version` names a commit of the source in the source's own words.
    """

    since: str | None = None
    until: str | None = None
    as_of: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Desk:
    """What reading sources needs besides the ledger's state: where objects go, and the instant that counts as now.

    `on_progress` receives (what, files read, files).
    """

    objects: ObjectStore
    now: datetime
    on_progress: OnProgress | None = None

    def archive(self, state: State, series: str, erasures: Collection[str] | None = None) -> Archive:
        """Return what reading a series needs, with the tombstones of all its erasures or of those named."""
        tombstones = tombstones_of(series, state, self.objects, erasures)
        return Archive(self.objects, state.salt, tombstones, self.on_progress)


def take_and_record(name: str, series: SeriesOptions, cut: CutOptions, ledger: Ledger, desk: Desk) -> Snapshot:
    """Read the source once, record the snapshot, and return it.

    Raises:
        DefinitionError: An option is missing, malformed, or differs from what the series was declared with.
        ConflictError: The source changed while it was read, or the series was first taken otherwise meanwhile.
    """
    state = ledger.state()
    declared = declare(name, series, state)
    resolved = resolve_cut(declared, cut, state, desk.now)
    archive = desk.archive(state, name)
    taken = take(declared, resolved, archive, desk.now, cut.version, _known_files(name, state, desk))
    read = decode_manifest(desk.objects.read(taken.manifest))

    def decide(state: State) -> list[LineageEvent]:
        if declare(name, series, state) != declared:
            raise ConflictError(
                f"somebody declared the series {name!r} otherwise meanwhile", hint="Look at it and run this again."
            )
        if sorted(request.erasure for request in erasures_of(name, state)) != sorted(read.erasures):
            raise ConflictError(
                f"somebody asked for rows of {name!r} to be erased while it was read", hint="Run this again."
            )
        confirmed = _confirmations(taken, read, state, desk)
        kept = _first_of(taken, read, state, desk)
        newest = state.series.get(name, ())[-1:]
        return (
            confirmed
            if newest == (taken.id,) and kept != taken
            else [*confirmed, SnapshotTaken(at=desk.now, snapshot=kept)]
        )

    return ledger.commit(decide).snapshots[taken.id]


def _known_files(name: str, state: State, desk: Desk) -> tuple[SourceFile, ...]:
    ids = state.series.get(name)
    return decode_manifest(desk.objects.read(state.snapshots[ids[-1]].manifest)).files if ids else ()


def _first_of(taken: Snapshot, read: Manifest, state: State, desk: Desk) -> Snapshot:
    """Return the snapshot of this id that is recorded, or the one just taken.

    A known cut keeps the manifest of its first take, or taking it again would hide what became late since; unless rows
    were erased since, which reading it back must leave out.
    """
    known = state.snapshots.get(taken.id)
    if known is None or decode_manifest(desk.objects.read(known.manifest)).erasures != read.erasures:
        return taken
    return known


def _confirmations(taken: Snapshot, read: Manifest, state: State, desk: Desk) -> list[LineageEvent]:
    """Return what a take says of earlier snapshots of the same window whose members it found unchanged.

    Their files moved, or nothing need be said; comparing reads what lies in the moved ones. Models made from those
    snapshots then need no other comparison.
    """
    events: list[LineageEvent] = []
    for identifier in state.series.get(taken.series.name, ()):
        earlier = state.snapshots[identifier]
        same_window = (earlier.cut.since, earlier.cut.until) == (taken.cut.since, taken.cut.until)
        if not same_window or earlier.digest != taken.digest:
            continue
        then = decode_manifest(desk.objects.read(earlier.manifest))
        if then.bytes_read != read.bytes_read:
            event = compared(earlier, then, state, desk)
            known = state.comparisons.get(identifier)
            events += [] if known and known.model_copy(update={"at": desk.now}) == event else [event]
    return events


def compared(snapshot: Snapshot, manifest: Manifest, state: State, desk: Desk, full: bool = False) -> SourceCompared:
    """Hold a snapshot against its source and return that as an event; the files that were read are stored."""
    archive = desk.archive(state, snapshot.series.name, manifest.erasures)
    found = compare(snapshot, manifest, archive, full)
    read = Manifest(columns=(), buckets=(), files=found.files)
    address = desk.objects.put(encode_manifest(read))
    return SourceCompared(at=desk.now, snapshot=snapshot.id, files=address, comparison=found.comparison)


def rows_of(snapshot: Snapshot, state: State, desk: Desk) -> pyarrow.Table:
    """Return a snapshot's rows, verified against its digest; see `take.rows`."""
    manifest = decode_manifest(desk.objects.read(snapshot.manifest))
    return take_rows(snapshot, manifest, desk.archive(state, snapshot.series.name, manifest.erasures))


def select(sql: str, state: State, desk: Desk) -> pyarrow.Table:
    """Return what SQL selects from the newest snapshots, each a table by its name, its rows verified as they are read.

    Raises:
        DefinitionError: The SQL is wrong, or names no snapshot.
        ConflictError: A source no longer holds the rows of its snapshot.
        RequirementError: A snapshot has rows that were to be erased.
    """
    named = query.tables_named(sql) & set(state.series)
    if not named:
        known = ", ".join(sorted(state.series)) or "none yet"
        raise DefinitionError(
            f"the query names no snapshot; there are: {known}", hint="SELECT ... FROM a snapshot's name."
        )
    chosen = {name: state.snapshot(name) for name in named}
    for name, snapshot in chosen.items():
        if erasures_in(snapshot.id, state):
            raise RequirementError(
                f"the newest snapshot of {name!r} has rows that were to be erased",
                hint=f"Take it anew, without them: snapline snapshot take {name}.",
            )
    return query.run_view(sql, {name: rows_of(snapshot, state, desk) for name, snapshot in chosen.items()}, [])


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
    if options.known_until and not options.known:
        raise DefinitionError(
            "--known-until needs --known: when a row became known", hint="Name both columns, or neither."
        )
    try:
        return Series(
            name=name,
            source=options.source or "",
            time=options.time or "",
            known=options.known,
            known_until=options.known_until,
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
    for field in ("source", "time", "known", "known_until", "key", "bucket"):
        said, fixed = getattr(options, field), getattr(declared, field)
        if said is not None and said != fixed:
            raise DefinitionError(
                f"--{field.replace('_', '-')}: the series {declared.name!r} was declared with "
                f"{fixed or 'none'}, not {said}",
                hint="A series keeps its source, columns and bucket; take another name for another series.",
            )
    return declared


def resolve_cut(series: Series, options: CutOptions, state: State, now: datetime) -> Cut:
    """Return the cut that options mean; what is left out is the newest snapshot's, and as-of is now.

    Raises:
        DefinitionError: The window is missing, malformed or empty, or the as-of instant has not come yet.
    """
    ids = state.series.get(series.name)
    last = state.snapshots[ids[-1]].cut if ids else None
    since = parse_instant(options.since) if options.since else last.since if last else None
    until = parse_instant(options.until) if options.until else last.until if last else None
    if since is None or until is None:
        raise DefinitionError("the first take needs --from and --until", hint="Write dates such as 2013-01-01.")
    if options.as_of and parse_instant(options.as_of) > now:
        raise DefinitionError(f"--as-of {options.as_of} has not come yet", hint="Give a past instant, or leave it out.")
    known_now = now if series.known is not None and options.version is None else None
    as_of = parse_instant(options.as_of) if options.as_of else known_now
    try:
        return Cut(since=since, until=until, as_of=as_of)
    except ValidationError as error:
        raise DefinitionError(
            error.errors()[0]["msg"].removeprefix("Value error, "),
            hint="--until is the first instant after the window.",
        ) from error
