from __future__ import annotations

import json
from typing import Any

import pytest
from histories import (
    DAY,
    START,
    attested,
    defined,
    digest,
    fleet,
    key,
    promoted,
    records,
    registered,
    snapshot,
    taken,
    view,
)

from snapline.lineage.catalogue import SCHEMA, TYPES, Facts, mentioned, tables
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.events import (
    Escalated,
    Initialized,
    LeakageChecked,
    LineageEvent,
    Observed,
    Retired,
    RuleFinding,
    SourceCompared,
    StageEntered,
)
from snapline.lineage.query import select
from snapline.lineage.snapshot import BucketChange, BucketCount, BucketDigest, Commit, Comparison, Manifest
from snapline.lineage.state import fold

MANIFEST = Manifest(
    columns=(),
    buckets=tuple(BucketDigest(label=f"2013-01-0{n}", rows=3, hexdigest=str(n) * 64) for n in (1, 2)),
    files=(),
    left_out=(BucketCount(label="2013-01-02", rows=4),),
)


def facts(*events: LineageEvent) -> Facts:
    return Facts(fold(events), records(events), lambda _: MANIFEST)


def ask(sql: str, *events: LineageEvent) -> list[dict[str, Any]]:
    made = tables(facts(*(events or fleet())))
    rows: list[dict[str, Any]] = select(sql, {name: made[name]() for name in mentioned(sql, made)}).to_pylist()
    return rows


@pytest.mark.parametrize("table", SCHEMA, ids=lambda table: table.name)
def test_each_table_is_what_the_schema_says(table: Any) -> None:
    """For an empty ledger and a full one; DuckDB's names of the types are those documented."""
    for events in ([], fleet()):
        made = tables(facts(*events))[table.name]()
        assert made.schema.equals(table.arrow)
        described = select(f"DESCRIBE {table.name}", {table.name: made}).to_pylist()
        assert [(row["column_name"], row["column_type"]) for row in described] == [
            (column.name, column.type) for column in table.columns
        ]


@pytest.mark.parametrize("table", SCHEMA, ids=lambda table: table.name)
def test_each_column_can_be_named_without_quotes(table: Any) -> None:
    made = {table.name: table.arrow.empty_table()}
    for column in table.columns:
        assert select(f"SELECT {column.name} FROM {table.name} GROUP BY {column.name}", made).num_rows == 0


def test_the_promised_tables_and_columns_are_there() -> None:
    """Whoever keeps a query relies on these; to rename one is to break it."""
    promised = {
        "models": "name versions newest aliases",
        "versions": "id model version registered_at weights path size_bytes view view_digest contract "
        "materialize_seconds aliases targets attestations leaked retired",
        "snapshots": "id name source time_column known_column known_until_column key_column bucket since until as_of "
        "digest rows buckets commit_id commit_at taken_at compared_at restated lag newer",
        "buckets": "snapshot label rows hexdigest left_out rows_now appended corrected deleted late",
        "views": "digest name newest defined_at inputs query base_model argv seed max_age_seconds max_delta_rows "
        "max_lag on_restatement on_erasure slide_seconds",
        "events": "entry digest recorded_at kind body",
        "edges": "from_id from_kind kind to_id to_kind",
        "rollouts": "name version target contract stage entered_at certificate looks requests escalations blocked "
        "reference_slices",
    }
    found = {table.name: " ".join(column.name for column in table.columns) for table in SCHEMA}
    for name, columns in promised.items():
        assert found[name].startswith(columns)
    assert all(column.type in TYPES and column.meaning for table in SCHEMA for column in table.columns)


def test_versions_say_who_relies_on_them() -> None:
    leaked = LeakageChecked(
        at=START,
        model=key("left"),
        name="rules",
        rules=digest("r"),
        rows=digest("r"),
        findings=(RuleFinding(rule="later", rows=2),),
    )
    clean = leaked.model_copy(update={"model": key("right"), "findings": (RuleFinding(rule="later", rows=0),)})
    again = promoted("merged", "staging", "canary")
    retired = Retired(at=START, model=key("apart"))
    rows = ask(
        "SELECT id, aliases, targets, attestations, leaked, retired FROM versions ORDER BY id",
        *fleet(), again, attested("merged", "other"), leaked, clean, retired,
    )  # fmt: skip
    assert {row["id"]: row["leaked"] for row in rows} == {
        "adapter/1": None, "apart/1": None, "base/1": None, "left/1": True, "merged/1": None, "right/1": False
    }  # fmt: skip
    (merged,) = (row for row in rows if row["id"] == "merged/1")
    assert (merged["aliases"], merged["targets"]) == (["champion", "staging"], ["canary", "production"])
    assert merged["attestations"] == 2
    assert [row["id"] for row in rows if row["retired"]] == ["apart/1"]


def test_a_version_keeps_the_instant_it_was_recorded() -> None:
    (row,) = ask("SELECT registered_at, view, weights FROM versions WHERE id = 'left/1'")
    assert row["registered_at"] == START + 2 * DAY
    assert row["view"] == "delays"


def test_models_name_their_newest_version_and_aliases() -> None:
    rows = ask("FROM models ORDER BY name", registered("m/1"), registered("m/2"), promoted("m/1", "champion"))
    assert rows == [{"name": "m", "versions": 2, "newest": "m/2", "aliases": ["champion"]}]


def test_buckets_tell_the_newest_comparison() -> None:
    cut = snapshot()
    changes = (
        BucketChange(label="2013-01-01", rows_then=3, rows_now=5, corrected=1, late=2),
        BucketChange(label="2013-01-03", rows_then=0, rows_now=1, appended=1),
    )
    compared = SourceCompared(
        at=START,
        snapshot=cut.id,
        files=digest("f"),
        comparison=Comparison(changed=changes, commit=Commit(id="2"), lag=3),
    )
    sql = "SELECT label, rows, hexdigest IS NULL AS new, left_out, rows_now, appended, corrected, late FROM buckets"
    assert [tuple(row.values()) for row in ask(sql, taken(cut))] == [
        ("2013-01-01", 3, False, 0, None, None, None, None),
        ("2013-01-02", 3, False, 4, None, None, None, None),
    ]
    assert [tuple(row.values()) for row in ask(sql, taken(cut), compared)] == [
        ("2013-01-01", 3, False, 0, 5, 0, 1, 2),
        ("2013-01-02", 3, False, 4, 3, 0, 0, 0),
        ("2013-01-03", 0, True, 0, 1, 1, 0, 0),
    ]
    (row,) = ask("SELECT restated, lag, newer, compared_at FROM snapshots", taken(cut), compared)
    assert row == {"restated": True, "lag": 3, "newer": 0, "compared_at": START}


def test_each_definition_of_a_view_is_a_row() -> None:
    old, new = view(seed=7), view(seed=8, max_age="2d")
    rows = ask("SELECT seed, newest, max_age_seconds, defined_at FROM views ORDER BY seed",
               defined(old), defined(new, START + DAY))  # fmt: skip
    assert rows == [
        {"seed": 7, "newest": False, "max_age_seconds": None, "defined_at": START},
        {"seed": 8, "newest": True, "max_age_seconds": 172_800, "defined_at": START + DAY},
    ]


def test_events_are_whole_and_their_fields_can_be_read() -> None:
    first = Initialized(at=START, algorithm=BulkAlgorithm.BLAKE3, salt="0" * 64)
    rows = ask("SELECT entry, kind, body->>'$.model.key.name' AS name, body FROM events", first, registered("m"))
    assert [(row["entry"], row["kind"], row["name"]) for row in rows] == [
        (1, "initialized", None),
        (2, "model-registered", "m"),
    ]
    assert json.loads(rows[1]["body"])["model"]["weights"]["path"] == "/weights/m"


def test_edges_join_with_versions_and_snapshots() -> None:
    rows = ask(
        "SELECT v.id, s.name FROM edges e JOIN versions v ON e.from_id = 'model:' || v.id "
        "JOIN snapshots s ON e.to_id = 'snapshot:' || s.id WHERE e.kind = 'evaluated_on'"
    )
    assert rows == [{"id": "merged/1", "name": "held-out"}]
    kinds = {row["kind"] for row in ask("SELECT DISTINCT kind FROM edges")}
    assert {"trained_on", "evaluated_on", "materializes", "cut_from", "merged_from", "adapter_of"} <= kinds


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("SELECT * FROM Versions JOIN edges ON true", ["versions", "edges"]),
        ('SELECT * FROM "snapshots"', ["snapshots"]),
        ("SELECT 1 AS models_or_so", []),
        ("FROM query('FROM buckets')", ["buckets"]),
        ("FROM a JOIN b USING (id) WHERE x = 'events'", ["events"]),
    ],
)
def test_only_tables_a_query_mentions_are_made(sql: str, named: list[str]) -> None:
    assert mentioned(sql, [table.name for table in SCHEMA]) == named


def test_rollouts_stand_as_the_ledger_says() -> None:
    at = {"at": START, "rollout": "r"}
    place = {"model": key("left"), "target": "production", "contract": "tiny"}
    wrong = {"clause": "tv_answer", "slice": "de", "verdict": "REFUTED", "acts": ("block",), "until": START + DAY}
    events = [
        *fleet(),
        StageEntered(**at, **place, stage="shadow"),
        StageEntered(**at, **place, stage="canary", envelope=digest("e")),
        *(Observed(**at, stage="canary", monitor=digest("m"), log=digest("l"), requests=n) for n in (3, 4)),
        Escalated(**at, **wrong, blocks=True, reference_slices=("de",)),
    ]
    (row,) = ask("SELECT * FROM rollouts", *events)
    assert (row["version"], row["stage"], row["certificate"]) == ("left/1", "canary", digest("e"))
    assert (row["looks"], row["requests"], row["escalations"]) == (2, 7, 1)
    assert (row["blocked"], row["reference_slices"]) == (True, ["de"])
