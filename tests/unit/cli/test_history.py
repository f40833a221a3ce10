from __future__ import annotations

import json
from pathlib import Path

import pytest
from histories import fleet, home_of, key, linked, registered

from snapline.cli.history import FORMATS, lineage, log
from snapline.cli.impact import impact
from snapline.cli.link import link
from snapline.cli.wiring import Home
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.events import Retired
from snapline.lineage.model import EdgeKind


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return home_of(tmp_path / "home", fleet())


def answer(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("form", "starts"),
    [
        ("text", "adapter/1  weights"),
        ("json", "{"),
        ("mermaid", "flowchart TD"),
        ("dot", "digraph lineage {"),
        ("svg", "<svg xmlns="),
        ("html", "<!doctype html>"),
    ],
)
def test_lineage_has_each_form(form: str, starts: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert form in FORMATS
    lineage("adapter", form=form, home=home)
    out = answer(capsys)
    assert out.startswith(starts)
    assert "merged/1" in out


def test_lineage_of_an_earlier_ledger_knows_nothing_later(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lineage("merged", at="2026-01-05T12:00Z", home=home)
    assert answer(capsys).strip().count("\n") == 0
    lineage("merged", at="2026-01-06", form="json", home=home)
    document = json.loads(answer(capsys))
    assert {"from": "model:merged/1", "kind": "merged_from", "to": "model:left/1"} in document["edges"]
    assert (document["model"], document["at_entry"], document["entries"]) == ("merged/1", 10, 14)


def test_lineage_before_a_model_was_there_does_not_find_it(home: Path) -> None:
    with pytest.raises(NotFoundError, match="no model 'adapter'"):
        lineage("adapter", at_entry=5, home=home)


def test_an_unknown_form_is_refused_with_those_there_are(home: Path) -> None:
    with pytest.raises(DefinitionError, match="expected the format text, json, mermaid, dot, svg or html, found 'png'"):
        lineage("adapter", form="png", home=home)


def test_impact_names_models_aliases_and_ways(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened = Home.open(home)
    opened.ledger.commit(lambda _state: [Retired(at=fleet()[-1].at, model=key("adapter"))])
    impact("base", as_json=True, home=home)
    found = json.loads(answer(capsys))
    assert found["subject"] == "model base/1"
    ids = [row["id"] for row in found["affected"]]
    assert ids == ["model:left/1", "model:right/1", "model:merged/1", "model:adapter/1"]
    merged, adapter = found["affected"][2:]
    assert (merged["distance"], merged["via"]) == (2, {"edge": "merged_from", "id": "model:left/1"})
    assert (merged["aliases"], merged["targets"], merged["retired"]) == (["champion"], ["production"], False)
    assert (adapter["aliases"], adapter["retired"]) == ([], True)
    impact("base", home=home)
    text = answer(capsys)
    assert text.startswith("model base/1: 4 models made from it")
    assert "merged_from left/1" in text
    assert "(retired)" in text


def test_impact_of_an_earlier_ledger(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    impact("base", at_entry=6, as_json=True, home=home)
    assert [row["id"] for row in json.loads(answer(capsys))["affected"]] == ["model:left/1", "model:right/1"]
    impact("apart", home=home)
    assert answer(capsys) == "model apart/1: nothing made from it\n"


def test_a_source_may_be_spelled_from_here(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ledger has /data/trips.parquet."""
    here = Path.cwd()
    spelled = Path(*[".."] * (len(here.parts) - 1)) / "data" / "trips.parquet"
    for text in (str(spelled), f"source:{spelled}"):
        impact(text, as_json=True, home=home)
        assert json.loads(answer(capsys))["subject"] == "source /data/trips.parquet"


@pytest.mark.parametrize("text", ["nothing", "nothing@2013-01-01", "model:", "./trips.parquet", "s3:/"])
def test_impact_of_nothing_known_is_said(text: str, home: Path) -> None:
    with pytest.raises(NotFoundError, match="the ledger knows no model, snapshot or source"):
        impact(text, home=home)


@pytest.mark.mlflow
def test_link_says_what_it_added(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link("apart", ["calibrated_on=trips", "distilled_from=base"], home=home)
    assert answer(capsys).splitlines()[0] == "apart/1"
    link("apart", ["distilled_from=base"], home=home)
    assert answer(capsys) == "apart/1: every edge was recorded already\n"
    link("apart", ["distilled_from=base", "quantized_from=left"], as_json=True, home=home)
    found = json.loads(answer(capsys))
    assert found["added"] == [{"kind": "quantized_from", "to": "model:left/1"}]
    assert [edge["kind"] for edge in found["edges"]] == ["calibrated_on", "distilled_from", "quantized_from"]


def test_link_without_an_edge_is_asked_wrongly(home: Path) -> None:
    with pytest.raises(DefinitionError, match="expected an --edge") as caught:
        link("apart", None, home=home)
    assert "quantized_from" in caught.value.hint


def test_log_tells_every_kind_of_event(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = [registered("m"), linked("m", EdgeKind.QUANTIZED_FROM, "base"), Retired(at=fleet()[0].at, model=key("m"))]
    Home.open(home).ledger.commit(lambda _state: more)
    log(home=home)
    out = answer(capsys)
    assert len(out.splitlines()) == 17
    for said in (
        "linked            m/1 quantized_from base/1",
        "retired           m/1",
        "promoted          merged/1 holds",
    ):
        assert said in out
