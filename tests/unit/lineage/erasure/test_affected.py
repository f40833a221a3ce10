"""Which versions an erasure reaches, and when each is settled."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta

import pytest

from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.erasure.affected import (
    Settlement,
    affected,
    erasures_in,
    erasures_of,
    open_erasures,
    pending,
    refresh_steps,
)
from snapline.lineage.events import (
    Erased,
    ErasureClosed,
    LineageEvent,
    ModelRegistered,
    Promoted,
    Retired,
    SnapshotTaken,
    ViewDefined,
)
from snapline.lineage.model import EdgeKind, ModelVersion, Parent, Use, UseKind, VersionKey, Weights
from snapline.lineage.snapshot import Commit, Series, Snapshot
from snapline.lineage.state import State, fold
from snapline.lineage.view import Trainer, View, ViewDefinition

AT = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "blake3-thing-v1:" + "a" * 64


def key(text: str) -> VersionKey:
    name, _, version = text.partition("/")
    return VersionKey(name=name, version=int(version))


def snapshot(day: int) -> Snapshot:
    return Snapshot(
        series=Series(name="trips", source="/data", time="t", known=None, key="k", bucket=Bucket.DAY),
        cut=Cut(since=AT, until=AT + timedelta(days=day)),
        digest=DIGEST,
        rows=day,
        buckets=1,
        manifest=DIGEST,
        taken_at=AT,
        commit=Commit(id="c"),
        membership=DIGEST,
    )


WITH, WITHOUT = snapshot(1), snapshot(2)


def made(text: str, *sources: Snapshot | str, content: int | None = None, **more: object) -> ModelRegistered:
    """A version made from snapshots and, by their text, from versions."""
    weights = Weights(
        digest=f"blake3-weights-v1:{content if content is not None else zlib.crc32(text.encode()):064d}",
        path="/w",
        manifest=DIGEST,
        size_bytes=1,
    )
    model = ModelVersion(
        key=key(text),
        weights=weights,
        snapshots=tuple(found.id for found in sources if isinstance(found, Snapshot)),
        parents=tuple(
            Parent(kind=EdgeKind.ADAPTER_OF, model=key(found)) for found in sources if isinstance(found, str)
        ),
        **more,
    )
    return ModelRegistered(at=AT, model=model)


def request(*hit: Snapshot, name: str = "ab", at: datetime = AT) -> Erased:
    found = tuple(snapshot.id for snapshot in hit)
    return Erased(at=at, erasure=name * 32, series=("trips",), tombstones=DIGEST, keys=1, absent=0, snapshots=found)


def state_of(*events: LineageEvent) -> State:
    return fold([SnapshotTaken(at=AT, snapshot=WITH), SnapshotTaken(at=AT, snapshot=WITHOUT), *events])


def found(state: State, erased: Erased) -> dict[str, str]:
    return {str(model.key): model.state.value for model in affected(erased, state)}


def test_what_was_trained_evaluated_or_calibrated_on_a_hit_snapshot_is_affected():
    uses = {kind: (Use(kind=kind, snapshot=WITH.id),) for kind in (UseKind.EVALUATED_ON, UseKind.CALIBRATED_ON)}
    state = state_of(
        made("trained/1", WITH),
        made("evaluated/1", WITHOUT, uses=uses[UseKind.EVALUATED_ON]),
        made("calibrated/1", WITHOUT, uses=uses[UseKind.CALIBRATED_ON]),
        made("clean/1", WITHOUT),
        request(WITH),
    )
    models = affected(request(WITH), state)
    assert [str(model.key) for model in models] == ["calibrated/1", "evaluated/1", "trained/1"]
    assert models[0].path == (f"calibrated/1 calibrated_on trips@{WITH.id[:12]}",)
    assert models[2].path == (f"trained/1 trained_on trips@{WITH.id[:12]}",)


@pytest.mark.parametrize("kind", list(EdgeKind))
def test_what_came_from_an_affected_version_in_any_way_is_affected_and_says_how(kind):
    child = made("child/1").model.model_copy(update={"parents": (Parent(kind=kind, model=key("base/1")),)})
    state = state_of(
        made("base/1", WITH),
        ModelRegistered(at=AT, model=child),
        made("grandchild/1", WITHOUT, "child/1"),
        request(WITH),
    )
    models = {str(model.key): model for model in affected(request(WITH), state)}
    assert set(models) == {"base/1", "child/1", "grandchild/1"}
    assert models["grandchild/1"].path == (
        "grandchild/1 adapter_of child/1",
        f"child/1 {kind.value} base/1",
        f"base/1 trained_on trips@{WITH.id[:12]}",
    )
    assert [erased.erasure for erased in pending(state, key("grandchild/1"))] == [request().erasure]


def test_a_copy_that_says_nothing_of_itself_is_affected_and_so_is_what_came_from_it():
    state = state_of(
        made("base/1", WITH, content=7),
        made("copy/1", content=7),
        made("other/1", content=8),
        made("child/1", "copy/1"),
        made("honest/1", WITHOUT, content=7),
        request(WITH),
    )
    assert set(found(state, request(WITH))) == {"base/1", "copy/1", "child/1"}
    assert pending(state, key("child/1"))
    assert not pending(state, key("honest/1"))


def test_a_version_is_settled_by_a_later_one_made_without_the_rows():
    state = state_of(made("m/1", WITH), made("m/2", WITH), made("m/3", WITHOUT), made("m/4", WITHOUT), request(WITH))
    models = affected(request(WITH), state)
    assert [(str(model.key), model.state, str(model.by)) for model in models] == [
        ("m/1", Settlement.RETRAINED, "m/3"),
        ("m/2", Settlement.RETRAINED, "m/3"),
    ]
    assert pending(state, key("m/1"))


def test_an_earlier_version_settles_nothing():
    state = state_of(made("m/1", WITHOUT), made("m/2", WITH), request(WITH))
    assert found(state, request(WITH)) == {"m/2": "pending"}


def test_weights_that_say_nothing_of_what_they_were_made_from_settle_nothing():
    state = state_of(made("m/1", WITH, content=1), made("m/2", content=2), request(WITH))
    assert found(state, request(WITH)) == {"m/1": "pending"}


def test_a_later_version_from_an_affected_base_settles_nothing():
    events = [made("base/1", WITH), made("m/1", WITH, "base/1"), made("m/2", WITHOUT, "base/1"), request(WITH)]
    state = state_of(*events)
    assert found(state, request(WITH)) == {"base/1": "pending", "m/1": "pending", "m/2": "pending"}
    state = state_of(*events, made("base/2", WITHOUT), made("m/3", WITHOUT, "base/2"))
    assert set(found(state, request(WITH)).values()) == {"retrained"}


def test_a_retired_version_is_settled_and_stays_affected():
    state = state_of(made("m/1", WITH), request(WITH), Retired(at=AT, model=key("m/1")))
    assert found(state, request(WITH)) == {"m/1": "retired"}
    assert pending(state, key("m/1"))


def test_a_closed_request_still_affects():
    closed = ErasureClosed(at=AT, erasure=request().erasure, certificate=DIGEST)
    state = state_of(made("m/1", WITH), request(WITH), closed)
    assert pending(state, key("m/1"))
    assert open_erasures(state) == ()
    assert erasures_in(WITH.id, state) == erasures_of("trips", state) == (request(WITH),)
    assert erasures_in(WITHOUT.id, state) == erasures_of("other", state) == ()


def test_requests_come_in_the_order_they_were_made():
    later, earlier = request(WITH, name="aa", at=AT + timedelta(days=1)), request(WITH, name="bb")
    state = state_of(later, earlier)
    assert erasures_of("trips", state) == open_erasures(state) == (earlier, later)


def test_an_affected_version_says_which_aliases_stand_on_it():
    stand = Promoted(at=AT, model=key("m/1"), alias="champion", target="t", envelope=DIGEST)
    state = state_of(made("m/1", WITH), stand, request(WITH))
    assert [model.aliases for model in affected(request(WITH), state)] == [("champion",)]
    state = state_of(made("m/1", WITH), stand, made("m/2", WITHOUT), stand.model_copy(update={"model": key("m/2")}))
    assert [model.aliases for model in affected(request(WITH), state)] == [()]


def view(name: str, base: str | None = None) -> View:
    definition = ViewDefinition(
        apiVersion="snapline/v1",
        kind="View",
        name=name,
        inputs={"trips": "trips"},
        query="SELECT 1",
        trainer=Trainer(argv=("python",), code=(), seed=0),
        base_model=base,
    )
    return View(definition=definition, code=(), environment=None)


def of_view(text: str, made_from: View, *sources: Snapshot | str) -> list[LineageEvent]:
    name = made_from.definition.name
    return [ViewDefined(at=AT, view=made_from), made(text, *sources, view_name=name, view=made_from.digest)]


def steps_of(*events: LineageEvent) -> list[tuple[list[str], str | None, str]]:
    state = state_of(*events, request(WITH))
    steps = refresh_steps(affected(request(WITH), state), state)
    return [([str(key) for key in step.models], step.command, step.why) for step in steps]


def test_the_plan_materializes_bases_before_what_is_made_from_them():
    steps = steps_of(
        *of_view("zbase/1", view("zbase"), WITH), *of_view("child/1", view("child", "zbase"), WITH, "zbase/1")
    )
    assert [(models, command) for models, command, _ in steps] == [
        (["zbase/1"], "snapline materialize zbase"),
        (["child/1"], "snapline materialize child"),
    ]
    assert "takes trips anew" in steps[0][2]
    assert "once zbase is a version made without the rows" in steps[1][2]


def test_the_plan_has_no_command_for_a_view_pinned_to_an_affected_base():
    steps = steps_of(made("base/1", WITH), *of_view("child/1", view("child", "base/1"), WITHOUT, "base/1"))
    assert [(models, command) for models, command, _ in steps] == [(["base/1"], None), (["child/1"], None)]
    assert "made elsewhere" in steps[0][2]
    assert "define its view on another base" in steps[1][2]


def test_the_plan_leaves_out_what_is_settled():
    retired = Retired(at=AT, model=key("m/1"))
    assert steps_of(made("m/1", WITH), retired, made("n/1", WITH), made("n/2", WITHOUT)) == []


def test_a_plan_is_there_even_where_versions_came_from_each_other():
    first = made("a/1", WITH, "b/1")
    assert [models for models, _, _ in steps_of(first, made("b/1", WITH, "a/1"))] == [["a/1"], ["b/1"]]
