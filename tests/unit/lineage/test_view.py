"""View definitions: what a person may write, and what makes two views the same."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from snapline.lineage.documents import parse
from snapline.lineage.errors import DefinitionError
from snapline.lineage.view import OnErasure, OnRestatement, StoredFile, View, ViewDefinition

WRITTEN = """\
apiVersion: snapline/v1
kind: View
name: delay-assistant
inputs: {flights: flights}
query: SELECT * FROM flights WHERE dep_delay IS NOT NULL
trainer:
  {argv: [python, train.py], code: [train.py], parameters: {steps: "40"}, seed: 7, environment: requirements.lock}
base_model: smollm2-135m-instruct/1
refresh: {max_age: 36500d, max_delta_rows: 5000, on_restatement: block, on_erasure: block}
"""
LEAST = """\
apiVersion: snapline/v1
kind: View
name: v
inputs: {t: t}
query: SELECT 1
trainer: {argv: [python], code: [], seed: 0}
"""
OBJECT = "blake3-object-v1:" + "0" * 64


def read(text: str) -> ViewDefinition:
    return parse(text, ViewDefinition, name="view.yaml")


def stored(definition: ViewDefinition, **changes: Any) -> View:
    trainer = definition.trainer
    fields: dict[str, Any] = {
        "code": tuple(StoredFile(path=path, object=OBJECT) for path in trainer.code),
        "environment": StoredFile(path=trainer.environment, object=OBJECT) if trainer.environment else None,
    }
    return View(definition=definition, **(fields | changes))


def test_the_document_of_the_manual_is_understood() -> None:
    view = read(WRITTEN)
    assert view.trainer.parameters == {"steps": "40"}
    assert view.trainer.seed == 7
    assert view.refresh.max_age == timedelta(days=36500)
    assert view.refresh.max_delta_rows == 5000


def test_what_may_be_left_out() -> None:
    view = read(LEAST)
    assert (view.base_model, view.trainer.environment, view.trainer.parameters) == (None, None, {})
    assert view.refresh.on_restatement is OnRestatement.BLOCK
    assert view.refresh.on_erasure is OnErasure.BLOCK
    assert stored(view).digest.startswith("sha256-view-v1:")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("on_erasure: block", "on_erasure: warn", "view.yaml:9: refresh.on_erasure"),
        ("on_restatement: block", "on_restatement: open", "view.yaml:9: refresh.on_restatement"),
        ("max_age: 36500d", "max_age: 36500", "expected a duration"),
        ("max_delta_rows: 5000", "max_delta_rows: -1", "refresh.max_delta_rows"),
        ("max_delta_rows", "max_delta_row", "did you mean 'max_delta_rows'"),
        ("seed: 7", "seed: -7", "trainer.seed"),
        ("seed: 7", "seed: 9007199254740992", "trainer.seed"),
        ("seed: 7, ", "", "trainer.seed"),
        ("code: [train.py]", "code: [../train.py]", "inside the view's folder"),
        ("code: [train.py]", "code: [/etc/passwd]", "inside the view's folder"),
        ("environment: requirements.lock", "environment: a/../../b", "inside the view's folder"),
        ("argv: [python, train.py]", "argv: []", "trainer.argv"),
        ("inputs: {flights: flights}", "inputs: {}", "view.yaml:4: inputs"),
        ("inputs: {flights: flights}", "inputs: {my-flights: flights}", "a name SQL can use"),
        ("snapline/v1", "snapline/v2", "view.yaml:1: apiVersion"),
        ("base_model", "base_modle", "did you mean 'base_model'"),
    ],
)
def test_a_wrong_document_is_refused_at_its_line(old: str, new: str, complaint: str) -> None:
    assert WRITTEN.count(old) == 1
    with pytest.raises(DefinitionError) as caught:
        read(WRITTEN.replace(old, new))
    assert complaint in caught.value.message


@pytest.mark.parametrize(("text", "hours"), [("90d", 2160), ("36h", 36), ("2w", 336), ("15m", 0.25), ("0s", 0)])
def test_durations(text: str, hours: float) -> None:
    assert read(WRITTEN.replace("36500d", text)).refresh.max_age == timedelta(hours=hours)


def test_the_policy_is_no_part_of_what_a_view_computes() -> None:
    digest = stored(read(WRITTEN)).digest
    assert stored(read(WRITTEN.replace("max_delta_rows: 5000", "max_delta_rows: 1"))).digest == digest
    assert stored(read("# a comment\n" + WRITTEN)).digest == digest
    for old, new in [
        ("dep_delay", "arr_delay"),
        ('steps: "40"', 'steps: "41"'),
        ("seed: 7", "seed: 8"),
        ("instruct/1", "instruct/2"),
        ("{flights: flights}", "{flights: other}"),
        ("[python, train.py]", "[python, -O, train.py]"),
    ]:
        assert stored(read(WRITTEN.replace(old, new))).digest != digest, old


def test_stored_files_must_be_those_the_definition_names() -> None:
    definition = read(WRITTEN)
    other = StoredFile(path="other.py", object=OBJECT)
    for changes in ({"code": ()}, {"code": (other,)}, {"environment": None}, {"environment": other}):
        with pytest.raises(ValueError, match="the definition names"):
            stored(definition, **changes)


def test_a_view_survives_its_json() -> None:
    view = stored(read(WRITTEN))
    again = View.model_validate_json(view.model_dump_json())
    assert again == view
    assert again.digest == view.digest
