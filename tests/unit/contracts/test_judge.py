from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.contracts.evidence import MEASURES, SCHEMA, TOKENS
from snapline.contracts.judge import judge, noise_floor
from snapline.contracts.verdict import Verdict, combine
from snapline.lineage.errors import IntegrityError

HALF_SPAN = 'numerical: {half_span: {quantile: "0.90", limit: "2.0"}}'
BAD = {"half_span": [0.0, 9.0, 1.0], "margin": [0.3, 0.2, 0.1]}
NAMES = [f"p{n:03}" for n in range(150)]
FULL = dict.fromkeys(NAMES, 3)
EARLY = [number < 60 for number in range(150)]


@pytest.fixture(scope="session")
def verdict(only, evidence, prompts):
    """Return the one finding of the half span clause, on evidence given by prompt."""

    def make(rows, expected=None, line=HALF_SPAN):
        (finding,) = judge(only(line), prompts(expected or dict.fromkeys(rows, 3)), evidence(rows)).findings
        return finding

    return make


def test_the_verdict_of_nothing_is_undecided(contract, evidence, prompts):
    assert combine([]) is Verdict.UNDECIDED
    findings = judge(contract(), prompts({}), evidence({})).findings
    assert len(findings) == 4
    assert {finding.verdict for finding in findings} == {Verdict.UNDECIDED}
    assert all((f.prompts, f.missing, f.estimate, f.witness) == (0, 0, "NaN", None) for f in findings)
    assert {(f.lower, f.upper) for f in findings} == {("0", "1")}


def test_refuted_beats_all(contract, evidence, prompts):
    serving = evidence({name: {"half_span": 9.0} for name in NAMES})
    batching = evidence({name: {} for name in NAMES[:99]}, pair="batching")
    findings = judge(contract(), prompts(FULL), pa.concat_tables([serving, batching])).findings
    verdicts = {finding.clause: finding.verdict for finding in findings}
    assert verdicts == {
        "half_span": Verdict.REFUTED,
        "tv_token": Verdict.CERTIFIED,
        "greedy_flip_rate": Verdict.CERTIFIED,
        "batch_invariance": Verdict.UNDECIDED,
    }
    assert combine(verdicts.values()) is Verdict.REFUTED


def test_cells_come_by_clause_slice_and_path(contract, evidence, prompts):
    spread = contract(
        ("[prefill]", "[prefill, decode-forced]"),
        ("min_prompts: 100}", "min_prompts: 100}\n  - {name: part, where: early, min_prompts: 50}"),
    )
    table = pa.concat_tables(
        evidence({name: {} for name in NAMES}, pair=pair, path=path)
        for pair in ("serving", "batching")
        for path in ("prefill", "decode-forced")
    )
    findings = judge(spread, prompts(FULL, early=EARLY), table).findings
    assert [(f.slice, f.path) for f in findings[:4]] == [
        ("all", "prefill"),
        ("all", "decode-forced"),
        ("part", "prefill"),
        ("part", "decode-forced"),
    ]
    assert [f.clause for f in findings[::4]] == ["half_span", "tv_token", "greedy_flip_rate", "batch_invariance"]
    assert {Decimal(f.level) for f in findings} == {Decimal("0.05") / 16 / 2}
    assert [f.prompts for f in findings[:4]] == [150, 150, 60, 60]


@pytest.mark.parametrize("measure", MEASURES)
def test_a_nan_makes_its_prompt_missing(verdict, measure):
    finding = verdict({name: {} for name in NAMES} | {"p000": {measure: [0.0, float("nan"), 0.0]}})
    assert (finding.verdict, finding.prompts, finding.missing) == (Verdict.UNDECIDED, 149, 1)
    assert "1 of 150 prompts gave no usable measurement" in finding.reason


@pytest.mark.parametrize("nonsense", [{"half_span": -1.0}, {"tv": -0.5}, {"tv": 1.5}])
def test_a_figure_that_cannot_be_makes_its_prompt_missing(verdict, nonsense):
    assert verdict({name: {} for name in NAMES} | {"p000": nonsense}).missing == 1


def test_an_infinite_half_span_is_an_event(verdict):
    finding = verdict({name: {"half_span": float("inf")} for name in NAMES})
    assert finding.verdict is Verdict.REFUTED
    assert finding.witness.figures["half_span"] == "Infinity"


def test_a_prompt_with_too_few_rows_is_missing(verdict):
    expected = FULL | {"p007": 4}
    finding = verdict({name: {} for name in NAMES}, expected=expected)
    assert (finding.verdict, finding.missing) == (Verdict.UNDECIDED, 1)


def test_a_prompt_with_a_position_twice_is_missing(verdict):
    finding = verdict({name: {} for name in NAMES} | {"p003": {"position": [0, 1, 1]}})
    assert (finding.verdict, finding.missing) == (Verdict.UNDECIDED, 1)


def test_a_prompt_nobody_said_the_length_of_is_missing(verdict):
    finding = verdict({name: {} for name in NAMES}, expected=FULL | {"p000": 0})
    assert finding.missing == 1


def test_too_few_prompts_never_certify_but_can_refute(verdict):
    few = verdict({name: {} for name in NAMES[:99]})
    assert (few.verdict, few.missing) == (Verdict.UNDECIDED, 0)
    assert Decimal(few.upper) <= Decimal(few.limit)
    assert "99 prompts measured, 1 short of min_prompts 100" in few.reason
    assert verdict({name: {} for name in NAMES[:100]}).verdict is Verdict.CERTIFIED
    assert verdict(dict.fromkeys(NAMES[:20], BAD)).verdict is Verdict.REFUTED


def test_the_witness_is_the_loudest_position_of_the_slice(contract, evidence, prompts):
    two = contract(("min_prompts: 100}", "min_prompts: 100}\n  - {name: part, where: early, min_prompts: 50}"))
    rows = dict.fromkeys(NAMES, BAD) | {"p090": {"half_span": [3.0, 4.0, 99.0], "token": [11, 12, 13]}}
    findings = judge(two, prompts(FULL, early=EARLY), evidence(rows)).findings
    whole, part = findings[0].witness, findings[1].witness
    assert (whole.prompt, whole.position, whole.tokens) == ("p090", 2, (11, 12, 13))
    assert whole.figures["half_span"] == "99"
    assert (part.prompt, part.position, part.tokens) == ("p000", 1, (7, 8))
    assert (part.figures["margin"], part.figures["flip"], part.figures["identical"]) == ("0.2", "false", "true")


def test_a_witness_shows_eight_tokens_at_most(only, evidence, prompts):
    table = evidence({name: {"half_span": 9.0} | {"position": list(range(20))} for name in NAMES}, length=20)
    loud = table.set_column(5, SCHEMA.field("half_span"), pa.array([*([5.0] * 19), 9.0] * len(NAMES)))
    (finding,) = judge(only(HALF_SPAN), prompts(dict.fromkeys(NAMES, 20)), loud).findings
    assert (finding.witness.position, finding.witness.tokens) == (19, tuple(range(19, 27)))


def test_what_is_printed_decides(verdict):
    for bad in range(0, 150, 5):
        finding = verdict({name: BAD if n < bad else {} for n, name in enumerate(NAMES)})
        lower, upper, limit = (Decimal(figure) for figure in (finding.lower, finding.upper, finding.limit))
        expected = Verdict.REFUTED if lower > limit else Verdict.CERTIFIED if upper <= limit else Verdict.UNDECIDED
        assert finding.verdict is expected
        assert lower <= Decimal(finding.estimate) <= upper


def test_the_reason_says_the_figure_and_the_limit(verdict):
    finding = verdict(dict.fromkeys(NAMES, BAD))
    assert finding.reason.startswith("share of prompts whose largest half span exceeds 2: at least 0.")
    assert finding.reason.endswith("above the 0.1 allowed")


def test_a_table_that_is_no_evidence_is_refused(only, evidence, prompts):
    table = evidence({"a": {}})
    for wrong in (
        table.drop_columns(["tv"]),
        table.set_column(0, "prompt", pa.nulls(3, pa.string())),
        table.set_column(3, "position", pa.array(["x", "y", "z"])),
    ):
        with pytest.raises(IntegrityError, match="not evidence"):
            judge(only(HALF_SPAN), prompts({"a": 3}), wrong)


def test_a_million_rows_are_judged(contract, prompts):
    count, length = 2_000, 250
    ids = np.repeat([f"p{n}" for n in range(count)], length)
    rows = len(ids)
    columns = {"prompt": ids, "path": ["prefill"] * rows, "position": np.tile(np.arange(length), count)}
    columns |= {name: np.zeros(rows, np.int32) for name in ("token", *TOKENS)}
    columns |= {"flip": np.zeros(rows, bool), "identical": np.ones(rows, bool)}
    columns |= {name: np.random.default_rng(0).random(rows) / 20 for name in MEASURES}
    table = pa.concat_tables(
        pa.table(columns | {"pair": [pair] * rows}).select(SCHEMA.names).cast(SCHEMA)
        for pair in ("serving", "batching")
    )
    names = [f"p{n}" for n in range(count)]
    findings = judge(contract(), prompts(dict.fromkeys(names, length)), table).findings
    assert {finding.verdict for finding in findings} == {Verdict.CERTIFIED}


def test_the_noise_floor(evidence):
    assert noise_floor(evidence({"a": {"half_span": 9.0}})) == {}
    rows = {"a": {"half_span": [0.0, 0.25, 0.0], "tv": [0.0, 0.01, 0.0], "identical": [True, False, False]}, "b": {}}
    floor = noise_floor(evidence(rows, pair="noise-floor"))
    assert floor == {"half_span": "0.25", "tv": "0.01", "not_identical": "0.333333334", "prompts": "2"}
    assert noise_floor(evidence({"a": {"tv": float("nan")}}, pair="noise-floor"))["tv"] == "NaN"


ORDER = {Verdict.REFUTED: 0, Verdict.UNDECIDED: 1, Verdict.CERTIFIED: 2}
share = st.integers(0, 150)


@settings(deadline=None, max_examples=30)
@given(bad=share, measured=share)
def test_a_missing_prompt_never_turns_a_verdict_into_certified(verdict, bad, measured):
    rows = {name: BAD if n < bad else {} for n, name in enumerate(NAMES[:measured])}
    before = verdict(rows)
    after = verdict(rows, expected=dict.fromkeys([*rows, "lost"], 3))
    assert after.verdict is not Verdict.CERTIFIED
    assert (before.verdict is Verdict.REFUTED) == (after.verdict is Verdict.REFUTED)


@settings(deadline=None, max_examples=30)
@given(one=share, other=share)
def test_a_worse_engine_never_gets_a_better_verdict(verdict, one, other):
    fewer, more = (
        verdict({name: BAD if n < bad else {} for n, name in enumerate(NAMES)}) for bad in sorted((one, other))
    )
    assert ORDER[more.verdict] <= ORDER[fewer.verdict]


@settings(deadline=None, max_examples=20)
@given(values=st.lists(st.floats(0, 1), min_size=120, max_size=120), raised=st.integers(0, 119))
def test_a_larger_figure_never_gets_a_better_verdict(verdict, values, raised):
    line = 'statistical: {tv_token: "0.5"}'
    before = verdict({f"p{n}": {"tv": value} for n, value in enumerate(values)}, line=line)
    values[raised] = 1.0
    after = verdict({f"p{n}": {"tv": value} for n, value in enumerate(values)}, line=line)
    assert ORDER[after.verdict] <= ORDER[before.verdict]


@settings(deadline=None, max_examples=20)
@given(order=st.randoms(use_true_random=False))
def test_the_order_of_rows_and_prompts_means_nothing(contract, evidence, prompts, order):
    rows = {name: {"half_span": [0.0, n / 10, 1.0], "tv": n / 300} for n, name in enumerate(NAMES)}
    table = evidence(rows)
    shuffled = table.take(order.sample(range(table.num_rows), table.num_rows))
    anew = prompts(dict.fromkeys(order.sample(NAMES, len(NAMES)), 3))
    assert judge(contract(), anew, shuffled) == judge(contract(), prompts(FULL), table)
