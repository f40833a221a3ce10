from __future__ import annotations

import pytest
from histories import defined, fleet, key, linked, registered, snapshot, taken, view

from snapline.lineage.events import LineageEvent
from snapline.lineage.graph import Graph, ancestry, document, tree
from snapline.lineage.model import EdgeKind, UseKind
from snapline.lineage.state import fold


def graph_of(name: str, *events: LineageEvent) -> Graph:
    state = fold(events)
    return ancestry(state.models[name][0], state)


@pytest.fixture
def diamond() -> Graph:
    """Two models made from one base and one snapshot, and one made from both."""
    cut = snapshot()
    made = [registered("base"), registered("left", "base", cut=cut), registered("right", "base", cut=cut)]
    return graph_of("top", taken(cut), defined(view()), *made, registered("top", "left", "right"))


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
    alone = graph_of("base", registered("base"))
    assert [node.id for node in alone.nodes] == ["model:base/1"]
    assert alone.edges == ()
    assert tree(alone, key("base")) == alone.nodes[0].label


@pytest.mark.parametrize("kind", [*UseKind, *EdgeKind])
def test_every_kind_of_edge_is_followed(kind: UseKind | EdgeKind) -> None:
    cut = snapshot()
    to = cut if kind in list(UseKind) else "base"
    found = graph_of("m", taken(cut), registered("base"), registered("m"), linked("m", kind, to))
    target = f"snapshot:{cut.id}" if to is cut else "model:base/1"
    first = found.edges[0]
    assert (first.source, first.kind, first.target) == ("model:m/1", kind.value, target)
    assert {node.id for node in found.nodes} >= {"model:m/1", target}
    assert any(node.kind == "source" for node in found.nodes) == (to is cut)


def test_the_tree_goes_all_the_way_down(diamond: Graph) -> None:
    lines = tree(diamond, key("top")).splitlines()
    assert lines[0].startswith("top/1")
    assert sum("fine_tuned_from base/1" in line for line in lines) == 2
    assert "[2013-01-01, 2013-02-01)  9 rows" in "\n".join(lines)


def test_the_tree_tells_what_it_showed_before_once_in_full(diamond: Graph) -> None:
    text = tree(diamond, key("top"))
    assert text.count("cut_from") == 1
    (again,) = (line for line in text.splitlines() if line.endswith("(shown above)"))
    assert "trained_on snapshot trips@" in again


def test_the_tree_of_many_diamonds_stays_as_small_as_the_graph() -> None:
    events: list[LineageEvent] = [registered("m/1")]
    for number in range(2, 60):
        sides = [
            registered(f"left/{number - 1}", f"m/{number - 1}"),
            registered(f"right/{number - 1}", f"m/{number - 1}"),
        ]
        events += [*sides, registered(f"m/{number}", f"left/{number - 1}", f"right/{number - 1}")]
    state = fold(events)
    found = ancestry(state.models["m"][-1], state)
    assert len(tree(found, key("m/59")).splitlines()) == 1 + len(found.edges)


def test_branches_are_drawn_to_the_last_child() -> None:
    state = fold(fleet())
    lines = tree(ancestry(state.models["adapter"][0], state), key("adapter")).splitlines()
    assert [line[:3] for line in lines[1:3]] == ["└─ ", "   "]
    assert lines[-1].startswith("      └─ fine_tuned_from base/1")
    assert lines[3].startswith("   │  └─ cut_from source /data/held-out.parquet")


def test_the_document_is_plain_and_complete(diamond: Graph) -> None:
    plain = document(diamond)
    assert len(plain["nodes"]) == len(diamond.nodes)
    assert {"from": "model:top/1", "kind": "fine_tuned_from", "to": "model:left/1"} in plain["edges"]
