from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import get_args

import pytest
from pydantic import ValidationError

from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.digest import BulkAlgorithm, canonical_json
from snapline.lineage.events import (
    Attested,
    ContractBound,
    Erased,
    ErasureClosed,
    Escalated,
    Initialized,
    LeakageChecked,
    LineageEvent,
    Linked,
    ModelRegistered,
    Observed,
    Promoted,
    Recorded,
    Retired,
    RuleFinding,
    SnapshotTaken,
    SourceCompared,
    StageEntered,
    ViewDefined,
    decode,
    encode,
)
from snapline.lineage.model import EdgeKind, ModelVersion, Parent, Use, UseKind, VersionKey, Weights
from snapline.lineage.snapshot import BucketChange, Commit, Comparison, Series, Snapshot
from snapline.lineage.view import RefreshPolicy, StoredFile, Trainer, View, ViewDefinition

AT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
DIGEST = "blake3-thing-v1:" + "a" * 64
SALT = "5a" * 32
SNAPSHOT = Snapshot(
    series=Series(name="flights", source="/data", time="t", known=None, key="k", bucket=Bucket.DAY),
    cut=Cut(since=datetime(2013, 1, 1, tzinfo=UTC), until=datetime(2013, 7, 1, tzinfo=UTC)),
    digest=DIGEST,
    rows=2**40,
    buckets=181,
    manifest=DIGEST,
    taken_at=AT,
    commit=Commit(id="12", at=AT),
    membership=DIGEST,
)
VIEW = View(
    definition=ViewDefinition(
        apiVersion="snapline/v1",
        kind="View",
        name="assistant",
        inputs={"flights": "flights"},
        query="SELECT 'é', '\u2028' FROM flights",
        trainer=Trainer(argv=("python", "train.py"), code=("train.py",), parameters={"steps": "40"}, seed=7),
        refresh=RefreshPolicy(max_age=timedelta(days=36_500), max_delta_rows=5_000),
    ),
    code=(StoredFile(path="train.py", object=DIGEST),),
    environment=None,
)
MODEL = VersionKey(name="assistant", version=2)
VERSION = ModelVersion(
    key=MODEL,
    weights=Weights(digest=DIGEST, path="/weights/é", manifest=DIGEST, size_bytes=2**52),
    view_name="assistant",
    view=VIEW.digest,
    snapshots=(SNAPSHOT.id,),
    parents=(Parent(kind=EdgeKind.FINE_TUNED_FROM, model=VersionKey(name="base", version=1)),),
    contract="chat",
    materialize_seconds=90,
)
COMPARISON = Comparison(
    changed=(BucketChange(label="2013-01-01", rows_then=3, rows_now=0, deleted=3),), commit=Commit(id="13"), lag=1
)
EVENTS: list[LineageEvent] = [
    Initialized(at=AT, algorithm=BulkAlgorithm.SHA256, salt=SALT),
    SnapshotTaken(at=AT, snapshot=SNAPSHOT),
    SourceCompared(at=AT, snapshot=SNAPSHOT.id, files=DIGEST, comparison=COMPARISON),
    ViewDefined(at=AT, view=VIEW),
    ModelRegistered(at=AT, model=VERSION),
    ContractBound(at=AT, model=MODEL, contract="chat"),
    Recorded(at=AT, what="probes", name="chats", digest=DIGEST, object=DIGEST, count=200),
    Attested(at=AT, model=MODEL, predicate_type="https://x/v1", envelope=DIGEST, retained=(DIGEST,), seconds=5),
    Promoted(at=AT, model=MODEL, alias="champion", target="production", envelope=DIGEST, rollback=True),
    Linked(at=AT, model=MODEL, uses=(Use(kind=UseKind.EVALUATED_ON, snapshot=SNAPSHOT.id),)),
    LeakageChecked(
        at=AT, model=MODEL, name="pit", rules=DIGEST, rows=DIGEST, findings=(RuleFinding(rule="label", rows=2),)
    ),
    Erased(
        at=AT,
        erasure="ab" * 32,
        series=("flights",),
        tombstones=DIGEST,
        keys=3,
        absent=1,
        snapshots=(SNAPSHOT.id,),
        reason="asked for",
    ),
    Retired(at=AT, model=MODEL, reason="erased rows"),
    ErasureClosed(at=AT, erasure="ab" * 32, certificate=DIGEST),
    StageEntered(at=AT, rollout="spring", model=MODEL, target="production", contract="chat", stage="shadow"),
    Observed(at=AT, rollout="spring", stage="shadow", monitor=DIGEST, log=DIGEST, requests=7),
    Escalated(
        at=AT,
        rollout="spring",
        clause="tv_answer",
        slice="german",
        verdict="REFUTED",
        acts=("block", "route_slice"),
        until=AT,
        blocks=True,
        reference_slices=("german",),
    ),
]


def test_every_kind_of_event_is_here() -> None:
    kinds = get_args(get_args(LineageEvent)[0])
    assert {type(event) for event in EVENTS} == set(kinds)
    assert len(EVENTS) == len(kinds)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_an_event_comes_back_as_it_was_written(event: LineageEvent) -> None:
    written = encode(event)
    assert decode(written) == event
    assert encode(decode(written)) == written
    assert canonical_json(json.loads(written)) == written
    assert decode(written).at == AT


def test_an_instant_is_written_in_utc_whatever_it_was_given_in() -> None:
    there = AT.astimezone(timezone(timedelta(hours=9)))
    assert encode(Initialized(at=there, algorithm=BulkAlgorithm.BLAKE3, salt=SALT)) == encode(
        Initialized(at=AT, algorithm=BulkAlgorithm.BLAKE3, salt=SALT)
    )


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_an_event_with_a_field_from_a_newer_version_is_not_half_understood(event: LineageEvent) -> None:
    newer = json.loads(encode(event)) | {"unheard_of": 1}
    with pytest.raises(ValidationError, match="unheard_of"):
        decode(canonical_json(newer))


@pytest.mark.parametrize("data", [b"", b"null", b"{}", b'{"kind":"teleported"}', b'{"kind":"initialized"}', b"\xff"])
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(ValidationError):
        decode(data)
