"""What is downstream of a model, a snapshot or a source: everything made from it, however indirectly.

The walk is one recursive query in DuckDB over integer edges, breadth first: each round takes only what no earlier round
reached, so circles end it and what is reached in several ways counts once, at its shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from snapline.lineage import graph, query
from snapline.lineage.cut import bucket_end, parse_instant
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.model import ModelVersion, parse_reference
from snapline.lineage.snapshot import Manifest, Snapshot
from snapline.lineage.state import State

ReadManifest = Callable[[Snapshot], Manifest]
SPELLINGS = (
    "a model (name, name/3, name@champion), a snapshot (name, name@id) or a source (its path, or path@2013-01-24)"
)
# Copied into DuckDB's own storage, in the order of what an edge leads to: a round then skips most of them.
_KEPT = "CREATE TEMP TABLE made_from AS SELECT parent, child, kind FROM edges"
_WALK = """
WITH RECURSIVE reached(node, distance, via) USING KEY (node) AS (
    SELECT node, distance, via FROM roots
    UNION
    SELECT made_from.child, min(reached.distance) + 1, min((made_from.kind::BIGINT << 32) | made_from.parent)
    FROM reached JOIN made_from ON made_from.parent = reached.node
    WHERE NOT EXISTS (SELECT 1 FROM recurring.reached AS earlier WHERE earlier.node = made_from.child)
    GROUP BY made_from.child
)
SELECT node, distance, (via >> 32)::INTEGER AS kind, (via & 4294967295)::INTEGER AS parent
FROM reached WHERE distance > 0 ORDER BY distance, node
"""


@dataclass(frozen=True, slots=True)
class GraphTables:
    """The whole graph with integers for names.

    Attributes:
        nodes: `id`, `kind` and `label` of each node, by name and version; a node's number is its row.
        edges: `child` was made from `parent`, both numbers of nodes, in the way number `kind`; ordered by `parent`.
        kinds: What the numbers of kinds stand for.
    """

    nodes: pa.Table
    edges: pa.Table
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is asked about: how people call it, and the ids of the nodes the walk starts from.

    Attributes:
        cut_from: For a bucket, which is no node, the source it is of: the walk starts at the snapshots that hold it,
            and they are affected themselves.
    """

    name: str
    roots: tuple[str, ...]
    cut_from: str | None = None


def tables_of(state: State) -> GraphTables:
    """Return the graph of everything a state knows."""
    nodes: dict[str, tuple[str, str, str, int]] = {}
    edges: list[graph.Edge] = []
    for snapshot in state.snapshots.values():
        there, source = graph.snapshot_node(snapshot), graph.source_node(snapshot.series.source)
        nodes[there.id] = (there.kind, there.label, snapshot.series.name, 0)
        nodes[source.id] = (source.kind, source.label, snapshot.series.source, 0)
        edges.append(graph.Edge(there.id, "cut_from", source.id))
    for digest, view in state.view_versions.items():
        node = graph.view_node(view.definition.name, digest)
        nodes[node.id] = (node.kind, node.label, view.definition.name, 0)
    for versions in state.models.values():
        for version in versions:
            node = graph.model_node(version)
            nodes[node.id] = (node.kind, node.label, version.key.name, version.key.version)
            edges += graph.edges_of(version)
    return number(nodes, edges)


def number(nodes: Mapping[str, tuple[str, str, str, int]], edges: Sequence[graph.Edge]) -> GraphTables:
    """Return the tables of nodes, given as id to kind, label, name and version, and of edges between them."""
    ordered = sorted(nodes, key=lambda identifier: (*nodes[identifier][2:], identifier))
    numbers = {identifier: place for place, identifier in enumerate(ordered)}
    kinds = {kind: place for place, kind in enumerate(sorted({edge.kind for edge in edges}))}
    columns = {
        "child": pa.array((numbers[edge.source] for edge in edges), pa.int32()),
        "parent": pa.array((numbers[edge.target] for edge in edges), pa.int32()),
        "kind": pa.array((kinds[edge.kind] for edge in edges), pa.int32()),
    }
    named = {
        "id": pa.array(ordered, pa.string()),
        "kind": pa.array((nodes[identifier][0] for identifier in ordered), pa.string()),
        "label": pa.array((nodes[identifier][1] for identifier in ordered), pa.string()),
    }
    return GraphTables(pa.table(named), pa.table(columns).sort_by("parent"), tuple(kinds))


def downstream(tables: GraphTables, subject: Subject) -> pa.Table:
    """Return everything made from a subject, nearest first, then by name.

    Returns:
        Columns `id`, `kind`, `label`, `distance` (edges on a shortest way), and the last edge of one such way: its
        kind `edge`, and `from_id`, the node it leads to.
    """
    ids = tables.nodes["id"]
    via = None
    if subject.cut_from is not None and subject.roots:
        via = tables.kinds.index("cut_from") << 32 | ids.index(subject.cut_from).as_py()
    roots = pa.table(
        {
            "node": pa.array((ids.index(root).as_py() for root in subject.roots), pa.int32()),
            "distance": pa.array([0 if via is None else 1] * len(subject.roots), pa.int32()),
            "via": pa.array([via] * len(subject.roots), pa.int64()),
        }
    )
    (reached,) = query.evaluate({"edges": tables.edges, "roots": roots}, (_KEPT,), (_WALK,))
    return (
        tables.nodes.take(reached["node"])
        .append_column("distance", reached["distance"])
        .append_column("edge", pa.array(tables.kinds, pa.string()).take(reached["kind"]))
        .append_column("from_id", ids.take(reached["parent"]))
    )


def subject_of(text: str, state: State, read: ReadManifest) -> Subject:
    """Return what a person asks about; `model:`, `snapshot:` or `source:` before it says which is meant.

    Args:
        text: One of `SPELLINGS`.
        state: Where it is looked up.
        read: Reads a snapshot's manifest; asked only for a bucket.

    Raises:
        DefinitionError: It may mean several things, or what follows the source's `@` is no bucket.
        NotFoundError: It is nothing the ledger knows.
    """
    kind, colon, rest = text.partition(":")
    named = colon and kind in ("model", "snapshot", "source")
    wanted = rest if named else text
    found: list[Subject] = []
    if not named or kind == "model":
        found += [Subject(f"model {model.key}", (f"model:{model.key}",)) for model in _model(wanted, state)]
    if not named or kind == "snapshot":
        with suppress(NotFoundError):
            snapshot = state.snapshot(wanted)
            found.append(Subject(f"snapshot {snapshot.series.name}@{snapshot.id[:12]}", (f"snapshot:{snapshot.id}",)))
    if not named or kind == "source":
        found += _source(wanted, state, read)
    if not found:
        raise NotFoundError(f"the ledger knows no model, snapshot or source {text!r}", hint=f"Give {SPELLINGS}.")
    if len(found) > 1:
        raise DefinitionError(
            f"{text!r} may mean {' or '.join(subject.name for subject in found)}",
            hint=f"Write model:{wanted}, snapshot:{wanted} or source:{wanted}.",
        )
    return found[0]


def _model(text: str, state: State) -> list[ModelVersion]:
    with suppress(DefinitionError, NotFoundError):
        return [state.resolve(parse_reference(text))]
    return []


def _source(text: str, state: State, read: ReadManifest) -> list[Subject]:
    """Return the source of that spelling: as it is stored, or by the name of a series cut from it with a bucket."""
    sources = {snapshot.series.source for snapshot in state.snapshots.values()}
    if text in sources:
        return [Subject(f"source {text}", (f"source:{text}",))]
    place, at, label = text.rpartition("@")
    series = state.series.get(place)
    source = state.snapshots[series[-1]].series.source if series else place
    if not at or source not in sources:
        return []
    try:
        span = _span(label)
    except DefinitionError:
        if series:
            # Then it was meant as the beginning of an id, which no snapshot has.
            return []
        raise
    held = [s for s in state.snapshots.values() if s.series.source == source and _holds(s, span, read)]
    return [Subject(f"bucket {label} of source {source}", tuple(f"snapshot:{s.id}" for s in held), f"source:{source}")]


def _span(label: str) -> tuple[datetime, datetime]:
    """Return the first instant of what a label names and the first one after it: an hour if it says one, else a day."""
    start = parse_instant(label)
    return start, start + (timedelta(hours=1) if "T" in label else timedelta(days=1))


def _holds(snapshot: Snapshot, span: tuple[datetime, datetime], read: ReadManifest) -> bool:
    """Return whether any bucket of a snapshot that holds rows overlaps a span, however wide its buckets are."""
    if span[1] <= snapshot.cut.since or snapshot.cut.until <= span[0]:
        return False
    return any(
        parse_instant(bucket.label) < span[1] and span[0] < bucket_end(bucket.label, snapshot.series.bucket)
        for bucket in read(snapshot).buckets
        if bucket.rows
    )
