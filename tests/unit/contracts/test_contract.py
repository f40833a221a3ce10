from __future__ import annotations

import json
from decimal import Decimal

import pytest
from pydantic import ValidationError
from whole_contract import WHOLE, replaced, whole

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


def test_the_whole_document_is_read():
    found = whole()
    written = [line.split(":")[0].strip() for line in WHOLE.splitlines() if line.startswith("  ") and "- {" not in line]
    assert [clause.name for clause in found.clauses] == written
    assert len({clause.name for clause in found.clauses}) == 23
    assert found.horizon == 256
    assert found.stages is not None
    assert [stage.value for stage in found.stages.order] == ["offline", "shadow", "canary", "full"]


def test_a_cell_for_every_slice_and_path_a_clause_is_held_on():
    cells = [(cell.clause.name, cell.slice.name, cell.path) for cell in whole().cells]
    assert len(set(cells)) == len(cells)
    assert [cell for cell in cells if cell[0] == "tv_answer"] == [
        ("tv_answer", "all", "decode-sampled"),
        ("tv_answer", "long-context", "decode-sampled"),
    ]
    assert [cell for cell in cells if cell[0] == "order"] == [
        ("order", "sample", "prefill"),
        ("order", "sample", "decode-forced"),
    ]
    assert [cell[1:] for cell in cells if cell[0] == "latency_ratio"] == [("sample", "generation")]


def test_a_search_pays_for_one_cell_of_each_clause_and_path_it_is_made_for():
    searched, cells = whole().searched, whole().cells
    assert {clause.name for clause, _ in searched} == {c.name for c in whole().clauses if c.sampled is None}
    assert whole().level * 2 * (len(cells) + len(searched)) <= Decimal("0.05")
    without = whole(("search: {columns: [language, source], min_prompts: 30}\n", ""))
    assert without.searched == ()
    assert without.level > whole().level


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("paths: [prefill, decode-forced, decode-sampled]", "paths: [prefill]", "cannot be held on prefill"),
        ("diagnostics: [kl,", "diagnostics: [klm,", ":41: diagnostics: expected names out of kl, reverse_kl"),
        ('full: {monitor: "0.001"}', 'full: {traffic: "0.5"}', ":46: stages: full takes no share of traffic"),
        ("do: [hold, remeasure]", "do: [hold, pray]", ":45: escalation.1.do.1"),
        ("max_age: 30d", "max_age: a while", ":42: observability.max_age: expected a duration"),
    ],
)
def test_what_the_whole_document_may_not_say(old, new, said):
    assert said in refusal(replaced((old, new)))


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
