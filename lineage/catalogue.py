"""The ledger as tables that SQL can ask: the documented schema, and how each table is made.

The names and types here are a promise to whoever keeps a query: a column is added at the end of its table, never
renamed or taken away. Tables are made one at a time, when a question names them. Instants are in UTC, digests are full,
and NULL means that nobody said, never zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from snapline.lineage import graph
from snapline.lineage.events import ModelRegistered, ViewDefined, encode
from snapline.lineage.ledger import Record
from snapline.lineage.snapshot import Manifest, Snapshot
from snapline.lineage.state import State

Row = dict[str, Any]
TYPES: dict[str, pa.DataType] = {
    "VARCHAR": pa.string(),
    "VARCHAR[]": pa.list_(pa.string()),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
}
_TEXT, _TEXTS, _COUNT, _FLAG, _INSTANT = "VARCHAR", "VARCHAR[]", "BIGINT", "BOOLEAN", "TIMESTAMP WITH TIME ZONE"


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name, its type as DuckDB spells it (one of `TYPES`), and what it means."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table's name, what one row of it is, and its columns."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def arrow(self) -> pa.Schema:
        """The same for Arrow."""
        return pa.schema([(column.name, TYPES[column.type]) for column in self.columns])

    def table(self, rows: Iterable[Row]) -> pa.Table:
        """Return rows as a table; every row has every column."""
        found = list(rows)
        return pa.table(
            [pa.array([row[field.name] for row in found], field.type) for field in self.arrow], schema=self.arrow
        )


def schema_of(name: str, meaning: str, *columns: tuple[str, str, str]) -> TableSchema:
    """Return a table's schema; each column is its name, its type and what it means."""
    return TableSchema(name, meaning, tuple(Column(*column) for column in columns))


MODELS = schema_of(
    "models",
    "a model, by name",
    ("name", _TEXT, "its name"),
    ("versions", _COUNT, "how many versions it has"),
    ("newest", _TEXT, "id of its newest version"),
    ("aliases", _TEXTS, "aliases that some version holds"),
)
VERSIONS = schema_of(
    "versions",
    "a model version",
    ("id", _TEXT, "name/number"),
    ("model", _TEXT, "name of the model"),
    ("version", _COUNT, "its number, from 1"),
    ("registered_at", _INSTANT, "when it was recorded"),
    ("weights", _TEXT, "digest of its weights"),
    ("path", _TEXT, "where the weights lie"),
    ("size_bytes", _COUNT, "size of the weights"),
    ("view", _TEXT, "name of the view it materializes"),
    ("view_digest", _TEXT, "the definition that ran; views.digest"),
    ("contract", _TEXT, "contract its gate requires"),
    ("materialize_seconds", _COUNT, "how long its trainer took"),
    ("aliases", _TEXTS, "aliases it holds"),
    ("targets", _TEXTS, "targets it was promoted for, of the aliases it holds"),
    ("attestations", _COUNT, "signed statements about it"),
    ("leaked", _FLAG, "whether a leakage check in force found offending rows; NULL when never checked"),
    ("retired", _FLAG, "whether it must not be served again"),
)
SNAPSHOTS = schema_of(
    "snapshots",
    "a snapshot: the rows of a table inside one cut",
    ("id", _TEXT, "its identity"),
    ("name", _TEXT, "name of its series"),
    ("source", _TEXT, "where the rows lie"),
    ("time_column", _TEXT, "column with each row's event time"),
    ("known_column", _TEXT, "column with the instant a row became known"),
    ("known_until_column", _TEXT, "column with the instant a row stopped being true"),
    ("key_column", _TEXT, "column that identifies a row"),
    ("bucket", _TEXT, "width of its buckets"),
    ("since", _INSTANT, "first instant of the window"),
    ("until", _INSTANT, "first instant after the window"),
    ("as_of", _INSTANT, "rows known later are left out"),
    ("digest", _TEXT, "digest of the rows"),
    ("rows", _COUNT, "how many rows"),
    ("buckets", _COUNT, "how many buckets hold rows"),
    ("commit_id", _TEXT, "the state of the source that was read"),
    ("commit_at", _INSTANT, "when the source says it was committed"),
    ("taken_at", _INSTANT, "when it was recorded"),
    ("compared_at", _INSTANT, "when it was last held against its source"),
    ("restated", _FLAG, "whether rows of the cut differed then; NULL when never compared"),
    ("lag", _COUNT, "commits the source had made since; NULL without history"),
    ("newer", _COUNT, "rows after the window at that comparison"),
)
BUCKETS = schema_of(
    "buckets",
    "a time bucket of a snapshot, with what changed in it by the newest comparison",
    ("snapshot", _TEXT, "snapshots.id"),
    ("label", _TEXT, "its first day, or first instant for hours"),
    ("rows", _COUNT, "rows then"),
    ("hexdigest", _TEXT, "digest of the rows; NULL for a bucket that had none"),
    ("left_out", _COUNT, "rows left out as known after as-of"),
    ("rows_now", _COUNT, "rows at the newest comparison; NULL when never compared"),
    ("appended", _COUNT, "new keys that claim to have been known at the cut"),
    ("corrected", _COUNT, "keys with another content"),
    ("deleted", _COUNT, "keys that are gone"),
    ("late", _COUNT, "new keys that became known after the cut"),
)
VIEWS = schema_of(
    "views",
    "a definition of a view; redefining one adds a row",
    ("digest", _TEXT, "identity of what it computes"),
    ("name", _TEXT, "its name"),
    ("newest", _FLAG, "whether it is the definition in force"),
    ("defined_at", _INSTANT, "when it was last recorded"),
    ("inputs", _TEXTS, "series it reads"),
    ("query", _TEXT, "its SQL"),
    ("base_model", _TEXT, "the model it starts from"),
    ("argv", _TEXTS, "the trainer's command"),
    ("seed", _COUNT, "the trainer's seed"),
    ("max_age_seconds", _COUNT, "policy: oldest cut allowed"),
    ("max_delta_rows", _COUNT, "policy: most rows that may differ"),
    ("max_lag", _COUNT, "policy: most source commits after the cut"),
    ("on_restatement", _TEXT, "policy: block or warn"),
    ("on_erasure", _TEXT, "policy: block or retire"),
    ("slide_seconds", _COUNT, "policy: length of a window that moves on with time"),
)
EVENTS = schema_of(
    "events",
    "an entry of the ledger",
    ("entry", _COUNT, "its place, from 1"),
    ("digest", _TEXT, "digest of the chain up to it"),
    ("recorded_at", _INSTANT, "when it was recorded"),
    ("kind", _TEXT, "what happened"),
    ("body", _TEXT, "the event as JSON; body->>'$.model.name' reads a field"),
)
EDGES = schema_of(
    "edges",
    "one thing made from another",
    ("from_id", _TEXT, "what was made: model:name/1 or snapshot:ID"),
    ("from_kind", _TEXT, "model or snapshot"),
    ("kind", _TEXT, "trained_on, evaluated_on, calibrated_on, materializes, cut_from, fine_tuned_from, ..."),
    ("to_id", _TEXT, "what it was made from: model:name/1, snapshot:ID, view:DIGEST or source:URL"),
    ("to_kind", _TEXT, "model, snapshot, view or source"),
)
ROLLOUTS = schema_of(
    "rollouts",
    "a rollout, as it stands",
    ("name", _TEXT, "its name"),
    ("version", _TEXT, "versions.id"),
    ("target", _TEXT, "name of the deployment target"),
    ("contract", _TEXT, "name of the contract whose stages it goes through"),
    ("stage", _TEXT, "the stage it is in; NULL once it ended"),
    ("entered_at", _INSTANT, "when it entered that stage, or ended"),
    ("certificate", _TEXT, "attestation that let it into the stage; NULL for the first, a demotion and the end"),
    ("looks", _COUNT, "logs read in the stage"),
    ("requests", _COUNT, "requests its monitor counted in the stage"),
    ("escalations", _COUNT, "violations acted on since it was started"),
    ("blocked", _FLAG, "whether one of them shut the version's gate"),
    ("reference_slices", _TEXTS, "slices whose traffic goes to the reference"),
)
SCHEMA = (MODELS, VERSIONS, SNAPSHOTS, BUCKETS, VIEWS, EVENTS, EDGES, ROLLOUTS)


@dataclass(frozen=True, slots=True)
class Facts:
    """What tables are made of: what the ledger says, its entries, and how a snapshot's manifest is read."""

    state: State
    records: Sequence[Record]
    read: Callable[[Snapshot], Manifest]


def tables(facts: Facts) -> Mapping[str, Callable[[], pa.Table]]:
    """Return how to make each table of `SCHEMA`, by name."""
    return {
        "models": lambda: MODELS.table(_models(facts.state)),
        "versions": lambda: VERSIONS.table(_versions(facts)),
        "snapshots": lambda: SNAPSHOTS.table(_snapshots(facts.state)),
        "buckets": lambda: BUCKETS.table(_buckets(facts)),
        "views": lambda: VIEWS.table(_views(facts)),
        "events": lambda: EVENTS.table(_events(facts.records)),
        "edges": lambda: EDGES.table(_edges(facts.state)),
        "rollouts": lambda: ROLLOUTS.table(_rollouts(facts.state)),
    }


def mentioned(sql: str, names: Iterable[str]) -> list[str]:
    """Return the names that occur as words in a query: no fewer than the tables it reads."""
    return [name for name in names if re.search(rf"\b{re.escape(name)}\b", sql, re.IGNORECASE)]


def _models(state: State) -> Iterable[Row]:
    for name, versions in sorted(state.models.items()):
        held = {alias for (model, alias), stack in state.holders.items() if model == name and stack}
        yield {"name": name, "versions": len(versions), "newest": str(versions[-1].key), "aliases": sorted(held)}


def _versions(facts: Facts) -> Iterable[Row]:
    state = facts.state
    registered = {r.event.model.key: r.event.at for r in facts.records if isinstance(r.event, ModelRegistered)}
    held: dict[object, list[tuple[str, str]]] = {}
    for (_, alias), stack in sorted(state.holders.items()):
        if stack:
            held.setdefault(stack[-1].model, []).append((alias, stack[-1].target))
    for version in (version for _, versions in sorted(state.models.items()) for version in versions):
        checks = state.leakage.get(version.key)
        yield {
            "id": str(version.key),
            "model": version.key.name,
            "version": version.key.version,
            "registered_at": registered.get(version.key),
            "weights": version.weights.digest,
            "path": version.weights.path,
            "size_bytes": version.weights.size_bytes,
            "view": version.view_name,
            "view_digest": version.view,
            "contract": version.contract,
            "materialize_seconds": version.materialize_seconds,
            "aliases": [alias for alias, _ in held.get(version.key, ())],
            "targets": sorted({target for _, target in held.get(version.key, ())}),
            "attestations": len(state.attestations.get(version.key, ())),
            "leaked": any(check.leaked for check in checks) if checks else None,
            "retired": version.key in state.retired,
        }


def _snapshots(state: State) -> Iterable[Row]:
    for snapshot in _in_order(state):
        compared = state.comparisons.get(snapshot.id)
        series, cut = snapshot.series, snapshot.cut
        yield {
            "id": snapshot.id,
            "name": series.name,
            "source": series.source,
            "time_column": series.time,
            "known_column": series.known,
            "known_until_column": series.known_until,
            "key_column": series.key,
            "bucket": series.bucket.value,
            "since": cut.since,
            "until": cut.until,
            "as_of": cut.as_of,
            "digest": snapshot.digest,
            "rows": snapshot.rows,
            "buckets": snapshot.buckets,
            "commit_id": snapshot.commit.id,
            "commit_at": snapshot.commit.at,
            "taken_at": snapshot.taken_at,
            "compared_at": compared.at if compared else None,
            "restated": compared.comparison.restated if compared else None,
            "lag": compared.comparison.lag if compared else None,
            "newer": compared.comparison.newer if compared else None,
        }


def _buckets(facts: Facts) -> Iterable[Row]:
    for snapshot in _in_order(facts.state):
        manifest, compared = facts.read(snapshot), facts.state.comparisons.get(snapshot.id)
        held = {bucket.label: bucket for bucket in manifest.buckets}
        left_out = {bucket.label: bucket.rows for bucket in manifest.left_out}
        changes = {change.label: change for change in compared.comparison.changed} if compared else {}
        for label in sorted(held.keys() | left_out.keys() | changes.keys()):
            bucket, change = held.get(label), changes.get(label)
            rows = bucket.rows if bucket else 0
            unchanged = 0 if compared else None
            row: Row = {
                "snapshot": snapshot.id,
                "label": label,
                "rows": rows,
                "hexdigest": bucket.hexdigest if bucket else None,
                "left_out": left_out.get(label, 0),
                "rows_now": change.rows_now if change else rows if compared else None,
            }
            kinds = ("appended", "corrected", "deleted", "late")
            yield row | {kind: getattr(change, kind) if change else unchanged for kind in kinds}


def _in_order(state: State) -> Iterable[Snapshot]:
    return (state.snapshots[identifier] for _, ids in sorted(state.series.items()) for identifier in ids)


def _views(facts: Facts) -> Iterable[Row]:
    state = facts.state
    defined = {r.event.view.digest: r.event.at for r in facts.records if isinstance(r.event, ViewDefined)}
    for digest, view in sorted(state.view_versions.items(), key=lambda item: (item[1].definition.name, item[0])):
        definition, policy = view.definition, view.definition.refresh
        yield {
            "digest": digest,
            "name": definition.name,
            "newest": state.views[definition.name].digest == digest,
            "defined_at": defined.get(digest),
            "inputs": sorted(set(definition.inputs.values())),
            "query": definition.query,
            "base_model": definition.base_model,
            "argv": list(definition.trainer.argv),
            "seed": definition.trainer.seed,
            "max_age_seconds": _seconds(policy.max_age),
            "max_delta_rows": policy.max_delta_rows,
            "max_lag": policy.max_lag,
            "on_restatement": policy.on_restatement.value,
            "on_erasure": policy.on_erasure.value,
            "slide_seconds": _seconds(policy.slide),
        }


def _seconds(duration: timedelta | None) -> int | None:
    return None if duration is None else int(duration.total_seconds())


def _events(records: Sequence[Record]) -> Iterable[Row]:
    for record in records:
        event = record.event
        body = encode(event).decode()
        yield {"entry": record.seq, "digest": record.digest, "recorded_at": event.at, "kind": event.kind, "body": body}


def _edges(state: State) -> Iterable[Row]:
    cuts = [graph.Edge(f"snapshot:{s.id}", "cut_from", f"source:{s.series.source}") for s in _in_order(state)]
    made = (edge for _, versions in sorted(state.models.items()) for v in versions for edge in graph.edges_of(v))
    for edge in (*made, *cuts):
        yield {
            "from_id": edge.source,
            "from_kind": edge.source.partition(":")[0],
            "kind": edge.kind,
            "to_id": edge.target,
            "to_kind": edge.target.partition(":")[0],
        }


def _rollouts(state: State) -> Iterable[Row]:
    for name, rollout in sorted(state.rollouts.items()):
        now = rollout.now
        yield {
            "name": name,
            "version": str(now.model),
            "target": now.target,
            "contract": now.contract,
            "stage": now.stage,
            "entered_at": now.at,
            "certificate": now.envelope,
            "looks": len(rollout.looks),
            "requests": sum(look.requests for look in rollout.looks),
            "escalations": len(rollout.escalations),
            "blocked": rollout.blocked,
            "reference_slices": sorted(rollout.reference_slices),
        }
