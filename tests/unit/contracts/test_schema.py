from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from whole_contract import WHOLE, replaced

import snapline.contracts.schema as published
from snapline.contracts.schema import FILE, contract_schema
from snapline.contracts.starter import starter

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "flights" / "contracts").glob("*.yaml"))


def complaints(text: str) -> list[str]:
    found = Draft202012Validator(contract_schema()).iter_errors(yaml.safe_load(text))
    return [".".join(map(str, error.absolute_path)) for error in found]


def test_the_published_schema_is_the_one_of_the_models(request):
    path = Path(published.__file__).with_name(FILE)
    expected = json.dumps(contract_schema(), indent=2, ensure_ascii=False) + "\n"
    if request.config.getoption("--update-goldens"):
        path.write_text(expected, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == expected


def test_it_is_a_schema_with_no_word_a_validator_does_not_know():
    schema = contract_schema()
    Draft202012Validator.check_schema(schema)
    keywords: set[str] = set()

    def visit(node: object, *, is_schema: bool) -> None:
        if isinstance(node, list):
            for item in node:
                visit(item, is_schema=is_schema)
        if isinstance(node, dict):
            keywords.update(node if is_schema else ())
            for name, value in node.items():
                if name not in ("default", "const", "enum", "required"):
                    visit(value, is_schema=not is_schema or name not in ("properties", "$defs"))

    visit(schema, is_schema=True)
    assert keywords - set(Draft202012Validator.META_SCHEMA["properties"]) <= {
        *("$schema", "$id", "$defs", "$ref", "title", "description", "default", "type", "enum", "const", "pattern"),
        *("properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems", "anyOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength"),
    }


@pytest.mark.parametrize("text", [WHOLE, starter("chat"), *(path.read_text() for path in EXAMPLES)])
def test_contracts_as_people_write_them_are_valid(text):
    assert complaints(text) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batch_invariance: bitwise", 'batch_invariance: {half_span: 0.5, at_most: "0.1"}'),
        ("batch_invariance: bitwise", "at_most: 0.1\n  batch_invariance: bitwise"),
        ('tv_answer: {horizon: 256, limit: "0.05"}', 'tv_answer: "0.05"'),
        ('tv_token: "0.02"', "tv_token: 0.02"),
        ("dtype: [bfloat16, float16]", "dtype: bfloat16"),
    ],
)
def test_every_spelling_is_valid(old, new):
    assert complaints(replaced((old, new))) == []


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("tv_token", "tv_tokn", "statistical"),
        ('tv_token: "0.02"', "tv_token: 1.5", "statistical.tv_token"),
        ('tv_token: "0.02"', 'tv_token: "a little"', "statistical.tv_token"),
        ("max_age: 30d", "max_age: P30D", "observability"),
        ("batch_invariance: bitwise", "batch_invariance: bitwize", "runtime.batch_invariance"),
        ("diagnostics: [kl,", "diagnostics: [klm,", "diagnostics.0"),
        ("name: chat-fp8\n", "", ""),
    ],
)
def test_an_editor_marks_what_is_wrong(old, new, place):
    assert complaints(replaced((old, new))) == [place]


def test_an_editor_can_say_what_a_field_means():
    schema = contract_schema()
    assert schema["properties"]["confidence"]["description"] == "Family-wise, over every clause, slice and path."
    search = schema["$defs"]["Search"]["properties"]
    assert search["columns"]["description"] == "Probe columns; each distinct value of each is a candidate."
    assert "Attributes:" not in json.dumps(schema)
