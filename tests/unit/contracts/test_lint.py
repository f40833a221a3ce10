from __future__ import annotations

import re

import pyarrow as pa
import pytest
from whole_contract import WHOLE, replaced, whole

from snapline.contracts.judge import judge
from snapline.contracts.lint import Kind, Severity, lint, located, malformed, require_attainable
from snapline.contracts.lint.parts import columns_read, with_written_lengths
from snapline.contracts.records import parse_contract
from snapline.contracts.starter import starter
from snapline.contracts.verdict import Verdict
from snapline.lineage.errors import DefinitionError

HUNDRED_CANNOT = [
    'numerical: {half_span: {quantile: "0.99", limit: 2}}',
    "statistical: {tv_token: 0.03}",
    "statistical: {greedy_flip_rate: 0.03}",
    "runtime: {batch_invariance: bitwise, at_most: 0.03}",
]
STAGES = 'stages: {shadow: {traffic: "0.1"}}\n'


def kinds(issues) -> list[tuple[Kind, str]]:
    return [(issue.kind, issue.field) for issue in issues]


def of_slices(contract, *slices: str):
    """A contract that a handful of prompts can meet, with some more slices."""
    return contract(
        ('numerical: {half_span: {quantile: "0.90", limit: "2.0"}}\n', ""),
        ("runtime: {batch_invariance: bitwise}\n", ""),
        ('{tv_token: "0.10", greedy_flip_rate: "0.25"}', '{tv_token: "0.5"}'),
        ("{name: all, min_prompts: 100}", "\n  - ".join(["{name: all, min_prompts: 30}", *slices])),
    )


@pytest.fixture
def probes(prompts) -> pa.Table:
    """Forty prompts, of which every other one is English and the last ten are long."""
    ids = {f"p{n:02}": 5 for n in range(40)}
    language = ["en" if n % 2 else "fr" for n in range(40)]
    table = prompts(ids, language=pa.array(language), score=pa.array(range(40), pa.float64()))
    long = pa.array([100 if n >= 30 else 5 for n in range(40)], pa.int64())
    return table.set_column(table.column_names.index("prompt_tokens"), "prompt_tokens", long)


def test_an_attainable_contract_has_no_issues(contract):
    loose = contract(("{batch_invariance: bitwise}", "{batch_invariance: bitwise, at_most: 0.1}"))
    assert lint(loose) == ()
    require_attainable(loose)


def test_the_published_number_for_a_quantile(only):
    # 299 prompts without one exceedance at 5%; here the one cell pays for both sides: 2.5%.
    contract = only('numerical: {half_span: {quantile: "0.99", limit: 2}}')
    (issue,) = lint(contract)
    assert (issue.kind, issue.severity) == (Kind.TOO_FEW_PROMPTS, Severity.ERROR)
    assert issue.field == "slices.all.min_prompts"
    assert issue.message.endswith("allowed is 0.01; 368 prompts could")


@pytest.mark.parametrize("line", HUNDRED_CANNOT)
def test_the_number_it_names_is_enough_and_one_fewer_is_not(contract, contract_text, evidence, prompts, line):
    def with_prompts(n):
        clauses = contract_text[contract_text.index("numerical:") :]
        return contract((clauses, line + "\n"), ("min_prompts: 100", f"min_prompts: {n}"))

    (issue,) = lint(with_prompts(100))
    needed = int(re.search(r"; (\d+) prompts could", issue.message)[1])
    assert lint(with_prompts(needed)) == ()
    assert len(lint(with_prompts(needed - 1))) == 1
    names = [f"p{n}" for n in range(needed)]
    table = evidence({name: {} for name in names}, pair=with_prompts(needed).clauses[0].pair.value)
    (finding,) = judge(with_prompts(needed), prompts(dict.fromkeys(names, 3)), table).findings
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


def test_a_sample_too_small_for_its_limit_is_named_by_its_clause(only):
    (issue,) = lint(only("runtime: {order: {bitwise: true, at_most: 0.1, sample: 20}}"))
    assert kinds([issue]) == [(Kind.TOO_FEW_PROMPTS, "runtime.order")]
    assert issue.message.startswith("20 prompts cannot certify order")
    assert lint(only("runtime: {order: {bitwise: true, at_most: 0.1, sample: 60}}")) == ()


def test_runs_too_few_for_a_quantile_are_counted_as_runs(only):
    (issue,) = lint(only('runtime: {latency_ratio: {at_most: "1.5", quantile: "0.9", runs: 10}}'))
    assert re.fullmatch(r"10 runs cannot certify latency_ratio: .*; \d+ runs could", issue.message)


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


@pytest.mark.parametrize(("floor", "warned"), [("0.2", False), ("0.200000001", True), ("NaN", True)])
def test_a_limit_below_the_noise_floor_is_a_warning(only, floor, warned):
    contract = only("statistical: {tv_token: 0.2}")
    issues = lint(contract, floor={"tv": floor, "half_span": "9", "not_identical": "1"})
    assert kinds(issues) == [(Kind.BELOW_FLOOR, "statistical.tv_token")] * warned
    assert all(issue.severity is Severity.WARNING for issue in issues)


def test_the_floor_of_half_spans_holds_for_batches_too(contract):
    by_half_span = contract(("bitwise}", "{half_span: 0.1, at_most: 0.1}}"))
    issues = lint(by_half_span, floor={"half_span": "0.5", "tv": "0", "not_identical": "1"})
    assert [issue.field for issue in issues] == ["runtime.batch_invariance"]
    bitwise = contract(("bitwise}", "bitwise, at_most: 0.1}"))
    assert lint(bitwise, floor={"half_span": "0.5", "tv": "0", "not_identical": "1"}) == ()


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('numerical: {half_span: {quantile: "0.9", limit: "20.1"}}', "numerical.half_span"),
        ('numerical: {half_span: {quantile: "0.4", limit: "1"}}', "numerical.half_span"),
        ('numerical: {log_ratio: {quantile: "0.9", limit: "40.1"}}', "numerical.log_ratio"),
        ("statistical: {tv_token: 0.51}", "statistical.tv_token"),
        ("statistical: {greedy_flip_rate: 0.6}", "statistical.greedy_flip_rate"),
        ("runtime: {batch_invariance: {half_span: 21, at_most: 0.2}}", "runtime.batch_invariance"),
        ("runtime: {batch_invariance: bitwise, at_most: 0.9}", "runtime.batch_invariance"),
        ("runtime: {latency_ratio: {at_most: 101}}", "runtime.latency_ratio"),
        ("runtime: {peak_memory_ratio: {at_most: 1000}}", "runtime.peak_memory_ratio"),
        ("runtime: {throughput_ratio: {at_least: 0.009}}", "runtime.throughput_ratio"),
    ],
)
def test_a_limit_no_engine_need_fear_is_vacuous(only, line, field):
    (issue,) = lint(only(line))
    assert (issue.kind, issue.field, issue.severity) == (Kind.VACUOUS, field, Severity.WARNING)


@pytest.mark.parametrize(
    "line",
    [
        'numerical: {half_span: {quantile: "0.9", limit: "20"}}',
        'numerical: {log_ratio: {quantile: "0.9", limit: "40"}}',
        "statistical: {tv_token: 0.5}",
        "runtime: {latency_ratio: {at_most: 100}}",
        "runtime: {throughput_ratio: {at_least: 0.01}}",
    ],
)
def test_the_loosest_limits_that_still_say_something(only, line):
    assert lint(only(line)) == ()


def test_a_limit_that_no_known_fault_exceeds_is_vacuous(only):
    contract = only("statistical: {tv_token: 0.3}")
    assert lint(contract, caught={"tv_token": "0.31", "half_span": "0.1"}) == ()
    (issue,) = lint(contract, caught={"tv_token": "0.3"})
    assert issue.kind is Kind.VACUOUS
    assert "the worst of the known faults shows 0.3" in issue.message


@pytest.mark.parametrize(
    "line", [STAGES, "observability: {log: [margin]}\n", "escalation: [{when: refuted, do: [log]}]\n"]
)
def test_promises_about_tokens_are_not_sold_as_promises_about_answers(contract, line):
    tokens = contract(("numerical:", f"{line}numerical:"), ("bitwise}", "bitwise, at_most: 0.1}"))
    sold = [issue for issue in lint(tokens) if issue.kind is Kind.TOKEN_AS_ANSWER]
    assert [(issue.field, issue.severity) for issue in sold] == [("numerical.half_span", Severity.WARNING)]
    # 1 - 0.9^32 of a distance of 0.1 at each token.
    assert (
        "tv_token 0.1 at each of 32 tokens leaves answers open to a total variation distance of 0.97" in sold[0].message
    )
    answers = contract(
        ("numerical:", f"{line}numerical:"),
        ("[prefill]", "[prefill, decode-sampled]"),
        ("{tv_token", '{tv_answer: "0.3", tv_token'),
    )
    assert Kind.TOKEN_AS_ANSWER not in {issue.kind for issue in lint(answers)}


def test_what_tokens_leave_open_is_said_for_the_longest_answer(contract, prompts):
    tokens = contract(("numerical:", f"{STAGES}numerical:"))
    for length, said in ((4, "at each of 4 tokens"), (999, "at each of 999 tokens")):
        issues = lint(tokens, prompts=prompts({"a": 1, "b": length}))
        assert said in next(issue.message for issue in issues if issue.kind is Kind.TOKEN_AS_ANSWER)


def test_a_probe_set_with_too_few_prompts(contract, probes):
    few = of_slices(contract, "{name: en, where: \"language = 'en'\", min_prompts: 25}")
    (issue,) = lint(few, prompts=probes)
    assert kinds([issue]) == [(Kind.TOO_FEW_PROMPTS, "slices.en.min_prompts")]
    assert issue.message == "the probe set has 20 prompts in this slice, 25 are wanted"


def test_a_slice_that_nothing_is_in(contract, probes):
    empty = of_slices(contract, "{name: de, where: \"language = 'de'\", min_prompts: 25}")
    (issue,) = lint(empty, prompts=probes)
    assert (issue.kind, issue.field, issue.severity) == (Kind.NEVER_MATCHES, "slices.de.where", Severity.ERROR)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("language = ", "cannot be read"),
        ("langage = 'en'", 'Referenced column "langage" not found'),
        ("language", "cannot be run|must be true or false"),
    ],
)
def test_a_predicate_that_cannot_be_evaluated(contract, probes, where, said):
    broken = of_slices(contract, f'{{name: part, where: "{where}", min_prompts: 25}}')
    found = [issue for issue in lint(broken, prompts=probes) if issue.kind is Kind.UNREADABLE_SLICE]
    assert {issue.field for issue in found} == {"slices.part.where"}
    assert re.search(said, found[0].message)


def test_without_probes_only_the_spelling_of_a_predicate_can_be_wrong(contract):
    assert lint(of_slices(contract, "{name: part, where: \"langage = 'en'\", min_prompts: 25}")) == ()
    (issue,) = lint(of_slices(contract, '{name: part, where: "langage = (", min_prompts: 25}'))
    assert kinds([issue]) == [(Kind.UNREADABLE_SLICE, "slices.part.where")]


def test_slices_that_share_prompts_or_hold_the_same_ones(contract, probes):
    slices = (
        "{name: en, where: \"language = 'en'\", min_prompts: 20}",
        '{name: late, where: "score >= 20", min_prompts: 20}',
        '{name: odd, where: "score % 2 = 1", min_prompts: 20}',
        '{name: everything, where: "score >= 0", min_prompts: 20}',
    )
    issues = lint(of_slices(contract, *slices), prompts=probes)
    found = {(issue.kind, issue.field, re.search(r"(?:as|with) (\w+)", issue.message)[1]) for issue in issues}
    assert found >= {
        (Kind.OVERLAP, "slices.late", "en"),
        (Kind.SAME_SLICE, "slices.odd", "en"),
        (Kind.SAME_SLICE, "slices.everything", "all"),
    }
    assert all(issue.severity is Severity.WARNING for issue in issues)


def test_slices_apart_from_one_another_are_fine(contract, probes):
    slices = (
        "{name: en, where: \"language = 'en'\", min_prompts: 20}",
        "{name: fr, where: \"language = 'fr'\", min_prompts: 20}",
    )
    assert lint(of_slices(contract, *slices), prompts=probes) == ()


def test_a_slice_by_what_is_not_measured_yet_is_neither_counted_nor_refused(contract, probes):
    slices = (
        "{name: near, where: \"reference_margin < 0.2 AND language = 'en'\", unit: position, min_prompts: 20}",
        '{name: doubtful, where: "undecided", min_prompts: 20}',
        '{name: long, where: "prompt_tokens > 50", min_prompts: 20}',
    )
    unmeasured = probes.drop_columns(["prompt_tokens", "answer_tokens", "sampled_tokens"])
    assert lint(of_slices(contract, *slices), prompts=unmeasured) == ()
    measured = lint(of_slices(contract, *slices), prompts=probes)
    assert kinds(measured) == [(Kind.TOO_FEW_PROMPTS, "slices.long.min_prompts")]
    misspelt = of_slices(contract, '{name: near, where: "reference_margn < 0.2", unit: position, min_prompts: 20}')
    assert kinds(lint(misspelt, prompts=unmeasured)) == [(Kind.UNREADABLE_SLICE, "slices.near.where")]


def test_lengths_of_what_is_written_in_token_ids_are_known_beforehand():
    table = pa.table({"id": ["a", "b"], "token_ids": [[1, 2], [3]], "answer": ["x", "y"]})
    lengths = with_written_lengths(table)
    assert lengths["prompt_tokens"].to_pylist() == [2, 1]
    assert "answer_tokens" not in lengths.column_names


def test_the_columns_a_predicate_reads():
    assert columns_read("Prompt_Tokens >= 3 OR lower(\"Language\") = 'it''s prose'") == {"prompt_tokens", "language"}
    with pytest.raises(DefinitionError, match="cannot be read"):
        columns_read("1; DROP TABLE prompts")


def test_columns_that_are_searched_or_read_must_be_there(contract, probes):
    graded = '{tv_token: "0.5", measured_drift: {range: [0, 1], limit: 0.4, rewards: {reference: a, serving: score}}}'
    searching = contract(
        ('{tv_token: "0.10", greedy_flip_rate: "0.25"}', graded),
        ("numerical:", "search: {columns: [language, tenant]}\nnumerical:"),
        ("{batch_invariance: bitwise}", "{order: {bitwise: true, at_most: 0.2, sample: 50}}"),
        ("min_prompts: 100", "min_prompts: 40"),
    )
    found = [issue for issue in lint(searching, prompts=probes) if issue.severity is Severity.ERROR]
    assert (Kind.NO_COLUMN, "search.columns") in kinds(found)
    assert (Kind.NO_COLUMN, "statistical.measured_drift") in kinds(found)
    assert (Kind.TOO_FEW_PROMPTS, "runtime.order") in kinds(found)
    assert "has no column 'tenant'; it has" in "".join(issue.message for issue in found)


def test_an_escalation_nothing_sets_off(contract):
    idle = contract(("numerical:", "escalation: [{when: refuted, do: [log]}]\nnumerical:"))
    assert (Kind.NO_STAGES, "escalation") in kinds(lint(idle))
    assert (Kind.NO_STAGES, "escalation") not in kinds(lint(whole()))


def test_stages_need_a_clause_that_a_log_can_show(contract):
    unwatched = lint(contract(("numerical:", f"{STAGES}numerical:")))
    assert (Kind.UNMONITORED, "stages", Severity.ERROR) in [(i.kind, i.field, i.severity) for i in unwatched]
    unlogged = whole(("log: [sampled_logprob, margin, batch_size, cache_hit]", "log: [margin]"))
    (issue,) = [issue for issue in lint(unlogged) if issue.kind is Kind.UNMONITORED]
    assert issue.severity is Severity.WARNING


def test_slices_a_router_cannot_tell_from_a_request(probes):
    def routed(where, table=None):
        found = lint(whole(("prompt_tokens >= 4096", where)), prompts=table)
        return {issue.field: issue.message for issue in found if issue.kind is Kind.CANNOT_ROUTE}

    assert set(routed("prompt_tokens >= 4096")) == {"slices.undecided"}
    assert set(routed("language = 'en'", probes)) == {"slices.undecided"}
    assert routed("answer_tokens > 3 OR undecided")["slices.long-context.where"].endswith("no answer_tokens, undecided")
    assert routed("SCORE > 3", probes)["slices.long-context.where"].endswith("no score")
    assert "slices.long-context.where" not in routed("score > 3")


def test_the_whole_contract_has_only_what_cannot_be_helped():
    assert kinds(lint(whole())) == [(Kind.CANNOT_ROUTE, "slices.undecided")]


def test_the_contract_to_start_from_is_clean_with_and_without_its_rollout():
    text = starter("chat")
    for spelt in (text, re.sub(r"^# (?=observability|escalation|  - |stages)", "", text, flags=re.MULTILINE)):
        assert lint(parse_contract(spelt.encode(), "chat.yaml")) == ()
    assert "stages" in parse_contract(spelt.encode(), "chat.yaml").model_fields_set


def test_issues_are_found_in_the_text():
    text = replaced(('tv_token: "0.02"', 'tv_token: "0.6"'), ("prompt_tokens >= 4096", "prompt_tokens >= ("))
    lines = text.splitlines()
    issues = located(lint(parse_contract(text.encode(), "whole.yaml")), text)
    said = {issue.field: lines[issue.line - 1].split()[0:2] for issue in issues if issue.line}
    assert said["statistical.tv_token"] == ["tv_token:", '"0.6"']
    assert said["slices.long-context.where"] == ["-", "{name:"]
    assert all(issue.line for issue in issues)


@pytest.mark.parametrize(
    ("old", "new", "kind", "place"),
    [
        (
            "diagnostics: [kl, reverse_kl, jeffreys, k3, chi2, ess]",
            "diagnostics: {kl: 0.1}",
            Kind.UNBOUNDED,
            ("diagnostics", 41),
        ),
        ('tv_token: "0.02"', 'kl: "0.02"', Kind.UNBOUNDED, ("statistical.kl", 19)),
        ('tv_token: "0.02"', 'tv_tokn: "0.02"', Kind.MALFORMED, ("statistical.tv_tokn", 19)),
        ("do: [hold,", "do: [pray,", Kind.MALFORMED, ("escalation.1.do.0.str-enum[Act]", 45)),
        ("kind: KernelContract", "kind: [", Kind.MALFORMED, ("(document)", 4)),
    ],
)
def test_what_cannot_be_read_is_an_issue_with_its_place(old, new, kind, place):
    with pytest.raises(DefinitionError) as caught:
        parse_contract(replaced((old, new)).encode(), "a file.yaml")
    first = malformed(caught.value, "a file.yaml")[0]
    assert (first.kind, first.severity, (first.field, first.line)) == (kind, Severity.ERROR, place)
    assert first.message


def test_the_whole_text_has_the_lines_the_tests_count():
    assert WHOLE.splitlines()[40].startswith("diagnostics")
