from __future__ import annotations

from datetime import UTC, datetime

import pytest

from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import NotFoundError
from snapline.lineage.events import (
    Attested,
    ContractBound,
    Initialized,
    LineageEvent,
    ModelRegistered,
    Promoted,
    Recorded,
    SnapshotTaken,
    SourceCompared,
    ViewDefined,
)
from snapline.lineage.model import ModelVersion, VersionKey, Weights, parse_reference
from snapline.lineage.snapshot import Commit, Comparison, Series, Snapshot
from snapline.lineage.state import State, apply, fold
from snapline.lineage.view import Trainer, View, ViewDefinition

AT = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "blake3-thing-v1:" + "a" * 64


def snapshot(month: int, name: str = "flights") -> Snapshot:
    return Snapshot(
        series=Series(name=name, source="/data", time="t", known=None, key="k", bucket=Bucket.DAY),
        cut=Cut(since=datetime(2013, 1, 1, tzinfo=UTC), until=datetime(2013, month, 1, tzinfo=UTC)),
        digest=DIGEST,
        rows=month,
        buckets=1,
        manifest=DIGEST,
        taken_at=AT,
        commit=Commit(id="12"),
        membership=DIGEST,
    )


def view(query: str) -> View:
    trainer = Trainer(argv=("python",), code=(), seed=0)
    inputs = {"flights": "flights"}
    return View(
        definition=ViewDefinition(
            apiVersion="snapline/v1", kind="View", name="assistant", inputs=inputs, query=query, trainer=trainer
        ),
        code=(),
        environment=None,
    )


def registered(version: int, name: str = "model") -> ModelRegistered:
    weights = Weights(digest=DIGEST, path=f"/weights/{version}", manifest=DIGEST, size_bytes=1)
    return ModelRegistered(at=AT, model=ModelVersion(key=VersionKey(name=name, version=version), weights=weights))


def promoted(version: int, *, alias: str = "champion", target: str = "production", rollback: bool = False) -> Promoted:
    key = VersionKey(name="model", version=version)
    return Promoted(at=AT, model=key, alias=alias, target=target, envelope=DIGEST, rollback=rollback)


def resolved(state: State, text: str) -> str:
    return str(state.resolve(parse_reference(text)).key)


def test_applying_changes_nothing_that_was() -> None:
    before = fold([registered(1)])
    after = apply(before, registered(2))
    assert len(before.models["model"]) == 1
    assert len(after.models["model"]) == 2


def test_folding_in_two_parts_is_folding_at_once() -> None:
    history: list[LineageEvent] = [
        Initialized(at=AT, algorithm=BulkAlgorithm.SHA256, salt="5a" * 32),
        SnapshotTaken(at=AT, snapshot=snapshot(7)),
        registered(1),
        promoted(1),
        registered(2),
        promoted(2),
        promoted(1, rollback=True),
    ]
    for cut in range(len(history) + 1):
        assert fold(history[cut:], fold(history[:cut])) == fold(history)
    assert fold(history).algorithm is BulkAlgorithm.SHA256


def test_a_series_knows_its_snapshots_newest_last() -> None:
    state = fold(SnapshotTaken(at=AT, snapshot=snapshot(month)) for month in (7, 8, 7))
    assert state.series["flights"] == (snapshot(8).id, snapshot(7).id)
    assert state.snapshot("flights") == snapshot(7)
    assert state.snapshot(f"flights@{snapshot(8).id}") == snapshot(8)
    assert state.snapshot(f"flights@{snapshot(8).id[:12]}") == snapshot(8)


def test_a_snapshot_that_is_not_there_or_not_one_is_not_found() -> None:
    state = fold(SnapshotTaken(at=AT, snapshot=snapshot(month)) for month in range(2, 13))
    with pytest.raises(NotFoundError, match="no snapshot 'other'; there are: flights"):
        state.snapshot("other")
    with pytest.raises(NotFoundError, match="names 0 snapshots"):
        state.snapshot("flights@zzz")
    first_digits = [id_[0] for id_ in state.series["flights"]]
    repeated = next(digit for digit in first_digits if first_digits.count(digit) > 1)
    with pytest.raises(NotFoundError, match=f"names {first_digits.count(repeated)} snapshots"):
        state.snapshot(f"flights@{repeated}")
    with pytest.raises(NotFoundError, match="there are: none yet"):
        State().snapshot("flights")


def test_the_newest_comparison_of_each_snapshot_counts() -> None:
    first = SourceCompared(at=AT, snapshot="a", files=DIGEST, comparison=Comparison(commit=Commit(id="1")))
    second = SourceCompared(at=AT, snapshot="a", files=DIGEST, comparison=Comparison(commit=Commit(id="2")))
    other = SourceCompared(at=AT, snapshot="b", files=DIGEST, comparison=Comparison(commit=Commit(id="1")))
    assert dict(fold([first, other, second]).comparisons) == {"a": second, "b": other}


def test_a_view_defined_anew_keeps_its_past() -> None:
    old, new = view("SELECT 1"), view("SELECT 2")
    state = fold([ViewDefined(at=AT, view=old), ViewDefined(at=AT, view=new)])
    assert dict(state.views) == {"assistant": new}
    assert dict(state.view_versions) == {old.digest: old, new.digest: new}


def test_a_contract_and_a_probe_set_may_share_a_name() -> None:
    both = [Recorded(at=AT, what=what, name="chat", digest=DIGEST, object=DIGEST) for what in ("contract", "probes")]
    assert set(fold(both).records) == {("contract", "chat"), ("probes", "chat")}


def test_attestations_stay_in_order_with_their_version() -> None:
    one, two = (VersionKey(name="model", version=version) for version in (1, 2))
    said = [Attested(at=AT, model=key, predicate_type=kind, envelope=DIGEST) for key, kind in ((one, "x"), (two, "y"))]
    again = Attested(at=AT, model=one, predicate_type="z", envelope=DIGEST)
    state = fold([*said, again])
    assert state.attestations[one] == (said[0], again)
    assert state.attestations[two] == (said[1],)


def test_binding_a_contract_touches_that_version_alone() -> None:
    bound = ContractBound(at=AT, model=VersionKey(name="model", version=1), contract="chat")
    before = fold([registered(1), registered(2), registered(1, "other")])
    after = apply(before, bound)
    assert after.models["model"][0] == before.models["model"][0].model_copy(update={"contract": "chat"})
    assert after.models["model"][1] == before.models["model"][1]
    assert after.models["other"] == before.models["other"]


def test_a_bare_name_is_the_newest_version() -> None:
    state = fold([registered(1), registered(2), registered(1, "other"), promoted(1)])
    assert resolved(state, "model") == "model/2"
    assert resolved(state, "model/1") == resolved(state, "models:/model/1") == "model/1"
    assert resolved(state, "model@champion") == resolved(state, "models:/model@champion") == "model/1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nobody", "no model 'nobody'; there are: model, other"),
        ("model/0", "has versions 1 to 2, not 0"),
        ("model/3", "has versions 1 to 2, not 3"),
        ("model@champion", "has no alias 'champion'"),
    ],
)
def test_a_model_that_is_not_there_is_not_found(text: str, message: str) -> None:
    state = fold([registered(1), registered(2), registered(1, "other")])
    with pytest.raises(NotFoundError, match=message):
        resolved(state, text)


def test_a_rollback_goes_to_whoever_really_held_the_alias_before() -> None:
    state = fold([*(registered(version) for version in (1, 2, 3)), promoted(1), promoted(3), promoted(2)])
    assert resolved(state, "model@champion") == "model/2"
    state = apply(state, promoted(3, rollback=True))
    assert resolved(state, "model@champion") == "model/3"
    state = apply(state, promoted(1, rollback=True))
    assert resolved(state, "model@champion") == "model/1"


def test_promoting_who_holds_the_alias_already_adds_no_holder() -> None:
    state = fold([registered(1), registered(2), promoted(1), promoted(2), promoted(2, target="staging")])
    assert [str(holder.model) for holder in state.holders["model", "champion"]] == ["model/1", "model/2"]
    assert state.holders["model", "champion"][-1].target == "staging"


def test_aliases_do_not_mix() -> None:
    state = fold([registered(1), registered(2), promoted(1), promoted(2, alias="challenger")])
    assert resolved(state, "model@champion") == "model/1"
    assert resolved(state, "model@challenger") == "model/2"
