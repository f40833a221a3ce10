"""Erasure never leaves out what it reaches: the walk up agrees with the walk down, and no snapshot denies a key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lineage_home import DAY, NOW, START, LineageHome

from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.erasure.affected import affected, pending
from snapline.lineage.erasure.requests import Request, erase
from snapline.lineage.erasure.tombstones import Tombstones, decode_tombstones, encode_tombstones
from snapline.lineage.events import Erased, ModelRegistered, SnapshotTaken
from snapline.lineage.model import EdgeKind, ModelVersion, Parent, VersionKey, Weights
from snapline.lineage.series import CutOptions, Desk, rows_of
from snapline.lineage.snapshot import Commit, Series, Snapshot
from snapline.lineage.state import State, fold

AT = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "blake3-thing-v1:" + "a" * 64
SERIES = Series(name="s", source="/data", time="t", known=None, key="k", bucket=Bucket.DAY)
SNAPSHOTS = [
    Snapshot(
        series=SERIES,
        cut=Cut(since=AT, until=AT + timedelta(days=day)),
        digest=DIGEST,
        rows=1,
        buckets=1,
        manifest=DIGEST,
        taken_at=AT,
        commit=Commit(id="c"),
        membership=DIGEST,
    )
    for day in (1, 2, 3)
]


@st.composite
def histories(draw: st.DrawFn) -> State:
    """A few models of three names, each from snapshots, earlier versions, both or nothing, and a few requests."""
    events = [SnapshotTaken(at=AT, snapshot=snapshot) for snapshot in SNAPSHOTS]
    keys: list[VersionKey] = []
    for _ in range(draw(st.integers(1, 9))):
        name = draw(st.sampled_from("abc"))
        key = VersionKey(name=name, version=1 + sum(known.name == name for known in keys))
        above = draw(st.lists(st.sampled_from(keys), max_size=2, unique=True)) if keys else []
        weights = f"blake3-weights-v1:{draw(st.integers(0, 2)):064d}"
        model = ModelVersion(
            key=key,
            weights=Weights(digest=weights, path="/w", manifest=DIGEST, size_bytes=1),
            snapshots=tuple(draw(st.lists(st.sampled_from([found.id for found in SNAPSHOTS]), max_size=1))),
            parents=tuple(Parent(kind=EdgeKind.MERGED_FROM, model=found) for found in above),
        )
        keys.append(key)
        events.append(ModelRegistered(at=AT, model=model))
    for number in range(draw(st.integers(1, 2))):
        hit = tuple(draw(st.lists(st.sampled_from([found.id for found in SNAPSHOTS]), max_size=2, unique=True)))
        erasure = f"{number:064d}"
        events.append(Erased(at=AT, erasure=erasure, series=("s",), tombstones=DIGEST, keys=1, absent=0, snapshots=hit))
    return fold(events)


@given(histories())
def test_looking_up_from_a_version_agrees_with_looking_down_from_a_request(state):
    for erased in state.erasures.values():
        down = {model.key for model in affected(erased, state)}
        up = {
            model.key for versions in state.models.values() for model in versions if erased in pending(state, model.key)
        }
        assert up == down
        for model in affected(erased, state):
            if model.by is not None:
                assert model.by not in down
                assert model.by.version > model.key.version


@given(st.lists(st.integers(0, 40), max_size=30), st.sets(st.integers(0, 40), max_size=8))
def test_tombstones_find_every_row_of_an_erased_key_and_no_other(rows, erased):
    from snapline.lineage.rows.hashes import key_hashes

    salt = "cd" * 32
    stored = decode_tombstones(encode_tombstones(key_hashes(pa.array(sorted(erased), pa.int64()), salt), salt), salt)
    tombstones = Tombstones(("a" * 64,), stored, salt)
    assert tombstones.erased_rows(pa.array(rows, pa.int64())).tolist() == [row in erased for row in rows]
    assert np.all(stored[:-1] < stored[1:])


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_snapshot_denies_a_row_it_has(tmp_path_factory, data):
    """Whatever rows, windows and keys: every snapshot with a row of an erased key is named, and no later one has it."""
    home = LineageHome(tmp_path_factory.mktemp("home"))
    days = data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=12))
    home.rows = [
        {"at": START + day * DAY + n * DAY / 50, "seen": START + day * DAY + DAY / 2, "id": key, "delay": n}
        for n, (day, key) in enumerate(days)
    ]
    home.write()
    windows = data.draw(st.lists(st.tuples(st.integers(1, 3), st.integers(4, 6)), min_size=1, max_size=3, unique=True))
    for first, last in windows:
        home.take(cut=CutOptions(since=f"2013-01-{first:02d}", until=f"2013-01-{last:02d}"))
    erased = data.draw(st.sets(st.integers(0, 4), min_size=1, max_size=2))
    file = home.folder / "keys.csv"
    file.write_text("id\n" + "\n".join(map(str, sorted(erased))) + "\n")
    desk = Desk(home.objects, NOW)
    before = {
        found: set(rows_of(home.state.snapshots[found], home.state, desk)["id"].to_pylist())
        for found in home.state.series["trips"]
    }
    outcome = erase(Request(("trips",), file), home.ledger, desk)
    assert set(outcome.erased.snapshots) == {found for found, keys in before.items() if keys & erased}
    assert outcome.erased.absent == len(erased - set().union(*before.values()))
    for first, last in windows:
        later = home.take(cut=CutOptions(since=f"2013-01-{first:02d}", until=f"2013-01-{last:02d}"), now=NOW + DAY)
        rows = rows_of(later, home.state, desk)
        assert not set(rows["id"].to_pylist()) & erased
