from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from workbench import Home, Replayed

from snapline.contracts.catalogue import SCHEMA, certificates_of, tables
from snapline.contracts.evidence import SCHEMA as EVIDENCE
from snapline.lineage.catalogue import TYPES
from snapline.lineage.errors import IntegrityError
from snapline.lineage.query import select


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home whose model was certified once."""
    home = Home(tmp_path)
    home.certify(home.register(), Replayed())
    return home


def made(home: Home) -> Mapping[str, Callable[[], pa.Table]]:
    return tables(lambda: certificates_of(home.state, home.inspector().read), home.objects)


def ask(home: Home, sql: str, *names: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = select(sql, {name: made(home)[name]() for name in names}).to_pylist()
    return rows


@pytest.mark.parametrize("table", SCHEMA, ids=lambda table: table.name)
def test_each_table_is_what_the_schema_says(table: Any, home: Home) -> None:
    found = made(home)[table.name]()
    assert found.schema.equals(table.arrow)
    assert found.num_rows > 0
    for column in table.columns:
        assert column.type in TYPES
        select(f"SELECT {column.name} FROM {table.name} GROUP BY {column.name}", {table.name: found})


def test_a_home_without_certificates_has_empty_tables(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for table in SCHEMA:
        found = made(home)[table.name]()
        assert (found.num_rows, found.schema.equals(table.arrow)) == (0, True)


def test_the_promised_columns_are_there() -> None:
    """Whoever keeps a query relies on these; to rename one is to break it."""
    promised = {
        "certificates": "envelope version target target_digest contract contract_digest probes probes_digest prompts "
        "verdict confidence reference serving evidence evidence_class issued_at seconds",
        "findings": "envelope version target clause slice path verdict prompts missing estimate lower_limit "
        "upper_limit allowed level method reason",
        "evidence": " ".join(["envelope version target", *EVIDENCE.names]),
    }
    found = {table.name: " ".join(column.name for column in table.columns) for table in SCHEMA}
    assert {name: found[name][: len(columns)] for name, columns in promised.items()} == promised


def test_a_certificate_and_its_findings_join(home: Home) -> None:
    (verdict,) = ask(home, "SELECT version, target, verdict, confidence, reference FROM certificates", "certificates")
    assert verdict["version"] == "assistant/1"
    assert (verdict["target"], verdict["verdict"], verdict["confidence"]) == ("production", "CERTIFIED", 0.95)
    assert verdict["reference"].startswith("transformers ")
    rows = ask(
        home,
        "SELECT clause, path, estimate, allowed, upper_limit FROM findings JOIN certificates USING (envelope) "
        "WHERE allowed >= upper_limit",
        *("findings", "certificates"),
    )
    assert {row["clause"] for row in rows} >= {"half_span", "tv_token", "greedy_flip_rate"}
    assert all(isinstance(row["upper_limit"], float) for row in rows)


def test_evidence_has_every_measured_position(home: Home) -> None:
    ((attested, certificate),) = certificates_of(home.state, home.inspector().read)
    (row,) = ask(
        home,
        "SELECT count(DISTINCT prompt) AS prompts, any_value(envelope) AS envelope, max(half_span) AS worst, "
        "any_value(version) AS version FROM evidence WHERE pair = 'serving'",
        "evidence",
    )
    assert row["prompts"] == certificate.prompts
    assert (row["envelope"], row["version"]) == (attested.envelope, "assistant/1")
    assert 0 < row["worst"] < 0.01


def test_a_certificate_that_does_not_hold_is_not_shown_as_one(home: Home) -> None:
    ((attested, _),) = certificates_of(home.state, home.inspector().read)
    path = home.objects.path(attested.envelope)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    with pytest.raises(IntegrityError):
        made(home)["certificates"]()


def test_certificates_are_read_only_when_a_table_of_them_is_made(home: Home) -> None:
    asked: list[int] = []

    def pairs() -> list[Any]:
        asked.append(1)
        return []

    found = tables(pairs, home.objects)
    assert asked == []
    found["findings"]()
    assert asked == [1]
