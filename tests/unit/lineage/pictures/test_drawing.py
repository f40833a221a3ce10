from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from histories import defined, fleet, registered, snapshot, taken, view

from snapline.lineage.graph import Graph, ancestry
from snapline.lineage.pictures.drawing import dot, html, mermaid, svg
from snapline.lineage.state import fold

HOSTILE = '/data/"]; click n0 href "x" <b>&#1;`</title><script>alert(1)</script>\\"\x07\u202e'
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def graph() -> Graph:
    state = fold(fleet())
    return ancestry(state.models["adapter"][0], state)


@pytest.fixture
def hostile() -> Graph:
    cut = snapshot(source=HOSTILE)
    state = fold([taken(cut), defined(view()), registered("m", cut=cut)])
    return ancestry(state.models["m"][0], state)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.attributes += attrs


def test_mermaid_has_every_node_and_edge(graph: Graph) -> None:
    drawn = mermaid(graph).splitlines()
    assert drawn[0] == "flowchart TD"
    assert sum('["' in line for line in drawn) == len(graph.nodes)
    assert sum("-->" in line for line in drawn) == len(graph.edges)


def test_mermaid_cannot_be_broken_out_of_by_a_path(hostile: Graph) -> None:
    drawn = mermaid(hostile)
    (line,) = (line for line in drawn.splitlines() if "source /data" in line)
    label = line.strip().partition('["')[2].removesuffix('"]')
    assert not set(label) & set('"<>&`')
    assert "#quot;]; click n0 href #quot;x#quot; #lt;b#gt;#amp;#35;1;#96;" in label
    assert drawn.count("-->") == 3


def test_dot_has_every_node_and_edge(graph: Graph) -> None:
    drawn = dot(graph)
    assert drawn.count(" -> ") == len(graph.edges)
    assert drawn.count("shape=") == len(graph.nodes)
    assert drawn.startswith("digraph lineage {")
    assert drawn.endswith("}")


def test_dot_cannot_be_broken_out_of_by_a_path(hostile: Graph) -> None:
    (line,) = (line for line in dot(hostile).splitlines() if "/data/" in line)
    label = re.fullmatch(r'  n\d+ \[shape=cylinder, label="((?:[^"\\]|\\.)*)"\];', line)
    assert label
    assert '\\"]; click' in label[1]
    assert "\x07" not in line


def test_the_drawing_is_well_formed_and_complete(graph: Graph) -> None:
    drawn = ElementTree.fromstring(svg(graph, "Lineage"))
    boxes = [box for box in drawn.iter(f"{SVG}rect") if "box" in box.get("class", "")]
    assert len(boxes) == len(graph.nodes)
    assert [text.text for text in drawn.iter(f"{SVG}text") if text.get("class") == "edge"] == [
        edge.kind for edge in graph.edges
    ]
    written = " ".join(drawn.itertext())
    for said in ("adapter/1", "held-out@", "[2013-01-01, 2013-02-01)", "/data/trips.parquet"):
        assert said in written
    assert "prefers-color-scheme: dark" in written


def test_the_drawing_says_what_is_hostile_as_text(hostile: Graph) -> None:
    drawn = ElementTree.fromstring(svg(hostile, HOSTILE))
    assert {element.tag.removeprefix(SVG) for element in drawn.iter()} <= {
        *("svg", "title", "style", "rect", "path", "g", "text")
    }
    assert "alert(1)" in "".join(drawn.itertext())


@pytest.mark.parametrize("name", ["graph", "hostile"])
def test_the_page_runs_and_fetches_nothing(name: str, request: pytest.FixtureRequest) -> None:
    page = html(request.getfixturevalue(name), HOSTILE, HOSTILE)
    tags = Tags(page)
    assert not {"script", "link", "img", "iframe", "object", "b"} & set(tags.found)
    assert not {key for key, _ in tags.attributes if key.startswith("on") or key in ("href", "src")}
    assert "url(" not in page
    assert "@import" not in page


def test_the_page_lists_every_node_and_what_it_was_made_from(graph: Graph) -> None:
    page = html(graph, "Lineage of adapter/1", "Entry 9.")
    assert page.count("<tr><td>") == len(graph.nodes)
    assert "merged_from left/1" in page
    assert "<title>Lineage of adapter/1</title>" in page


def test_long_labels_are_broken_into_lines() -> None:
    cut = snapshot(source="/a" * 200)
    state = fold([taken(cut), defined(view()), registered("m", cut=cut)])
    drawn = ElementTree.fromstring(svg(ancestry(state.models["m"][0], state), "x"))
    assert float(drawn.get("width", "0")) < 1600
    assert "/a" * 200 in "".join(text.text or "" for text in drawn.iter(f"{SVG}text"))
