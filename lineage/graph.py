"""The lineage graph of a model: its snapshots, its view and the models it came from, all the way down."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from snapline.lineage.digest import short
from snapline.lineage.model import ModelVersion, VersionKey
from snapline.lineage.snapshot import Snapshot
from snapline.lineage.state import State


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
    """Return everything a version was made from, transitively; what it was evaluated or calibrated on as well."""
    nodes: dict[str, Node] = {}
    edges: dict[Edge, None] = {}
    waiting = deque([model])
    while waiting:
        version = waiting.popleft()
        here = model_node(version)
        if here.id in nodes:
            continue
        nodes[here.id] = here
        if version.view and version.view_name:
            view = view_node(version.view_name, version.view)
            nodes[view.id] = view
        for edge in edges_of(version):
            edges[edge] = None
            snapshot = state.snapshots.get(edge.target.removeprefix("snapshot:"))
            if snapshot:
                there, source = snapshot_node(snapshot), source_node(snapshot.series.source)
                nodes[there.id], nodes[source.id] = there, source
                edges[Edge(there.id, "cut_from", source.id)] = None
        waiting.extend(state.models[parent.model.name][parent.model.version - 1] for parent in version.parents)
    return Graph(tuple(nodes.values()), tuple(edges))


def edges_of(version: ModelVersion) -> list[Edge]:
    """Return the edges that lead from a version to what it came from."""
    here = f"model:{version.key}"
    edges = [Edge(here, "materializes", f"view:{version.view}")] if version.view else []
    edges += [Edge(here, "trained_on", f"snapshot:{identifier}") for identifier in version.snapshots]
    edges += [Edge(here, use.kind.value, f"snapshot:{use.snapshot}") for use in version.uses]
    return edges + [Edge(here, parent.kind.value, f"model:{parent.model}") for parent in version.parents]


def model_node(version: ModelVersion) -> Node:
    """Return the node of a model version."""
    return Node(f"model:{version.key}", "model", f"{version.key}  weights {short(version.weights.digest)}")


def view_node(name: str, digest: str) -> Node:
    """Return the node of one definition of a view."""
    return Node(f"view:{digest}", "view", f"view {name}  {short(digest)}")


def snapshot_node(snapshot: Snapshot) -> Node:
    """Return the node of a snapshot."""
    window = f"[{snapshot.cut.since.date()}, {snapshot.cut.until.date()})"
    label = f"snapshot {snapshot.series.name}@{snapshot.id[:12]}  {window}  {snapshot.rows} rows"
    return Node(f"snapshot:{snapshot.id}", "snapshot", label)


def source_node(source: str) -> Node:
    """Return the node of a table that snapshots were cut from."""
    return Node(f"source:{source}", "source", f"source {source}")


def document(graph: Graph) -> dict[str, Any]:
    """Return the graph as plain JSON values."""
    return {
        "nodes": [{"id": node.id, "kind": node.kind, "label": node.label} for node in graph.nodes],
        "edges": [{"from": edge.source, "kind": edge.kind, "to": edge.target} for edge in graph.edges],
    }


def tree(graph: Graph, root: VersionKey) -> str:
    """Return the graph as an indented tree from `root`; what was shown before is named again, its parts are not."""
    labels = {node.id: node.label for node in graph.nodes}
    parts: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        parts.setdefault(edge.source, []).append(edge)
    lines = [labels[f"model:{root}"]]
    shown = {f"model:{root}"}
    waiting = [(edge, "") for edge in reversed(parts.get(f"model:{root}", []))]
    while waiting:
        edge, indent = waiting.pop()
        last = not waiting or waiting[-1][0].source != edge.source
        below = parts.get(edge.target, [])
        again = " (shown above)" if below and edge.target in shown else ""
        lines.append(f"{indent}{'└─' if last else '├─'} {edge.kind} {labels[edge.target]}{again}")
        if not again:
            deeper = indent + ("   " if last else "│  ")
            waiting += [(child, deeper) for child in reversed(below)]
        shown.add(edge.target)
    return "\n".join(lines)
