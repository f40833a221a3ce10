from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from histories import fleet, home_of

from snapline.cli.query import query
from snapline.contracts.catalogue import SCHEMA as MEASURED
from snapline.lineage.catalogue import SCHEMA as RECORDED
from snapline.lineage.errors import DefinitionError, NotFoundError

TABLES = (*RECORDED, *MEASURED)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return home_of(tmp_path / "home", [event for event in fleet() if event.kind != "attested"])


def printed(capfd: pytest.CaptureFixture[str], **options: object) -> str:
    query(**options)  # type: ignore[arg-type]
    return capfd.readouterr().out


def test_each_form_of_an_answer(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT id, aliases FROM versions ORDER BY id DESC LIMIT 2"
    table = printed(capfd, sql=sql, home=home)
    assert "right/1" in table
    assert table.rstrip().endswith("2 rows")
    rows = [{"id": "right/1", "aliases": []}, {"id": "merged/1", "aliases": ["champion"]}]
    assert json.loads(printed(capfd, sql=sql, form="json", home=home))["rows"] == rows
    assert json.loads(printed(capfd, sql=sql, as_json=True, home=home))["rows"] == rows
    assert printed(capfd, sql=sql, form="csv", home=home).splitlines()[1:] == [
        "right/1,[]",
        'merged/1,"[""champion""]"',
    ]


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "json", "table"])
def test_an_answer_goes_into_a_file(form: str, home: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    to = tmp_path / "answer"
    query(sql="SELECT id FROM versions ORDER BY id", form=form, to=to, home=home)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert f"6 rows written to {to}" in captured.err
    ids = ["adapter/1", "apart/1", "base/1", "left/1", "merged/1", "right/1"]
    match form:
        case "parquet":
            found = pq.read_table(to)["id"].to_pylist()
        case "arrow":
            found = pa.ipc.open_stream(to.read_bytes()).read_all()["id"].to_pylist()
        case "json":
            found = [row["id"] for row in json.loads(to.read_text())["rows"]]
        case _:
            found = to.read_text().split()[1:]
    assert found == ids
    assert {path.name for path in tmp_path.iterdir()} == {"home", "answer"}


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_bytes_may_be_piped(form: str, home: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    query(sql="SELECT count(*) AS n FROM edges", form=form, home=home)
    data = capfdbinary.readouterr().out
    table = pq.read_table(pa.BufferReader(data)) if form == "parquet" else pa.ipc.open_stream(data).read_all()
    assert table["n"].to_pylist() == [12]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_documented_table_can_be_asked(table: object, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """But for the manifests: this home was made of bare events, and has none."""
    name = table.name  # type: ignore[attr-defined]
    if name != "buckets":
        found = json.loads(printed(capfd, sql=f"FROM {name} LIMIT 1", form="json", home=home))
        assert [column["name"] for column in found["columns"]] == [c.name for c in table.columns]  # type: ignore[attr-defined]


def test_the_schema_is_the_one_in_the_code(capfd: pytest.CaptureFixture[str]) -> None:
    """It needs no home."""
    found = json.loads(printed(capfd, schema=True, as_json=True))
    assert [table["name"] for table in found["tables"]] == [table.name for table in TABLES]
    for shown, table in zip(found["tables"], TABLES, strict=True):
        assert [(c["name"], c["type"], c["meaning"]) for c in shown["columns"]] == [
            (column.name, column.type, column.meaning) for column in table.columns
        ]
    text = printed(capfd, schema=True)
    assert all(f"{table.name}: {table.meaning}" in text for table in TABLES)


def test_a_wide_answer_has_a_line_for_each_row(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = printed(capfd, sql="SELECT * FROM versions", home=home).splitlines()
    assert sum("/1 " in line and "/weights/" in line for line in lines) == 6


def test_an_earlier_ledger_can_be_asked(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT count(*) AS n FROM versions"
    assert json.loads(printed(capfd, sql=sql, form="json", at_entry=4, home=home))["rows"] == [{"n": 1}]
    assert json.loads(printed(capfd, sql=sql, form="json", at="2026-01-04", home=home))["rows"] == [{"n": 4}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sql": "SELEC 1"}, 'syntax error at or near "SELEC"'),
        ({"sql": "SELECT nothing FROM versions"}, '"nothing" not found'),
        ({"sql": "SELECT * FROM elsewhere"}, "elsewhere does not exist"),
        ({"sql": "DELETE FROM versions"}, "expected one SELECT statement, found DELETE"),
        ({"sql": "COPY versions TO 'x.csv'"}, "found COPY"),
        ({"sql": "SELECT * FROM read_text('/etc/hostname')"}, "file system operations are disabled"),
        ({"sql": "SELECT 1", "form": "xml"}, "expected the format table, json, csv, parquet or arrow, found 'xml'"),
        ({}, "expected a query or --schema"),
        ({"sql": "SELECT 1", "schema": True}, "expected a query or --schema"),
        ({"sql": "SELECT 1", "at": "2026-01-01", "at_entry": 1}, "expected one of --at and --at-entry"),
        ({"sql": "SELECT 1", "at": "soon"}, "expected an ISO date"),
        ({"sql": "SELECT 1", "at": "9999-01-01"}, "has not come yet"),
        ({"sql": "SELECT 1", "to": Path("/nowhere/answer")}, "cannot write /nowhere/answer"),
    ],
)
def test_what_is_asked_wrongly_is_said(options: dict[str, object], message: str, home: Path) -> None:
    with pytest.raises(DefinitionError) as caught:
        query(**options, home=home)  # type: ignore[arg-type]
    assert message in caught.value.message


def test_an_entry_that_is_not_there_is_not_found(home: Path) -> None:
    with pytest.raises(NotFoundError, match="no entry 99"):
        query(sql="SELECT 1", at_entry=99, home=home)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_bytes_are_not_for_a_terminal(form: str, home: Path) -> None:
    code = "import sys; from snapline.cli.query import query; query(sql='SELECT 1', form=sys.argv[1], home=sys.argv[2])"
    controller, terminal = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code, form, str(home)], stdout=terminal, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(terminal)
    os.close(controller)
    assert done.returncode == 1
    assert f"DefinitionError: {form} is not for a terminal" in done.stderr
