"""Every clause has evidence of a known-bad engine that it must refute, and stands exactly at its limit."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from snapline.contracts.clauses import Numerical, Runtime, Statistical
from snapline.contracts.clauses.invariance import Invariance
from snapline.contracts.clauses.performance import PerformanceClause
from snapline.contracts.clauses.protocol import Clause, RateClause
from snapline.contracts.engines.protocol import Batching, Path
from snapline.contracts.judge import judge, measured
from snapline.contracts.timings import PairedTiming, timings_to_json
from snapline.contracts.verdict import Verdict

TWO_SIDED = ("measured_drift", "sampler_drift")
REWARDS = "rewards: {reference: graded_a, serving: graded_b}"
# The document's line, the path or what else it is held on, rows of a faulty engine, and the worst rows that still keep
# the promise to the letter (for a mean: that certify).
CASES = {
    "half_span": (
        'numerical: {half_span: {quantile: "0.90", limit: "2.0"}}',
        "prefill",
        {"half_span": [0.1, 9.0, 0.1]},  # a wrong scale
        {"half_span": 2.0},
    ),
    "log_ratio": (
        'numerical: {log_ratio: {quantile: "0.90", limit: "0.5"}}',
        "decode-sampled",
        {"logp_reference": [-1.0, -2.0, -1.0], "logp_serving": [-1.0, -1.0, -1.0]},
        {"logp_reference": -1.0, "logp_serving": [-1.5, -1.0, -0.5]},
    ),
    "tv_token": ('statistical: {tv_token: "0.10"}', "prefill", {"tv": 0.4}, {"tv": 0.04}),
    "tv_answer": (
        'statistical: {tv_answer: {horizon: 3, limit: "0.1"}}',
        "decode-sampled",
        {"logp_reference": [-1.0, -2.0, -1.0], "logp_serving": [-1.0, -1.0, -1.0]},
        {"logp_reference": [-1.0, -1.04, -3.0], "logp_serving": [-1.0, -1.0, -3.0]},
    ),
    "sampler_drift": (
        'statistical: {sampler_drift: {horizon: 3, limit: "0.2"}}',
        "decode-sampled",
        {"greedy_serving": 0, "top_serving": -0.1},  # it never draws what it says is nearly certain
        {"top_serving": -0.05},
    ),
    "reward_drift": (
        'statistical: {reward_drift: {range: ["-1", "3"], limit: "0.4"}}',
        "decode-sampled",
        {"logp_reference": [-1.0, -2.0, -1.0], "logp_serving": [-1.0, -1.0, -1.0]},
        {"logp_reference": [-1.0, -1.04, -3.0], "logp_serving": [-1.0, -1.0, -3.0]},
    ),
    "measured_drift": (
        'statistical: {measured_drift: {range: ["0", "2"], limit: "0.2", ' + REWARDS + "}}",
        "prefill",
        {"graded_a": 1.5, "graded_b": 0.9},
        {"graded_a": 1.0, "graded_b": 1.08},
    ),
    "policy_gradient_bias": (
        'statistical: {policy_gradient_bias: {advantage: "1", score: "2", limit: "0.4"}}',
        "decode-sampled",
        {"tv": 0.4},
        {"tv": 0.04},
    ),
    "greedy_flip_rate": (
        'statistical: {greedy_flip_rate: "0.25"}',
        "prefill",
        {"flip": [True, True, False]},  # other choices
        {"flip": False},
    ),
    "flip_exposure": (
        'statistical: {flip_exposure: {half_span: "0.05", limit: "0.25"}}',
        "prefill",
        {"margin": [0.1, 0.0, 5.0]},  # traffic full of near-ties
        {"margin": float(np.nextafter(0.1, 1.0))},
    ),
    "greedy_divergence": (
        'statistical: {greedy_divergence: {within: 2, at_most: "0.1"}}',
        "decode-forced",
        {"flip": [False, True, False]},
        {"flip": [False, False, True]},
    ),
    "calibration_drift": (
        'statistical: {calibration_drift: {bins: 10, limit: "0.2"}}',
        "prefill",
        {"greedy_serving": 0},  # sure of the wrong token
        {"top_serving": float(np.log(0.92))},
    ),
    "latency_ratio": (
        'runtime: {latency_ratio: {at_most: "1.5", quantile: "0.9", runs: 200}}',
        "generation",
        {"seconds_serving": 3.2},
        {"seconds_serving": 3.0},
    ),
    "throughput_ratio": (
        'runtime: {throughput_ratio: {at_least: "0.5", quantile: "0.9", runs: 200}}',
        "generation",
        {"seconds_serving": 4.1},
        {"seconds_serving": 4.0},
    ),
    "peak_memory_ratio": (
        'runtime: {peak_memory_ratio: {at_most: "2", quantile: "0.9", runs: 200}}',
        "generation",
        {"peak_serving": 2001},
        {"peak_serving": 2000},
    ),
}
BITWISE = {
    "batch_invariance": "{batch_invariance: bitwise, at_most: 0.1}",
    "order": "{order: {bitwise: true, at_most: 0.1}}",
    "repeat": "{repeat: {bitwise: true, runs: 3, at_most: 0.1}}",
    "prefix_cache": "{prefix_cache: {bitwise: true, at_most: 0.1}}",
    "chunked_prefill": "{chunked_prefill: {bitwise: true, at_most: 0.1}}",
    "threads": "{threads: {against: 1, bitwise: true, at_most: 0.1}}",
    "tensor_parallel": "{tensor_parallel: {against: 2, bitwise: true, at_most: 0.1}}",
    "cuda_graphs": "{cuda_graphs: {bitwise: true, at_most: 0.1}}",
}
for word, line in BITWISE.items():
    off_by_a_bit = {"identical": [True, True, False], "half_span": [0.0, 0.0, 1e-7]}
    CASES[word] = (f"runtime: {line}", "decode-forced", off_by_a_bit, {"identical": True, "half_span": 5.0})
    CASES[f"{word} by half span"] = (
        f"runtime: {line.replace('bitwise: true', 'half_span: 0.5').replace(': bitwise', ': {half_span: 0.5}')}",
        "decode-forced",
        {"identical": False, "half_span": [0.0, 0.6, 0.0]},
        {"identical": False, "half_span": 0.5},
    )
PROMPTS = [f"p{n:03}" for n in range(200)]
GRADES = {"graded_a": 1.0, "graded_b": 1.0}
DECLARED = {
    name: kind
    for group in (Numerical, Statistical, Runtime)
    for name, field in group.model_fields.items()
    for kind in getattr(field.annotation, "__args__", ())
    if isinstance(kind, type) and issubclass(kind, Clause)
}
OF_A_SHARE = [name for name in CASES if issubclass(DECLARED[name.split()[0]], RateClause)]
OF_ROWS = [name for name in CASES if not issubclass(DECLARED[name.split()[0]], PerformanceClause)]


@pytest.fixture(scope="module")
def promise(contract, contract_text):
    """Return the contract that promises one case alone."""
    tail = contract_text[contract_text.index("numerical:") :]

    def make(name):
        line, path, *_ = CASES[name]
        return contract((tail, line + "\n"), ("[prefill]", "[prefill]" if path == "generation" else f"[{path}]"))

    return make


@pytest.fixture(scope="module")
def finding(promise, evidence, prompts):
    """Return the finding on one case, of rows by prompt."""

    def make(name, rows_by_prompt, pair=None):
        document, path = promise(name), CASES[name][1]
        (clause,) = document.clauses
        if path == "generation":
            table = evidence({}).replace_schema_metadata({"timings": timings_to_json(timed(clause, rows_by_prompt))})
        else:
            rows = {p: {k: v for k, v in said.items() if k not in GRADES} for p, said in rows_by_prompt.items()}
            table = evidence(rows, pair=pair or clause.pair.value, path=path)
        said = [GRADES | rows_by_prompt.get(prompt, {}) for prompt in PROMPTS]
        grades = {name: pa.array([one[name] for one in said], pa.float64()) for name in GRADES}
        (found,) = judge(document, prompts(dict.fromkeys(PROMPTS, 3), **grades), table).findings
        return found

    return make


def timed(clause, rows_by_prompt):
    even = {"seconds_reference": 2.0, "seconds_serving": 2.0, "peak_reference": 1000, "peak_serving": 1000}
    batching, other = Batching.BATCHED, Batching.ALONE
    if not clause.batched:
        batching, other = other, batching
    # What the other kind of run shows is no part of the promise.
    runs = [PairedTiming(batching=other, prompts=("x",), tokens=8, **even | {"seconds_serving": 99, "peak_serving": 1})]
    runs += [
        PairedTiming(batching=batching, prompts=(prompt,), tokens=8, **even | said)
        for prompt, said in rows_by_prompt.items()
    ]
    return runs


def test_every_clause_of_the_language_is_tested_here():
    assert {name.split()[0] for name in CASES} == set(DECLARED)
    assert len(DECLARED) == 23


@pytest.mark.parametrize("name", DECLARED)
def test_a_clause_says_what_it_is_and_what_it_gives_up(name):
    kind = DECLARED[name]
    assert kind.name == name
    assert kind.__doc__.startswith(("The ", "Batches ", "Runs "))
    assert len(kind.gives_up) > 20
    assert not kind.gives_up.endswith(".")
    assert kind.reads or issubclass(kind, DECLARED["measured_drift"])


@pytest.mark.parametrize("name", CASES)
def test_a_known_bad_engine_is_refuted_with_its_witness(finding, name):
    found = finding(name, dict.fromkeys(PROMPTS, CASES[name][2]))
    assert found.verdict is Verdict.REFUTED
    assert Decimal(found.lower) > Decimal(found.limit)
    assert found.witness is not None
    if found.path != "generation":
        assert found.witness.prompt in PROMPTS
        assert found.witness.tokens[-1] == 7 + found.witness.position


@pytest.mark.parametrize("name", CASES)
def test_a_faultless_engine_is_certified(finding, promise, name):
    found = finding(name, {prompt: {} for prompt in PROMPTS})
    assert (found.verdict, found.witness) == (Verdict.CERTIFIED, None)
    assert (found.prompts, found.missing) == (200, 0)
    (clause,) = promise(name).clauses
    faultless = np.full(200, 0.5 if name in TWO_SIDED else 0.0)
    assert clause.estimate(faultless) == 0
    assert Decimal(found.upper) == pytest.approx(
        Decimal(clause.best_upper(200, float(found.level))), abs=Decimal("2e-9")
    )


@pytest.mark.parametrize("name", CASES)
def test_rows_exactly_at_the_limit_keep_the_promise(finding, name):
    assert finding(name, dict.fromkeys(PROMPTS, CASES[name][3])).verdict is Verdict.CERTIFIED


@pytest.mark.parametrize("name", OF_A_SHARE)
def test_a_share_exactly_as_allowed_is_undecided(finding, name):
    rows = {prompt: CASES[name][2] if number % 10 == 0 else {} for number, prompt in enumerate(PROMPTS)}
    found = finding(name, rows)
    assert (found.verdict, found.estimate, found.limit) == (Verdict.UNDECIDED, "0.1", "0.1")
    assert found.witness is not None


@pytest.mark.parametrize(
    ("name", "worst", "every"),
    [
        ("tv_token", {"tv": 0.1}, 1),
        ("policy_gradient_bias", {"tv": 0.1}, 1),
        ("greedy_flip_rate", {"flip": True}, 4),
        ("flip_exposure", {"margin": 0.1}, 4),
        ("calibration_drift", {"greedy_serving": 0}, 5),
        ("tv_answer", {"logp_reference": -np.inf}, 10),
        ("reward_drift", {"logp_serving": -np.inf}, 10),
    ],
)
def test_a_mean_exactly_as_allowed_is_undecided(finding, name, worst, every):
    found = finding(name, {prompt: worst if number % every == 0 else {} for number, prompt in enumerate(PROMPTS)})
    assert found.verdict is Verdict.UNDECIDED
    assert Decimal(found.estimate) == Decimal(found.limit)


@pytest.mark.parametrize("name", OF_ROWS)
def test_a_clause_reads_only_its_own_pair(finding, name):
    found = finding(name, dict.fromkeys(PROMPTS, CASES[name][2]), pair="noise-floor")
    assert (found.verdict, found.prompts, found.missing) == (Verdict.UNDECIDED, 0, 200)


@pytest.mark.parametrize("name", [name for name in OF_ROWS if name not in TWO_SIDED])
def test_a_clause_says_which_columns_it_reads(promise, evidence, name):
    document, path = promise(name), CASES[name][1]
    (clause,) = document.clauses
    pair = clause.pair.value
    seen = measured(evidence({"p": {}}, pair=pair, path=path), clause.pair, Path(path), {"p": 3})
    kept = {column: seen.columns[column] for column in {*clause.reads, "position"}}
    assert clause.units(type(seen)(seen.prompts, seen.starts, kept)).tolist() == [0.0]


@pytest.mark.parametrize("name", CASES)
def test_prompts_needed_is_where_the_best_outcome_certifies(promise, name):
    (clause,) = promise(name).clauses
    needed = clause.prompts_needed(0.003)
    faultless = np.full(needed, 0.5 if name in TWO_SIDED else 0.0)
    assert clause.best_upper(needed, 0.003) <= clause.allowed < clause.best_upper(needed - 1, 0.003)
    assert clause.best_upper(needed, 0.003) == pytest.approx(clause.upper(faultless, 0.003), rel=1e-9)


def test_every_invariance_compares_a_pair_of_its_own():
    kinds = [kind for kind in DECLARED.values() if issubclass(kind, Invariance)]
    assert len({kind.pair for kind in kinds}) == len({kind.between for kind in kinds}) == len(kinds) == 8


def test_the_prompt_is_the_unit_whatever_its_length(only, evidence):
    (clause,) = only(CASES["tv_token"][0]).clauses
    table = pa.concat_tables([evidence({"short": {"tv": 0.4}}, length=1), evidence({"long": {}}, length=9)])
    seen = measured(table, clause.pair, Path.PREFILL, {"short": 1, "long": 9})
    assert dict(zip(seen.prompts, clause.units(seen), strict=True)) == {"long": 0.0, "short": 0.4}


@pytest.mark.parametrize("grade", [None, -0.1, 2.1, float("inf")])
def test_a_prompt_without_a_grade_is_missing(finding, grade):
    rows = {prompt: {"graded_b": grade} if prompt == PROMPTS[7] else {} for prompt in PROMPTS}
    found = finding("measured_drift", rows)
    assert (found.verdict, found.prompts, found.missing) == (Verdict.UNDECIDED, 199, 1)


def test_a_mean_that_falls_is_refuted_like_one_that_rises(finding):
    for worse in ({"graded_b": 0.4}, {"graded_b": 1.6}):
        assert finding("measured_drift", dict.fromkeys(PROMPTS, worse)).verdict is Verdict.REFUTED


def test_shares_of_none_can_never_be_shown(only):
    contract = only("runtime: {batch_invariance: bitwise, at_most: 0}")
    assert contract.clauses[0].prompts_needed(0.05) is None


def test_a_clause_is_abstract_until_it_says_everything():
    with pytest.raises(TypeError, match="abstract"):
        Clause()  # type: ignore[abstract]
