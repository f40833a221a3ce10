"""Histories made of bare events: a little fleet of models, without files, keys or a database."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from snapline.cli.wiring import SETTINGS, Home
from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.events import (
    Attested,
    LineageEvent,
    Linked,
    ModelRegistered,
    Promoted,
    SnapshotTaken,
    ViewDefined,
)
from snapline.lineage.ledger import Record
from snapline.lineage.model import EdgeKind, ModelVersion, Parent, Use, UseKind, VersionKey, Weights
from snapline.lineage.signing import SigningKey
from snapline.lineage.snapshot import Commit, Series, Snapshot
from snapline.lineage.view import View, ViewDefinition

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
JANUARY = ("2013-01-01", "2013-02-01")


def digest(text: str, what: str = "thing-v1") -> str:
    return f"sha256-{what}:{hashlib.sha256(text.encode()).hexdigest()}"


def key(text: str) -> VersionKey:
    """`name/3`, or `name` for its first version."""
    name, _, number = text.partition("/")
    return VersionKey(name=name, version=int(number or 1))


def snapshot(
    name: str = "trips",
    source: str = "/data/trips.parquet",
    window: tuple[str, str] = JANUARY,
    bucket: Bucket = Bucket.DAY,
    manifest: str | None = None,
) -> Snapshot:
    since, until = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in window)
    return Snapshot(
        series=Series(name=name, source=source, time="t", known=None, key="k", bucket=bucket),
        cut=Cut(since=since, until=until),
        digest=digest(f"{name}{window}", "rows-v2"),
        rows=9,
        buckets=3,
        manifest=manifest or digest(f"manifest of {name}{window}", "object-v1"),
        taken_at=START,
        commit=Commit(id="1"),
        membership=digest("membership", "object-v1"),
    )


def view(name: str = "delays", max_age: str | None = None, seed: int = 7) -> View:
    refresh = {} if max_age is None else {"max_age": max_age}
    text = {"apiVersion": "snapline/v1", "kind": "View", "name": name, "inputs": {"trips": "trips"}}
    trainer = {"argv": ["python"], "code": [], "seed": seed}
    definition = text | {"query": "SELECT * FROM trips", "trainer": trainer, "refresh": refresh}
    return View(definition=ViewDefinition.model_validate(definition), code=(), environment=None)


def defined(one: View, at: datetime = START) -> ViewDefined:
    return ViewDefined(at=at, view=one)


def taken(cut: Snapshot, at: datetime = START) -> SnapshotTaken:
    return SnapshotTaken(at=at, snapshot=cut)


def parents(kind: EdgeKind, names: Iterable[str]) -> tuple[Parent, ...]:
    return tuple(Parent(kind=kind, model=key(name)) for name in names)


def registered(
    name: str, *tuned_from: str, cut: Snapshot | None = None, at: datetime = START, made_by: View | None = None
) -> ModelRegistered:
    made_by = made_by or view()
    return ModelRegistered(
        at=at,
        model=ModelVersion(
            key=key(name),
            weights=Weights(
                digest=digest(name, "weights-v1"), path=f"/weights/{name}", manifest=digest(name), size_bytes=1
            ),
            view_name=made_by.definition.name if cut else None,
            view=made_by.digest if cut else None,
            snapshots=(cut.id,) if cut else (),
            parents=parents(EdgeKind.FINE_TUNED_FROM, tuned_from),
        ),
    )


def linked(name: str, kind: UseKind | EdgeKind, *to: str | Snapshot, at: datetime = START + DAY) -> Linked:
    uses = tuple(Use(kind=UseKind(kind), snapshot=one.id) for one in to if isinstance(one, Snapshot))
    models = [one for one in to if isinstance(one, str)]
    return Linked(at=at, model=key(name), uses=uses, parents=parents(EdgeKind(kind), models) if models else ())


def promoted(name: str, alias: str, target: str = "production", at: datetime = START + DAY) -> Promoted:
    return Promoted(at=at, model=key(name), alias=alias, target=target, envelope=digest("envelope"))


def attested(name: str, envelope: str = "envelope", at: datetime = START + DAY) -> Attested:
    return Attested(at=at, model=key(name), predicate_type="urn:example", envelope=digest(envelope, "object-v1"))


def records(events: Sequence[LineageEvent]) -> tuple[Record, ...]:
    return tuple(Record(seq, digest(str(seq), "ledger-v1"), event) for seq, event in enumerate(events, start=1))


def home_of(root: Path, events: Sequence[LineageEvent]) -> Path:
    """Make a home on disk in which just these events happened, at the instants they say."""
    (root / "keys" / "trusted").mkdir(parents=True)
    signing = SigningKey.create(root / "keys" / "signing.key")
    signing.publish(root / "keys" / "trusted")
    (root / SETTINGS).write_text(json.dumps({"ledger": "sqlite:///{home}/ledger.db", "algorithm": "blake3"}))
    Home(root).ledger.commit(lambda _state: events)
    return root


def fleet() -> list[LineageEvent]:
    """A base model, two made from it on one cut, one merged from both, its adapter, and one that stands apart."""
    cut, held_out = snapshot(), snapshot("held-out", "/data/held-out.parquet", ("2013-02-01", "2013-03-01"))
    return [
        taken(cut),
        taken(held_out, START + DAY),
        defined(view(), START + DAY),
        registered("base", at=START + DAY),
        registered("left", "base", cut=cut, at=START + 2 * DAY),
        registered("right", "base", cut=cut, at=START + 3 * DAY),
        registered("apart", at=START + 3 * DAY),
        registered("merged", at=START + 4 * DAY),
        linked("merged", EdgeKind.MERGED_FROM, "left", "right", at=START + 5 * DAY),
        linked("merged", UseKind.EVALUATED_ON, held_out, at=START + 5 * DAY),
        registered("adapter", at=START + 6 * DAY),
        linked("adapter", EdgeKind.ADAPTER_OF, "merged", at=START + 6 * DAY),
        promoted("merged", "champion", at=START + 7 * DAY),
        attested("merged", at=START + 7 * DAY),
    ]
