from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.leakage.rules import load_rules, parse_rules

FULL = """\
apiVersion: snapline/v1
kind: LeakageRules
name: point-in-time
train: {snapshot: trips}
evaluation: {snapshot: later}
prediction_time: asked
embargo: 36h
horizon: 7d
features:
  - {column: wind, time: wind_at, known: wind_known}
  - column: rain
    time: rain_at
label: {time: landed, known: landed_known}
entity: aircraft
near_duplicates: {columns: [wind, note]}
"""
HEAD = "apiVersion: snapline/v1\nkind: LeakageRules\nname: r\n"


def test_a_whole_document_is_read_with_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(FULL)
    rules = load_rules(file)
    document = rules.document
    assert (document.embargo, document.horizon) == (timedelta(hours=36), timedelta(days=7))
    assert [feature.known for feature in document.features] == ["wind_known", None]
    assert list(document.times) == ["asked", "wind_at", "wind_known", "rain_at", "landed", "landed_known"]
    assert document.about_evaluation == ("evaluation", "entity", "near_duplicates")
    assert rules.data == FULL.encode()


def test_a_place_is_file_line_and_field() -> None:
    rules = parse_rules(FULL.encode(), "rules.yaml")
    assert rules.place("prediction_time") == "rules.yaml:6: prediction_time"
    assert rules.place("features", 1, "time") == "rules.yaml:12: features.1.time"
    assert rules.place("near_duplicates", "columns", 1) == "rules.yaml:15: near_duplicates.columns.1"


def test_a_column_named_twice_has_the_place_it_is_named_first() -> None:
    text = HEAD + "prediction_time: p\nfeatures: [{column: a, time: t, known: t}]\nlabel: {time: t}\n"
    assert parse_rules(text.encode(), "r").document.times["t"] == ("features", 0, "time")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("features: [{column: a, time: t}]", "held against prediction_time, which is missing"),
        ("label: {time: t}", "held against prediction_time, which is missing"),
        ("embargo: 1h\nprediction_time: p", "embargo is about features"),
        ("horizon: 1h\nprediction_time: p", "expected a label"),
        ("horizon: 0d\nprediction_time: p\nlabel: {time: t}", "longer than nothing"),
        ("embargo: 1 hour", "r:4: embargo: expected a duration"),
        ("prediction_time: p\nfeatures: [{column: a, time: t}, {column: a, time: u}]", "each feature once, found a, a"),
        ("prediction_time: p\nfeatures:\n  - column: a", "r:6: features.0.time: Field required"),
        ("entities: e", "r:4: entities: no such field; did you mean 'entity'?"),
        ("near_duplicates: {columns: []}", "r:4: near_duplicates.columns"),
        ("entity: ''", "r:4: entity"),
        ("train: trips", "r:4: train"),
        ("entity: [", "not YAML"),
    ],
)
def test_what_is_no_rules_document_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse_rules((HEAD + text + "\n").encode(), "r")
    assert message in refused.value.message


def test_files_that_cannot_be_read_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no file"):
        load_rules(tmp_path / "none.yaml")
    with pytest.raises(DefinitionError, match="cannot be read"):
        load_rules(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(DefinitionError, match="cannot be read as text"):
        load_rules(tmp_path / "latin.yaml")
