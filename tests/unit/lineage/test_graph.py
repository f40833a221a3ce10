from __future__ import annotations

from datetime import UTC, datetime

import pytest

from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.events import LineageEvent, ModelRegistered, SnapshotTaken
from snapline.lineage.graph import Graph, ancestry, document, mermaid, tree
from snapline.lineage.model import EdgeKind, ModelVersion, Parent, VersionKey, Weights
from snapline.lineage.snapshot import Series, Snapshot
from snapline.lineage.state import State, fold

AT = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "blake3-thing-v1:" + "a" * 64


def snapshot(source: str = "/data/trips.parquet") -> Snapshot:
    return Snapshot(
        series=Series(name="trips", source=source, time="t", known=None, key="k", bucket=Bucket.DAY),
        cut=Cut(since=datetime(2013, 1, 1, tzinfo=UTC), until=datetime(2013, 7, 1, tzinfo=UTC)),
        digest=DIGEST,
        rows=9,
        buckets=1,
        manifest=DIGEST,
        taken_at=AT,
    )


def version(name: str, *parents: str, cut: Snapshot | None = None) -> ModelRegistered:
    return ModelRegistered(
        at=AT,
        model=ModelVersion(
            key=VersionKey(name=name, version=1),
            weights=Weights(digest=DIGEST, path="/w", manifest=DIGEST, size_bytes=1),
            view_name="view" if cut else None,
            view=DIGEST if cut else None,
            snapshots=(cut.id,) if cut else (),
            parents=tuple(
                Parent(kind=EdgeKind.FINE_TUNED_FROM, model=VersionKey(name=parent, version=1)) for parent in parents
            ),
        ),
    )


def graph_of(name: str, *events: LineageEvent) -> Graph:
    state: State = fold(events)
    return ancestry(state.models[name][0], state)


@pytest.fixture
def diamond() -> Graph:
    """Two models made from one base and one snapshot, and one made from both."""
    cut = snapshot()
    made = [version("base"), version("left", "base", cut=cut), version("right", "base", cut=cut)]
    return graph_of("top", SnapshotTaken(at=AT, snapshot=cut), *made, version("top", "left", "right"))


def test_what_is_shared_is_there_once(diamond: Graph) -> None:
    kinds = [node.kind for node in diamond.nodes]
    assert {kind: kinds.count(kind) for kind in kinds} == {"model": 4, "view": 1, "snapshot": 1, "source": 1}
    assert len(set(diamond.edges)) == len(diamond.edges)
    pairs = {(edge.source, edge.kind, edge.target) for edge in diamond.edges}
    assert ("model:left/1", "fine_tuned_from", "model:base/1") in pairs
    assert ("model:right/1", "fine_tuned_from", "model:base/1") in pairs
    assert sum(kind == "cut_from" for _, kind, _ in pairs) == 1
    known = {node.id for node in diamond.nodes}
    assert all(edge.source in known and edge.target in known for edge in diamond.edges)


def test_an_external_base_model_has_only_itself() -> None:
    alone = graph_of("base", version("base"))
    assert [node.id for node in alone.nodes] == ["model:base/1"]
    assert alone.edges == ()
    assert tree(alone, VersionKey(name="base", version=1)) == alone.nodes[0].label


def test_the_tree_goes_all_the_way_down(diamond: Graph) -> None:
    lines = tree(diamond, VersionKey(name="top", version=1)).splitlines()
    assert lines[0].startswith("top/1")
    assert sum("fine_tuned_from base/1" in line for line in lines) == 2
    assert "[2013-01-01, 2013-07-01)  9 rows" in "\n".join(lines)


def test_the_document_is_plain_and_complete(diamond: Graph) -> None:
    plain = document(diamond)
    assert len(plain["nodes"]) == len(diamond.nodes)
    assert {"from": "model:top/1", "kind": "fine_tuned_from", "to": "model:left/1"} in plain["edges"]


def test_mermaid_cannot_be_broken_out_of_by_a_path() -> None:
    cut = snapshot('/data/"]; click n0 href "x" <b>&#1;`')
    drawn = mermaid(graph_of("m", SnapshotTaken(at=AT, snapshot=cut), version("m", cut=cut)))
    (line,) = (line for line in drawn.splitlines() if "source /data" in line)
    label = line.strip().partition('["')[2].removesuffix('"]')
    assert not set(label) & set('"<>&`')
    assert "#quot;]; click n0 href #quot;x#quot; #lt;b#gt;#amp;#35;1;#96;" in label
    assert drawn.count("-->") == 3
