"""The lineage graph as pictures: Mermaid and Graphviz sources, and an SVG drawing or web page that needs neither.

Every label comes from outside, a path or a name somebody chose, and is escaped for the form it is written in. The SVG
runs no script, fetches nothing, and follows the reader's light or dark setting.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from html import escape
from string import Template

from snapline.lineage.graph import Edge, Graph, Node
from snapline.lineage.pictures.layout import ARRIVING_GAP, LEAVING_GAP, Layout, Size, layered

_MERMAID_ENTITIES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"})
_DOT_ENTITIES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": " "})
_DOT_SHAPES = {"model": "box", "view": "note", "snapshot": "folder", "source": "cylinder"}
LINE_CHARACTERS, CHARACTER, LINE, PADDING = 44, 7.3, 17.0, 10.0
COLUMN_GAP, MARGIN = 140.0, 12.0

_STYLE = """
.lineage { --paper: #fff; --ink: #1c2430; --soft: #5c6878; --line: #8b97a7;
  --model: #1f5fbf; --view: #7a3fa3; --snapshot: #157347; --source: #96650a;
  font: 12px ui-monospace, Menlo, "DejaVu Sans Mono", monospace; }
@media (prefers-color-scheme: dark) { .lineage { --paper: #14181f; --ink: #e6ebf2; --soft: #9aa7b8; --line: #66738a;
  --model: #7fb0ff; --view: #cf9cf5; --snapshot: #62cf95; --source: #e3b453; } }
.lineage .paper { fill: var(--paper); }
.lineage .box { fill: var(--paper); stroke-width: 1.5; }
.lineage text { fill: var(--ink); }
.lineage .kind { font-size: 10px; font-weight: 700; letter-spacing: .06em; }
.lineage .line { fill: none; stroke: var(--line); stroke-width: 1.3; }
.lineage .head { fill: var(--line); }
.lineage .edge { fill: var(--soft); font-size: 10.5px; paint-order: stroke; stroke: var(--paper);
  stroke-width: 3px; stroke-linejoin: round; }
""" + "".join(
    f".lineage .{kind} {{ stroke: var(--{kind}); }} .lineage .{kind}-kind {{ fill: var(--{kind}); }}\n"
    for kind in _DOT_SHAPES
)

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5c6878; --rule: #dde2e9; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf2; --soft: #9aa7b8; --rule: #2f3846; --paper: #14181f; } }
body { margin: 0 auto; padding: 1.5rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.4rem; margin: 0; } .note { color: var(--soft); margin: .25rem 0 1rem; }
.wide { overflow-x: auto; } svg { display: block; max-width: none; }
table { border-collapse: collapse; margin-top: 1.5rem; font-size: .85rem; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); }
td { overflow-wrap: anywhere; } .code { font-family: ui-monospace, Menlo, "DejaVu Sans Mono", monospace; }
</style>
</head>
<body>
<h1>$title</h1>
<p class="note">$note</p>
<div class="wide">$drawing</div>
<table><thead><tr><th>Kind</th><th>What</th><th>Made from</th></tr></thead><tbody>
$rows
</tbody></table>
</body>
</html>
""")


def mermaid(graph: Graph) -> str:
    """Return the graph as a Mermaid flowchart."""
    names = {node.id: f"n{index}" for index, node in enumerate(graph.nodes)}
    lines = ["flowchart TD"]
    for node in graph.nodes:
        lines.append(f'  {names[node.id]}["{_printable(node.label).translate(_MERMAID_ENTITIES)}"]')
    lines += [f"  {names[edge.source]} -- {edge.kind} --> {names[edge.target]}" for edge in graph.edges]
    return "\n".join(lines)


def dot(graph: Graph) -> str:
    """Return the graph as Graphviz source."""
    names = {node.id: f"n{index}" for index, node in enumerate(graph.nodes)}
    lines = ["digraph lineage {", "  rankdir=LR;", '  node [fontname="monospace", fontsize=10];']
    for node in graph.nodes:
        label = "\n".join(_printable(part) for part in node.label.split("  ")).translate(_DOT_ENTITIES)
        lines.append(f'  {names[node.id]} [shape={_DOT_SHAPES[node.kind]}, label="{label}"];')
    for edge in graph.edges:
        lines.append(f'  {names[edge.source]} -> {names[edge.target]} [label="{edge.kind}", fontsize=9];')
    return "\n".join([*lines, "}"])


def svg(graph: Graph, title: str) -> str:
    """Return the graph as an SVG drawing that stands alone."""
    texts = {node.id: _lines(node) for node in graph.nodes}
    leaving, arriving = Counter(edge.source for edge in graph.edges), Counter(edge.target for edge in graph.edges)
    sizes = {
        name: _size(lines, leaving[name] * LEAVING_GAP, arriving[name] * ARRIVING_GAP) for name, lines in texts.items()
    }
    layout = layered(sizes, [(edge.source, edge.target) for edge in graph.edges], COLUMN_GAP)
    width, height = layout.width + 2 * MARGIN, layout.height + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lineage" role="img" aria-label="{_escaped(title)}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="{-MARGIN:.0f} {-MARGIN:.0f} {width:.0f} {height:.0f}">',
        f"<title>{_escaped(title)}</title><style>{_STYLE}</style>",
        f'<rect class="paper" x="{-MARGIN:.0f}" y="{-MARGIN:.0f}" width="{width:.0f}" height="{height:.0f}"/>',
        *(_curve(points) for points in layout.lines),
        *(_box(node, texts[node.id], sizes[node.id], layout) for node in graph.nodes),
        *(_edge_label(edge, points[0]) for edge, points in zip(graph.edges, layout.lines, strict=True)),
        "</svg>",
    ]
    return "\n".join(parts)


def html(graph: Graph, title: str, note: str) -> str:
    """Return a web page with the drawing and a table of everything on it; it needs nothing else and runs nothing."""
    labels = {node.id: node.label for node in graph.nodes}
    made_from: dict[str, list[str]] = {}
    for edge in graph.edges:
        made_from.setdefault(edge.source, []).append(f"{edge.kind} {labels[edge.target]}")
    rows = "\n".join(
        f'<tr><td>{_escaped(node.kind)}</td><td class="code">{_escaped(node.label)}</td>'
        f"<td>{'<br>'.join(_escaped(text) for text in made_from.get(node.id, []))}</td></tr>"
        for node in graph.nodes
    )
    return _PAGE.substitute(title=_escaped(title), note=_escaped(note), drawing=svg(graph, title), rows=rows)


def _printable(text: str) -> str:
    """Return text without the control characters that no form can carry."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _escaped(text: str) -> str:
    return escape(_printable(text), quote=True)


def _lines(node: Node) -> list[str]:
    """Return a box's lines: the label without its kind, broken at its double spaces and where it is too long."""
    label = node.label.removeprefix(f"{node.kind} ")
    return [
        line
        for part in label.split("  ")
        for line in textwrap.wrap(_printable(part), LINE_CHARACTERS, break_on_hyphens=False) or [""]
    ]


def _size(lines: list[str], leaving: float, arriving: float) -> Size:
    longest = max(map(len, lines))
    return Size(longest * CHARACTER + 2 * PADDING, max((len(lines) + 1) * LINE + PADDING, leaving, arriving))


def _curve(points: tuple[tuple[float, float], ...]) -> str:
    (x, y), (end_x, end_y) = points[0], points[-1]
    path = [f"M{x:.1f} {y:.1f}"]
    for next_x, next_y in (*points[1:-1], (end_x - 7, end_y)):
        half = (next_x - x) / 2
        path.append(f"C{x + half:.1f} {y:.1f} {next_x - half:.1f} {next_y:.1f} {next_x:.1f} {next_y:.1f}")
        x, y = next_x, next_y
    head = f"M{end_x:.1f} {end_y:.1f}l-8 -4v8z"
    return f'<path class="line" d="{"".join(path)}"/><path class="head" d="{head}"/>'


def _box(node: Node, lines: list[str], size: Size, layout: Layout) -> str:
    place = layout.boxes[node.id]
    top, x = place.middle - size.height / 2, place.left + PADDING
    texts = "".join(
        f'<text x="{x:.1f}" y="{top + PADDING / 2 + (number + 1.7) * LINE:.1f}">{_escaped(line)}</text>'
        for number, line in enumerate(lines)
    )
    return (
        f'<g><title>{_escaped(node.id)}</title><rect class="box {node.kind}" x="{place.left:.1f}" y="{top:.1f}" '
        f'width="{place.width:.1f}" height="{size.height:.1f}" rx="5"/>'
        f'<text class="kind {node.kind}-kind" x="{x:.1f}" y="{top + PADDING / 2 + 0.8 * LINE:.1f}">'
        f"{node.kind.upper()}</text>{texts}</g>"
    )


def _edge_label(edge: Edge, start: tuple[float, float]) -> str:
    """Return a line's label, on the line where it leaves its box, where no two labels can meet."""
    return f'<text class="edge" x="{start[0] + 5:.1f}" y="{start[1] - 3:.1f}">{_escaped(edge.kind)}</text>'
