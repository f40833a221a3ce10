"""The lineage graph of a model: its snapshots, its view and the models it came from, all the way down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from snapline.lineage.digest import short
from snapline.lineage.model import ModelVersion, VersionKey
from snapline.lineage.state import State

_MERMAID_ENTITIES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"})


@dataclass(frozen=True, slots=True)
class Node:
    """Something a model was made from, or the model itself; `id` is unique in the graph."""

    id: str
    kind: str
    label: str


@dataclass(frozen=True, slots=True)
class Edge:
    """`source` was made from `target` in the way `kind` names."""

    source: str
    kind: str
    target: str


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes and edges, each once, in the order a walk from the model meets them."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def ancestry(model: ModelVersion, state: State) -> Graph:
    """Return everything a version was made from, transitively."""
    nodes: dict[str, Node] = {}
    edges: dict[Edge, None] = {}
    waiting = [model]
    while waiting:
        version = waiting.pop(0)
        here = f"model:{version.key}"
        if here in nodes:
            continue
        nodes[here] = Node(here, "model", f"{version.key}  weights {short(version.weights.digest)}")
        if version.view:
            view = f"view:{version.view}"
            nodes[view] = Node(view, "view", f"view {version.view_name}  {short(version.view)}")
            edges[Edge(here, "materializes", view)] = None
        for identifier in version.snapshots:
            snapshot = state.snapshots[identifier]
            there, source = f"snapshot:{identifier}", f"source:{snapshot.series.source}"
            window = f"[{snapshot.cut.since.date()}, {snapshot.cut.until.date()})"
            label = f"snapshot {snapshot.series.name}@{identifier[:12]}  {window}  {snapshot.rows} rows"
            nodes[there] = Node(there, "snapshot", label)
            nodes[source] = Node(source, "source", f"source {snapshot.series.source}")
            edges[Edge(here, "trained_on", there)] = None
            edges[Edge(there, "cut_from", source)] = None
        for parent in version.parents:
            edges[Edge(here, parent.kind.value, f"model:{parent.model}")] = None
            waiting.append(state.models[parent.model.name][parent.model.version - 1])
    return Graph(tuple(nodes.values()), tuple(edges))


def document(graph: Graph) -> dict[str, Any]:
    """Return the graph as plain JSON values."""
    return {
        "nodes": [{"id": node.id, "kind": node.kind, "label": node.label} for node in graph.nodes],
        "edges": [{"from": edge.source, "kind": edge.kind, "to": edge.target} for edge in graph.edges],
    }


def tree(graph: Graph, root: VersionKey) -> str:
    """Return the graph as an indented tree from `root`."""
    labels = {node.id: node.label for node in graph.nodes}
    lines = [labels[f"model:{root}"]]

    def walk(identifier: str, indent: str) -> None:
        children = [edge for edge in graph.edges if edge.source == identifier]
        for edge in children:
            last = edge is children[-1]
            lines.append(f"{indent}{'└─' if last else '├─'} {edge.kind} {labels[edge.target]}")
            walk(edge.target, indent + ("   " if last else "│  "))

    walk(f"model:{root}", "")
    return "\n".join(lines)


def mermaid(graph: Graph) -> str:
    """Return the graph as a Mermaid flowchart."""
    names = {node.id: f"n{index}" for index, node in enumerate(graph.nodes)}
    lines = ["flowchart TD"]
    for node in graph.nodes:
        lines.append(f'  {names[node.id]}["{node.label.translate(_MERMAID_ENTITIES)}"]')
    lines += [f"  {names[edge.source]} -- {edge.kind} --> {names[edge.target]}" for edge in graph.edges]
    return "\n".join(lines)
