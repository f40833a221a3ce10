from __future__ import annotations

import re

import pytest

from snapline.contracts.judge import judge
from snapline.contracts.lint import Severity, lint, require_attainable
from snapline.contracts.verdict import Verdict
from snapline.lineage.errors import DefinitionError

HUNDRED_CANNOT = [
    'numerical: {half_span: {quantile: "0.99", limit: 2}}',
    "statistical: {tv_token: 0.03}",
    "statistical: {greedy_flip_rate: 0.03}",
    "runtime: {batch_invariance: bitwise, at_most: 0.03}",
]


def test_an_attainable_contract_has_no_issues(contract):
    loose = contract(("{batch_invariance: bitwise}", "{batch_invariance: bitwise, at_most: 0.1}"))
    assert lint(loose) == ()
    require_attainable(loose)


def test_the_published_number_for_a_quantile(only):
    # 299 prompts without one exceedance at 5%; here the one cell pays for both sides: 2.5%.
    contract = only('numerical: {half_span: {quantile: "0.99", limit: 2}}')
    (issue,) = lint(contract)
    assert (issue.severity, issue.field) == (Severity.ERROR, "slices.all.min_prompts")
    assert issue.message.endswith("allowed is 0.01; 368 prompts could")


@pytest.mark.parametrize("line", HUNDRED_CANNOT)
def test_the_number_it_names_is_enough_and_one_fewer_is_not(contract, contract_text, evidence, line):
    def with_prompts(n):
        clauses = contract_text[contract_text.index("numerical:") :]
        return contract((clauses, line + "\n"), ("min_prompts: 100", f"min_prompts: {n}"))

    (issue,) = lint(with_prompts(100))
    needed = int(re.search(r"; (\d+) prompts could", issue.message)[1])
    assert lint(with_prompts(needed)) == ()
    assert len(lint(with_prompts(needed - 1))) == 1
    names = [f"p{n}" for n in range(needed)]
    table = evidence({name: {} for name in names}, pair=with_prompts(needed).clauses[0].pair.value)
    (finding,) = judge(with_prompts(needed), {"all": names}, dict.fromkeys(names, 3), table)
    assert finding.verdict is Verdict.CERTIFIED


def test_every_slice_and_clause_that_cannot_be_met_is_named(contract):
    slices = "min_prompts: 100}\n  - {name: part, min_prompts: 30}"
    with pytest.raises(DefinitionError) as caught:
        require_attainable(contract(("min_prompts: 100}", slices)))
    assert caught.value.hint
    lines = caught.value.message.splitlines()[1:]
    assert [line.partition(" ")[0] for line in lines] == [
        "slices.all.min_prompts:",
        *["slices.part.min_prompts:"] * 3,
    ]


def test_a_share_of_none_is_out_of_reach(only):
    (issue,) = lint(only("runtime: {batch_invariance: bitwise, at_most: 0}"))
    assert issue.message.endswith("allowed is 0; no feasible number of prompts can")


@pytest.mark.parametrize(
    "line", ["statistical: {tv_token: 1e-12}", "runtime: {batch_invariance: bitwise, at_most: 1e-12}"]
)
def test_a_limit_finer_than_what_is_printed_is_out_of_reach(only, line):
    assert lint(only(line))[0].message.endswith("no feasible number of prompts can")


def test_a_fine_limit_costs_no_memory(only):
    (issue,) = lint(only("statistical: {tv_token: 0.00000001}"))
    assert re.search(r"; (\d{9}) prompts could", issue.message)


def test_a_probe_set_with_too_few_prompts(only):
    contract = only("statistical: {tv_token: 0.2}")
    assert lint(contract, available={"all": 100}) == ()
    (issue,) = lint(contract, available={"all": 99})
    assert issue.message == "the probe set has 99 prompts in this slice, 100 are wanted"
    assert lint(contract, available={})[0].severity is Severity.ERROR


@pytest.mark.parametrize(("floor", "warned"), [("0.2", False), ("0.200000001", True), ("NaN", True)])
def test_a_limit_below_the_noise_floor_is_a_warning(only, floor, warned):
    contract = only("statistical: {tv_token: 0.2}")
    issues = lint(contract, floor={"tv": floor, "half_span": "9", "not_identical": "1"})
    assert [(issue.severity, issue.field) for issue in issues] == [(Severity.WARNING, "tv_token")] * warned


def test_the_floor_of_half_spans_holds_for_batches_too(contract):
    by_half_span = contract(("bitwise}", "{half_span: 0.1, at_most: 0.1}}"))
    issues = lint(by_half_span, floor={"half_span": "0.5", "tv": "0", "not_identical": "1"})
    assert [issue.field for issue in issues] == ["batch_invariance"]
    bitwise = contract(("bitwise}", "bitwise, at_most: 0.1}"))
    assert lint(bitwise, floor={"half_span": "0.5", "tv": "0", "not_identical": "1"}) == ()
