"""Close erasures: see that nothing affected is left to settle, look at what sources still hold, and certify it."""

from __future__ import annotations

from snapline.lineage.erasure.affected import AffectedModel, Settlement, affected, open_erasures
from snapline.lineage.erasure.certificate import (
    CheckedSnapshot,
    CheckedSource,
    ErasureCertificate,
    HeldCommit,
    SettledModel,
    issue,
    read,
)
from snapline.lineage.erasure.tombstones import Tombstones, tombstones_of
from snapline.lineage.errors import ConflictError, DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.events import Erased, ErasureClosed, LineageEvent
from snapline.lineage.ledger import Ledger
from snapline.lineage.rows.hashes import RECIPE
from snapline.lineage.rows.membership import over_report
from snapline.lineage.series import Desk
from snapline.lineage.signing import SigningKey, TrustedKeys
from snapline.lineage.snapshot import Commit, Series
from snapline.lineage.sources.opening import open_source
from snapline.lineage.sources.protocol import Source
from snapline.lineage.state import State


def close_settled(ledger: Ledger, key: SigningKey, desk: Desk) -> tuple[ErasureClosed, ...]:
    """Close every open request all of whose affected versions are settled, and return what was recorded.

    Raises:
        IntegrityError: A tombstone set is not what was recorded.
    """
    closed: list[ErasureClosed] = []
    state = ledger.state()
    for erased in open_erasures(state):
        models = affected(erased, state)
        if any(model.state is Settlement.PENDING for model in models):
            continue
        envelope = issue(_certificate(erased, models, state, desk), key)
        event = ErasureClosed(at=desk.now, erasure=erased.erasure, certificate=desk.objects.put(envelope))
        closed += [event] if _record(event, erased, models, ledger) else []
    return tuple(closed)


def held_by_sources(erased: Erased, state: State, desk: Desk) -> tuple[CheckedSource, ...]:
    """Return, for each series of a request, which commits of its source still hold an erased row.

    Reads the key column of every file that a listed commit has, each file once.

    Raises:
        IntegrityError: The tombstone set is not what was recorded.
    """
    return tuple(_checked(name, erased, state, desk) for name in erased.series)


def certificate_of(closed: ErasureClosed, state: State, desk: Desk, trusted: TrustedKeys) -> ErasureCertificate:
    """Return the certificate a request was closed with.

    Raises:
        IntegrityError: It is missing, holds other bytes, no trusted key signed it, or it speaks of another request.
    """
    certificate = read(desk.objects.read(closed.certificate), trusted)
    erased = state.erasures[closed.erasure]
    if (certificate.erasure, certificate.tombstones) != (erased.erasure, erased.tombstones):
        raise IntegrityError(
            f"the certificate of erasure {erased.erasure[:12]} speaks of {certificate.erasure[:12]}",
            hint="Restore the object from a copy of this home.",
        )
    return certificate


def _record(event: ErasureClosed, erased: Erased, models: tuple[AffectedModel, ...], ledger: Ledger) -> bool:
    """Record a closing, unless it was closed or something changed since the certificate was written."""
    new: list[bool] = []

    def decide(state: State) -> list[LineageEvent]:
        new.append(event.erasure not in state.closed and affected(erased, state) == models)
        return [event] if new[-1] else []

    ledger.commit(decide)
    return new[-1]


def _certificate(erased: Erased, models: tuple[AffectedModel, ...], state: State, desk: Desk) -> ErasureCertificate:
    searched = [state.snapshots[found] for name in erased.series for found in state.series[name]]
    bound = over_report(erased.keys, sum(snapshot.rows for snapshot in searched))
    return ErasureCertificate(
        erasure=erased.erasure,
        tombstones=erased.tombstones,
        keys=erased.keys,
        absent=erased.absent,
        series=erased.series,
        snapshots=tuple(
            CheckedSnapshot(
                id=snapshot.id,
                series=snapshot.series.name,
                digest=snapshot.digest,
                rows=snapshot.rows,
                may_hold=snapshot.id in erased.snapshots,
            )
            for snapshot in searched
        ),
        models=tuple(_settled(model, state) for model in models),
        sources=held_by_sources(erased, state, desk),
        recipe=RECIPE,
        over_report=f"{bound:.2e}",
        requested_at=erased.at,
        closed_at=desk.now,
    )


def _settled(model: AffectedModel, state: State) -> SettledModel:
    return SettledModel(
        model=str(model.key),
        weights=state.models[model.key.name][model.key.version - 1].weights.digest,
        path=model.path,
        settled="retired" if model.state is Settlement.RETIRED else "retrained",
        by=str(model.by) if model.by else None,
        aliases=model.aliases,
    )


def _checked(name: str, erased: Erased, state: State, desk: Desk) -> CheckedSource:
    series = state.snapshots[state.series[name][-1]].series
    tombstones = tombstones_of(name, state, desk.objects, (erased.erasure,))
    if tombstones is None:
        return CheckedSource(series=name, source=series.source, commits=0)
    try:
        source = open_source(series.source, desk.objects.algorithm)
        commits = source.commits()
        held = _holding(source, commits, series, tombstones)
    except (NotFoundError, DefinitionError, ConflictError) as error:
        return CheckedSource(series=name, source=series.source, commits=0, problem=error.message)
    named = tuple(HeldCommit(id=commit.id, at=commit.at, newest=commit == commits[-1]) for commit in held)
    return CheckedSource(series=name, source=series.source, commits=len(commits), held=named)


def _holding(source: Source, commits: tuple[Commit, ...], series: Series, tombstones: Tombstones) -> list[Commit]:
    """Return the commits that hold an erased row; a file that commits share is read once."""
    files: dict[str, bool] = {}
    found = []
    for commit in commits:
        if series.key not in source.schema(commit).names:
            continue
        names = source.names(commit)
        for name in names:
            if name not in files:
                files[name] = _file_holds(source, commit, name, series, tombstones)
        found += [commit] if any(files[name] for name in names) else []
    return found


def _file_holds(source: Source, commit: Commit, name: str, series: Series, tombstones: Tombstones) -> bool:
    try:
        tables = source.scan(commit, name, series.time, None, [series.key])
        return any(tombstones.erased_rows(table.column(series.key)).any() for table in tables)
    except NotFoundError:
        return False  # The commit is listed, but what it lists is gone, and the rows with it.
