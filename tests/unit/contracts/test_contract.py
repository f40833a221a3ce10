from __future__ import annotations

import json
from decimal import Decimal

import pytest
from pydantic import ValidationError

from snapline.contracts.contract import KernelContract
from snapline.contracts.engines.protocol import Path
from snapline.lineage.documents import parse
from snapline.lineage.errors import DefinitionError


def refusal(text: str) -> str:
    with pytest.raises(DefinitionError) as caught:
        parse(text, KernelContract, name="contract.yaml")
    return caught.value.message


def test_the_clauses_of_the_document_in_the_order_of_the_language(contract):
    names = [clause.name for clause in contract().clauses]
    assert names == ["half_span", "tv_token", "greedy_flip_rate", "batch_invariance"]


def test_each_side_of_each_cell_gets_an_equal_share_of_the_level(contract):
    assert contract().level == Decimal("0.05") / 4 / 2
    two_paths = contract(("paths: [prefill]", "paths: [decode-forced, prefill]"))
    assert two_paths.paths == (Path.PREFILL, Path.DECODE_FORCED)
    assert two_paths.level == Decimal("0.05") / 8 / 2


def test_the_level_is_never_rounded_up(contract):
    three_cells = contract(("runtime: {batch_invariance: bitwise}\n", ""), ('"0.95"', '"0.9"'))
    assert three_cells.level * 6 < Decimal("0.1")
    assert three_cells.level * 6 > Decimal("0.09999999999")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: chat-bf16", "name: chat-bf16   # a remark"),
        ('quantile: "0.90", limit: "2.0"', "limit: 2, quantile: 0.9"),
        ('">=0.30,<0.34"', '"<0.34, >=0.30"'),
        ("dtype: bfloat16", "dtype: [bfloat16, bfloat16]"),
        ("paths: [prefill]", 'paths: [prefill]\ntemperature: "1.000"'),
        ("dtype: float32}", "dtype: float32, interpreter: /opt/reference/bin/python}"),
        ("batch_invariance: bitwise", "at_most: 0.050, batch_invariance: bitwise"),
        ("batch_invariance: bitwise", 'batch_invariance: {bitwise: true, at_most: "0.05"}'),
    ],
)
def test_an_edit_that_promises_the_same_keeps_the_digest(contract, old, new):
    assert contract((old, new)).digest == contract().digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('quantile: "0.90"', 'quantile: "0.91"'),
        ("dtype: bfloat16", "dtype: float32"),
        ("dtype: bfloat16", "dtype: [bfloat16, float32]"),
        ("min_prompts: 100", "min_prompts: 101"),
        ("min_prompts: 100", "min_prompts: 100, where: prompt_tokens > 9"),
        ("paths: [prefill]", "paths: [prefill, decode-forced]"),
        ("batch_invariance: bitwise", "batch_invariance: {half_span: 0}"),
        ("batch_invariance: bitwise", "batch_invariance: bitwise, at_most: 0.06"),
        ("probes: chats", "probes: chats2"),
    ],
)
def test_an_edit_that_promises_something_else_changes_the_digest(contract, old, new):
    assert contract((old, new)).digest != contract().digest


def test_no_float_is_in_the_hashed_document(contract):
    def numbers(value: object) -> list[float]:
        nested = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        return [value] if isinstance(value, float) else [number for item in nested for number in numbers(item)]

    document = contract().model_dump(mode="json")
    assert numbers(document) == []
    assert KernelContract.model_validate(json.loads(json.dumps(document))).digest == contract().digest
    with pytest.raises(ValidationError, match=r"found the float 0\.95"):
        KernelContract.model_validate(document | {"confidence": 0.95})


def test_a_misspelt_clause_is_refused_with_its_line(contract_text):
    message = refusal(contract_text.replace("tv_token", "tv_tokn"))
    assert message == "contract.yaml:12: statistical.tv_tokn: no such field; did you mean 'tv_token'?"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tv_token:", "tv_answer: {horizon: 9, limit: 1}, tv_token:", ":12: statistical.tv_answer: not yet supported"),
        ("tv_token:", "reward_drift: {}, tv_token:", ":12: statistical.reward_drift: not yet supported"),
        ("{batch", "{prefix_cache: bitwise, batch", ":13: runtime.prefix_cache: not yet supported"),
        ("{batch", "{repeat: 3, batch", ":13: runtime.repeat: not yet supported"),
        ("{batch", "{throughput_ratio: {at_least: 1}, batch", ":13: runtime.throughput_ratio: not yet supported"),
        ("paths:", "observability: {max_age: 30d}\npaths:", ":8: observability: not yet supported"),
        ("paths:", "escalation: []\npaths:", ":8: escalation: not yet supported"),
        ("paths:", "stages: {offline: {}}\npaths:", ":8: stages: not yet supported"),
        ("[prefill]", "[prefill, decode-sampled]", ":8: paths.1: decode-sampled is not yet supported"),
        ("min_prompts: 100", "unit: position, min_prompts: 9", ":10: slices.0.unit: position is not yet supported"),
    ],
)
def test_a_word_without_a_clause_behind_it_is_refused_by_name(contract_text, old, new, said):
    assert refusal(contract_text.replace(old, new)) == f"contract.yaml{said}"


@pytest.mark.parametrize(
    ("old", "new", "line", "field"),
    [
        ('"0.95"', '"1"', 7, "confidence"),
        ('"0.95"', '"nan"', 7, "confidence"),
        ('"0.95"', '"0.9999999999999999999"', 7, "confidence"),
        ("confidence:", "temperature: 0\nconfidence:", 7, "temperature"),
        ("[prefill]", "[]", 8, "paths"),
        ("[prefill]", "[prefill, prefill]", 8, "paths"),
        ("[prefill]", "[prefil]", 8, "paths.0"),
        ("min_prompts: 100", "min_prompts: 0", 10, "slices.0.min_prompts"),
        ("min_prompts: 100}", "min_prompts: 100}\n  - {name: all, min_prompts: 5}", 9, "slices"),
        ('quantile: "0.90"', 'quantile: "1"', 11, "numerical.half_span.quantile"),
        ('limit: "2.0"', 'limit: "-1"', 11, "numerical.half_span.limit"),
        ('tv_token: "0.10"', 'tv_token: "1"', 12, "statistical.tv_token"),
        ('">=0.30,<0.34"', '"about 0.3"', 6, "serving.version"),
        ("bitwise", "bitwize", 13, "runtime.batch_invariance"),
        ("bitwise", "{bitwise: true, half_span: 1}", 13, "runtime.batch_invariance"),
        ("bitwise", "{at_most: 0.1}", 13, "runtime.batch_invariance"),
        ("bitwise", "{half_span: 1, at_most: 1}", 13, "runtime.batch_invariance.at_most"),
        ("bitwise", "{half_span: 1, at_most: 0.1}, at_most: 0.1", 13, "runtime.batch_invariance"),
        ("{batch_invariance: bitwise}", "{at_most: 0.1}", 13, "runtime"),
    ],
)
def test_a_malformed_field_is_refused_with_line_and_field(contract_text, old, new, line, field):
    assert old in contract_text
    assert refusal(contract_text.replace(old, new)).startswith(f"contract.yaml:{line}: {field}: ")


def test_a_contract_must_promise_something(contract_text):
    without = contract_text[: contract_text.index("numerical:")] + "numerical: {}\n"
    assert "at least one clause" in refusal(without)


def test_a_target_inside_the_constraint(contract):
    serving = contract(("dtype: bfloat16", "dtype: [bfloat16, float32]")).serving
    inside = {"engine": "vllm", "version": "0.32.0+cpu", "quantization": None, "kv_cache_dtype": None}
    assert serving.objections(**inside, dtype="float32") == ()
    assert serving.objections(**inside | {"quantization": "none", "kv_cache_dtype": "auto"}, dtype="bfloat16") == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("engine", "transformers"),
        ("version", "0.34.1"),
        ("version", "0.30.0rc1"),
        ("version", "a working copy"),
        ("dtype", "float16"),
        ("quantization", "fp8"),
        ("kv_cache_dtype", "fp8"),
    ],
)
def test_a_target_outside_the_constraint_is_told_why(contract, field, value):
    inside = {
        "engine": "vllm",
        "version": "0.32.0",
        "dtype": "bfloat16",
        "quantization": None,
        "kv_cache_dtype": None,
    }
    (objection,) = contract().serving.objections(**inside | {field: value})
    assert objection.startswith(f"{field}: the contract allows ")
    assert objection.endswith(f"the target has {value}")


def test_without_a_version_range_any_version_may_serve(contract):
    serving = contract(('version: ">=0.30,<0.34", ', "")).serving
    for version in ("0.1", "9", "a working copy"):
        assert not serving.objections(
            engine="vllm", version=version, dtype="bfloat16", quantization=None, kv_cache_dtype=None
        )


def test_editors_can_have_a_json_schema():
    assert set(KernelContract.model_json_schema()["required"]) >= {"name", "probes", "serving", "confidence"}
