"""How clauses are written: short and long spellings, what they are held on, and what is refused."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from snapline.contracts.clauses.diagnostics import DIAGNOSTICS
from snapline.contracts.clauses.protocol import Measured
from snapline.contracts.contract import KernelContract
from snapline.contracts.engines.protocol import Path
from snapline.contracts.verdict import TIMED
from snapline.lineage.errors import DefinitionError

EVERY_PATH = tuple(Path)


def drift(limit="0.05", range='["0", "1"]', rest=""):
    return f'statistical: {{reward_drift: {{range: {range}, limit: "{limit}"{rest}}}}}'


@pytest.fixture(scope="module")
def clause(contract, contract_text):
    """Return the only clause of a line, in a contract that names every path."""
    tail = contract_text[contract_text.index("numerical:") :]

    def make(line):
        (found,) = contract((tail, line + "\n"), ("[prefill]", "[prefill, decode-forced, decode-sampled]")).clauses
        return found

    return make


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("runtime: {repeat: 3}", 'runtime: {repeat: {bitwise: true, runs: 3, at_most: "0.05"}}'),
        ("runtime: {repeat: bitwise}", "runtime: {repeat: {bitwise: true, runs: 2}}"),
        ("runtime: {order: bitwise}", 'runtime: {order: {bitwise: true, at_most: "0.050"}}'),
        ("runtime: {prefix_cache: bitwise}", "runtime: {prefix_cache: {bitwise: yes}}"),
        ('statistical: {tv_answer: "0.05"}', 'statistical: {tv_answer: {horizon: 32, limit: "0.05"}}'),
        (drift(), drift(rest=", horizon: 32")),
        (
            'statistical: {calibration_drift: {limit: "0.1"}}',
            'statistical: {calibration_drift: {bins: 10, limit: "0.1"}}',
        ),
        (
            'runtime: {latency_ratio: {at_most: "1.50"}}',
            'runtime: {latency_ratio: {at_most: "1.5", quantile: "0.5", runs: 30}}',
        ),
        (
            'runtime: {throughput_ratio: {at_least: "1"}}',
            'runtime: {throughput_ratio: {at_least: "1.0", quantile: "0.5", runs: 20}}',
        ),
    ],
)
def test_a_short_spelling_is_the_long_one(clause, short, long):
    assert clause(short) == clause(long)


@pytest.mark.parametrize(
    "line",
    [
        "runtime: {repeat: 1}",
        "runtime: {repeat: thrice}",
        "runtime: {order: 3}",
        "runtime: {order: {bitwise: true, half_span: 1}}",
        "runtime: {order: {at_most: 0.1}}",
        "runtime: {order: {bitwise: true, sample: 0}}",
        "runtime: {threads: bitwise}",
        "runtime: {threads: {against: 0, bitwise: true}}",
        "runtime: {tensor_parallel: {bitwise: true}}",
        'runtime: {latency_ratio: {at_most: "0"}}',
        'runtime: {latency_ratio: {at_least: "1"}}',
        'runtime: {throughput_ratio: {at_most: "1"}}',
        'runtime: {peak_memory_ratio: {at_most: "2", runs: 0}}',
        'runtime: {peak_memory_ratio: {at_most: "2", quantile: "1"}}',
        drift(limit="1"),
        drift(range='["0", "0.05"]'),
        drift(range='["1", "0"]'),
        drift(range='["0"]'),
        drift(rest=", horizon: 0"),
        'statistical: {measured_drift: {range: ["0", "1"], limit: "0.1"}}',
        'statistical: {measured_drift: {range: ["0", "1"], limit: "0.1", rewards: {reference: "", serving: b}}}',
        'statistical: {policy_gradient_bias: {advantage: "1", score: "2", limit: "4"}}',
        'statistical: {policy_gradient_bias: {advantage: "0", score: "2", limit: "0"}}',
        'statistical: {greedy_divergence: {within: 0, at_most: "0.1"}}',
        'statistical: {flip_exposure: {half_span: "-1", limit: "0.1"}}',
        'statistical: {calibration_drift: {bins: 0, limit: "0.1"}}',
        'numerical: {log_ratio: {limit: "0.5"}}',
    ],
)
def test_what_promises_nothing_or_the_impossible_is_refused(clause, line):
    with pytest.raises(DefinitionError, match=r"contract\.yaml:\d+: (numerical|statistical|runtime)\."):
        clause(line)


@pytest.mark.parametrize(
    ("line", "paths"),
    [
        ('numerical: {log_ratio: {quantile: "0.9", limit: "1"}}', ("prefill", "decode-forced", "decode-sampled")),
        ('statistical: {tv_answer: "0.05"}', ("decode-sampled",)),
        (drift(), ("decode-sampled",)),
        ('statistical: {flip_exposure: {half_span: "0.05", limit: "0.2"}}', ("prefill",)),
        ('statistical: {greedy_divergence: {within: 16, at_most: "0.3"}}', ("prefill", "decode-forced")),
        ('statistical: {calibration_drift: {limit: "0.1"}}', ("prefill", "decode-forced")),
        ("runtime: {order: bitwise}", ("prefill", "decode-forced")),
        ("runtime: {prefix_cache: bitwise}", ("decode-forced",)),
        ('runtime: {latency_ratio: {at_most: "2"}}', (TIMED,)),
    ],
)
def test_a_clause_is_held_where_it_means_something(clause, line, paths):
    assert clause(line).on(EVERY_PATH) == paths


def test_what_is_changed_is_said_where_the_pair_does_not_say_it(clause):
    changed = {
        "{repeat: 3}": "runs=3",
        "{threads: {against: 1, bitwise: true}}": "threads=1",
        "{tensor_parallel: {against: 2, bitwise: true}}": "tensor_parallel=2",
        "{order: bitwise}": "",
    }
    assert {line: clause(f"runtime: {line}").changed for line in changed} == changed
    assert "threads=1" in clause("runtime: {threads: {against: 1, bitwise: true}}").figure
    assert "3 runs" in clause("runtime: {repeat: 3}").figure


def test_a_sample_speaks_of_all_traffic_at_once(contract):
    document = contract(
        ("runtime: {batch_invariance: bitwise}", "runtime: {order: {bitwise: true, sample: 40, at_most: 0.2}}")
    )
    (cell,) = (cell for cell in document.cells if cell.clause.name == "order")
    assert (cell.slice.name, cell.slice.min_prompts, cell.path) == ("sample", 40, "prefill")


@pytest.mark.parametrize("limit", ["0.05", "0.3", "1"])
@pytest.mark.parametrize("range", ['["-1", "2"]', '["0", "7"]'])
def test_a_reward_limit_is_a_distance_rounded_so_that_it_never_allows_more(clause, limit, range):
    found = clause(drift(limit, range))
    whole = Decimal(3 if "-1" in range else 7)
    assert found.allowed * whole <= Decimal(limit) < (found.allowed + Decimal("1e-8")) * whole
    assert f"no reward drifts by more than {limit} in the range" in found.figure


def test_a_gradient_limit_is_a_distance(clause):
    found = clause('statistical: {policy_gradient_bias: {advantage: "1.5", score: "4", limit: "0.6"}}')
    assert found.allowed == Decimal("0.05")
    assert found.resolution == ("tv", Decimal("0.05"))


def test_a_calibration_limit_is_twice_its_figure(clause):
    promised = clause('statistical: {calibration_drift: {bins: 5, limit: "0.1"}}')
    assert "5 bins" in promised.figure
    assert promised.allowed == Decimal("0.05")


def test_an_answer_that_was_not_drawn_from_the_engine_counts_as_wholly_wrong(clause):
    """A token that the engine itself holds impossible, or the reference does, is no agreement."""
    promised = clause('statistical: {tv_answer: "0.05"}')
    for p, q in ((-np.inf, -1.0), (-1.0, -np.inf), (-np.inf, -np.inf)):
        seen = Measured(
            prompts=("drawn", "not"),
            starts=np.array([0, 2]),
            columns={
                "position": np.array([0, 1, 0, 1]),
                "logp_reference": np.array([-1.0, -1.0, p, -1.0]),
                "logp_serving": np.array([-1.0, -1.0, q, -9.0]),
            },
        )
        assert promised.units(seen).tolist() == [0.0, 1.0]
        assert promised.loudness(seen).tolist() == [-np.inf, -np.inf, np.inf, -np.inf]


def test_a_token_masked_on_both_sides_is_no_difference_and_on_one_side_the_largest(clause):
    promised = clause('numerical: {log_ratio: {quantile: "0.9", limit: "5"}}')
    columns = {
        "position": np.zeros(3, int),
        "logp_reference": np.array([-np.inf, -np.inf, -1.0]),
        "logp_serving": np.array([-np.inf, -1.0, -np.inf]),
    }
    assert promised.units(Measured(("a", "b", "c"), np.arange(3), columns)).tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "line",
    ['{latency_ratio: {at_most: "2"}}', '{throughput_ratio: {at_least: "0.5"}}', '{peak_memory_ratio: {at_most: "2"}}'],
)
def test_a_run_exactly_at_its_limit_does_not_speak_against_it(clause, line):
    promised = clause(f"runtime: {line}")
    columns = {f"{what}_reference": np.array([1.0, 1.0]) for what in ("seconds", "peak")}
    columns |= {f"{what}_serving": np.array([2.0, 3.0]) for what in ("seconds", "peak")}
    seen = Measured(("at it", "over it"), np.arange(2), columns | {"position": np.zeros(2, int)})
    assert promised.units(seen).tolist() == [0.0, 1.0]
    assert promised.loudness(seen).tolist() == [-np.inf, 1.5]


def measured_logs(p, q):
    rows = len(p)
    tokens = {
        "token": np.zeros(rows, int),
        "greedy_reference": np.zeros(rows, int),
        "greedy_serving": np.ones(rows, int),
    }
    tops = {"top_reference": np.full(rows, np.log(0.85)), "top_serving": np.full(rows, np.log(0.25))}
    kls = dict.fromkeys(("kl_reference_serving", "kl_serving_reference"), np.full(rows, 0.25))
    logs = {"logp_reference": np.array(p), "logp_serving": np.array(q)}
    columns = {"position": np.arange(rows)} | tokens | tops | kls | logs
    return Measured(("p",) if rows else (), np.zeros(min(rows, 1), int), columns)


def test_diagnostics_are_what_their_formulas_say():
    p, q = np.array([0.2, 0.5]), np.array([0.4, 0.5])
    found = {name: figure(measured_logs(np.log(p), np.log(q))) for name, figure in DIAGNOSTICS.items()}
    w = p / q
    assert found == pytest.approx(
        {
            "kl": 0.25,
            "reverse_kl": 0.25,
            "jeffreys": 0.5,
            "k3": (w - 1 - np.log(w)).mean(),
            "chi2": ((w - 1) ** 2).mean(),
            "ess": w.mean() ** 2 / (w**2).mean(),
            "ece_reference": 0.15,
            "ece_serving": 0.25,
        }
    )


def test_diagnostics_of_masked_tokens_are_infinite_never_small():
    masked_by_p = measured_logs([-np.inf, -1.0], [-1.0, -1.0])
    assert (DIAGNOSTICS["k3"](masked_by_p), DIAGNOSTICS["chi2"](masked_by_p)) == (np.inf, 0.5)
    assert DIAGNOSTICS["ess"](masked_by_p) == 0.5
    masked_by_q = measured_logs([-1.0, -1.0], [-np.inf, -1.0])
    assert [DIAGNOSTICS[name](masked_by_q) for name in ("k3", "chi2", "ess")] == [np.inf, np.inf, 0.5]
    never = measured_logs([-np.inf, -np.inf], [-1.0, -1.0])
    assert DIAGNOSTICS["ess"](never) == 0.0
    both = measured_logs([-np.inf, -1.0], [-np.inf, -1.0])
    assert [DIAGNOSTICS[name](both) for name in ("k3", "chi2", "ess")] == [0.0, 0.0, 1.0]


def test_diagnostics_of_nothing_are_no_numbers():
    assert all(np.isnan(figure(measured_logs([], []))) for figure in DIAGNOSTICS.values())


def test_the_schema_knows_the_short_spellings():
    definitions = KernelContract.model_json_schema()["$defs"]
    assert definitions["Order"]["anyOf"][:-1] == [{"const": "bitwise"}]
    assert definitions["Repeat"]["anyOf"][1:-1] == [{"type": "integer", "minimum": 2, "maximum": 100}]
    # What to run against has no default, so these have no short spelling.
    assert len(definitions["Threads"]["anyOf"]) == len(definitions["TensorParallel"]["anyOf"]) == 1
    limit, long = definitions["TvAnswer"]["anyOf"]
    assert {"type": "string"} in limit["anyOf"]
    assert long["properties"]["limit"]["anyOf"] == limit["anyOf"]
