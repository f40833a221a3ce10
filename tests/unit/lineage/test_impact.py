from __future__ import annotations

import pytest
from histories import START, defined, fleet, linked, promoted, registered, snapshot, taken, view
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.lineage.cut import Bucket
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.events import LineageEvent
from snapline.lineage.graph import Edge
from snapline.lineage.impact import Subject, downstream, number, subject_of, tables_of
from snapline.lineage.model import EdgeKind, UseKind
from snapline.lineage.snapshot import BucketDigest, Manifest, Snapshot
from snapline.lineage.state import State, fold

SOURCE = "/data/trips.parquet"


def manifest(*labels: str) -> Manifest:
    buckets = tuple(BucketDigest(label=label, rows=3, hexdigest="0" * 64) for label in labels)
    return Manifest(columns=(), buckets=buckets, files=())


def reader(snapshot: Snapshot) -> Manifest:
    """Every snapshot holds its first and its third bucket, and an empty second one."""
    day = manifest("2013-01-01", "2013-01-02", "2013-01-03").buckets
    empty = day[1].model_copy(update={"rows": 0})
    return Manifest(columns=(), buckets=(day[0], empty, day[2]), files=())


def affected(state: State, text: str) -> list[tuple[str, int, str, str]]:
    rows = downstream(tables_of(state), subject_of(text, state, reader)).to_pylist()
    return [(row["id"].partition(":")[2][:9], row["distance"], row["edge"], row["from_id"]) for row in rows]


@pytest.fixture
def state() -> State:
    return fold(fleet())


def test_everything_made_from_a_model_is_found_nearest_first(state: State) -> None:
    assert affected(state, "base") == [
        ("left/1", 1, "fine_tuned_from", "model:base/1"),
        ("right/1", 1, "fine_tuned_from", "model:base/1"),
        ("merged/1", 2, "merged_from", "model:left/1"),
        ("adapter/1", 3, "adapter_of", "model:merged/1"),
    ]


def test_a_source_reaches_snapshots_and_what_was_made_from_them(state: State) -> None:
    found = affected(state, SOURCE)
    cut = state.snapshot("trips")
    assert found[0] == (cut.id[:9], 1, "cut_from", f"source:{SOURCE}")
    assert [row[:2] for row in found[1:]] == [("left/1", 2), ("right/1", 2), ("merged/1", 3), ("adapter/1", 4)]


def test_a_model_evaluated_on_a_snapshot_is_affected_by_it(state: State) -> None:
    assert [row[:3] for row in affected(state, "held-out")] == [
        ("merged/1", 1, "evaluated_on"),
        ("adapter/1", 2, "adapter_of"),
    ]


@pytest.mark.parametrize("kind", [*UseKind, *EdgeKind])
def test_every_kind_of_edge_is_followed(kind: UseKind | EdgeKind) -> None:
    cut = snapshot()
    events: list[LineageEvent] = [taken(cut), registered("base"), registered("m")]
    used = kind in list(UseKind)
    state = fold([*events, linked("m", kind, cut if used else "base")])
    assert [row[:3] for row in affected(state, "trips" if used else "base")] == [("m/1", 1, kind.value)]


def test_versions_come_in_the_order_of_their_numbers() -> None:
    state = fold([registered("base"), *(registered(f"m/{n}", "base") for n in range(1, 13))])
    assert [row[0] for row in affected(state, "base")] == [f"m/{n}" for n in range(1, 13)]


def test_nothing_hangs_on_the_last_of_a_chain(state: State) -> None:
    assert affected(state, "adapter") == []
    assert affected(state, "apart") == []


BUCKETS = [
    ("2013-01-01", True),
    ("2013-01-02", False),
    ("2013-01-03", True),
    ("2013-01-01T05:00Z", True),
    ("2014-01-01", False),
]


@pytest.mark.parametrize(("label", "held"), BUCKETS)
def test_a_bucket_affects_the_snapshots_that_hold_rows_in_it(label: str, held: bool, state: State) -> None:
    for spelling in (f"{SOURCE}@{label}", f"trips@{label}", f"source:{SOURCE}@{label}"):
        found = affected(state, spelling)
        assert [row[1] for row in found] == ([1, 2, 2, 3, 4] if held else [])
    if held:
        assert found[0][2:] == ("cut_from", f"source:{SOURCE}")


WIDTHS = [
    (Bucket.HOUR, "2013-01-24T05:00Z"),
    (Bucket.DAY, "2013-01-24"),
    (Bucket.WEEK, "2013-01-21"),
    (Bucket.MONTH, "2013-01-01"),
]


@pytest.mark.parametrize(("width", "label"), [*WIDTHS, (Bucket.YEAR, "2013-01-01")])
def test_a_day_is_held_by_buckets_of_any_width(width: Bucket, label: str) -> None:
    state = fold([taken(snapshot(bucket=width, window=("2013-01-01", "2014-01-01")))])

    def roots(day: str) -> int:
        return len(subject_of(f"{SOURCE}@{day}", state, lambda _: manifest(label)).roots)

    assert roots("2013-01-24") == 1
    assert roots("2013-01-24T05:00Z") == 1
    assert roots("2013-01-24T06:00Z") == (width is not Bucket.HOUR)
    assert roots("2013-02-01") == (width is Bucket.YEAR)


def test_only_snapshots_of_the_source_are_read_for_a_bucket(state: State) -> None:
    read: list[str] = []

    def reading(one: Snapshot) -> Manifest:
        read.append(one.series.name)
        return manifest()

    subject_of(f"{SOURCE}@2013-01-24", state, reading)
    subject_of("base", state, reading)
    assert read == ["trips"]


def test_a_name_of_several_things_must_say_which(state: State) -> None:
    state = fold([*fleet(), registered("trips"), registered("of-model", "trips")])
    with pytest.raises(DefinitionError, match=r"may mean model trips/1 or snapshot trips@") as caught:
        subject_of("trips", state, reader)
    assert "Write model:trips, snapshot:trips" in caught.value.hint
    assert [row[0] for row in affected(state, "model:trips")] == ["of-model/"]
    assert affected(state, "snapshot:trips")[0][0] == "left/1"


def test_an_alias_and_a_version_name_a_model() -> None:
    state = fold([*fleet(), registered("merged/2"), promoted("merged/2", "newer", at=START)])
    assert affected(state, "merged@champion") == affected(state, "models:/merged/1") != []
    assert affected(state, "merged@newer") == affected(state, "merged") == []


@pytest.mark.parametrize(
    "text", ["nothing", "", "merged@nobody", "merged/9", "trips@ffffff", "model:trips", "/nowhere@2013-01-01"]
)
def test_what_the_ledger_does_not_know_is_said(text: str, state: State) -> None:
    with pytest.raises(NotFoundError, match="knows no model, snapshot or source"):
        subject_of(text, state, reader)


@pytest.mark.parametrize("label", ["2013-13-01", "yesterday", ""])
def test_what_is_no_bucket_is_refused(label: str, state: State) -> None:
    with pytest.raises(DefinitionError, match="expected an ISO date"):
        subject_of(f"{SOURCE}@{label}", state, reader)


@settings(max_examples=40)
@given(st.data())
def test_the_walk_is_a_breadth_first_search_circles_and_all(data: st.DataObject) -> None:
    """Against a search written the plain way; a ledger holds no circle, but none may hang the walk."""
    count = data.draw(st.integers(1, 8))
    names = [f"n{n}" for n in range(count)]
    one = st.sampled_from(names)
    edges = [Edge(*edge) for edge in data.draw(st.lists(st.tuples(one, st.sampled_from("ab"), one), max_size=20))]
    root = data.draw(one)
    distances, wave = {root: 0}, [root]
    while wave:
        wave = sorted({e.source for e in edges if e.target in wave and e.source not in distances})
        distances |= dict.fromkeys(wave, max(distances.values()) + 1)
    tables = number({name: ("model", name, name, 1) for name in names}, edges)
    found = downstream(tables, Subject("x", (root,))).to_pylist()
    expected = sorted((distance, name) for name, distance in distances.items() if distance)
    assert [(row["distance"], row["id"]) for row in found] == expected
    for row in found:
        assert Edge(row["id"], row["edge"], row["from_id"]) in edges
        assert distances[row["from_id"]] == row["distance"] - 1


def test_an_empty_home_has_an_empty_graph() -> None:
    tables = tables_of(State())
    assert (tables.nodes.num_rows, tables.edges.num_rows, tables.kinds) == (0, 0, ())
    assert downstream(tables, Subject("nothing", ())).num_rows == 0


def test_a_view_is_a_leaf(state: State) -> None:
    assert fold([defined(view())]).view_versions
    assert set(tables_of(state).nodes["kind"].to_pylist()) == {"model", "snapshot", "source", "view"}
