"""Slices of positions, undecided prompts, samples and timings: what a cell reads."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.contracts.engines.protocol import Batching
from snapline.contracts.evidence import evidence_from_parquet, evidence_to_parquet
from snapline.contracts.judge import judge
from snapline.contracts.provenance import Provenance
from snapline.contracts.slices import sample, with_lengths
from snapline.contracts.timings import PairedTiming, timings_to_json
from snapline.contracts.verdict import Verdict
from snapline.lineage.errors import DefinitionError

NAMES = [f"p{n:03}" for n in range(150)]
FULL = dict.fromkeys(NAMES, 3)
ALL = "min_prompts: 100}"


def slice_line(text: str) -> tuple[str, str]:
    return (ALL, ALL + f"\n  - {{name: part, {text}}}")


@pytest.fixture
def of_part(contract, evidence, prompts):
    """Return the finding of the half span clause on a slice named part."""

    def make(where, rows, **columns):
        wanted = contract(slice_line(where))
        findings = judge(wanted, prompts(FULL, **columns), evidence(rows)).findings
        return next(f for f in findings if (f.clause, f.slice) == ("half_span", "part"))

    return make


LATE_FAULT = {"half_span": [0.0, 0.0, 9.0], "margin": [3.0, 3.0, 0.1]}


def test_a_slice_of_positions_reads_those_positions_only(of_part):
    faulty = dict.fromkeys(NAMES, LATE_FAULT)
    assert of_part("unit: position, min_prompts: 50, where: depth < 2", faulty).verdict is Verdict.CERTIFIED
    found = of_part("unit: position, min_prompts: 50, where: depth >= 2", faulty)
    assert (found.verdict, found.witness.position) == (Verdict.REFUTED, 2)
    assert of_part("unit: position, min_prompts: 50, where: reference_margin < 0.25", faulty).verdict is Verdict.REFUTED


def test_only_prompts_with_a_position_inside_count(of_part):
    rows = {name: LATE_FAULT if n < 30 else {"margin": 3.0} for n, name in enumerate(NAMES)}
    found = of_part("unit: position, min_prompts: 50, where: reference_margin < 0.25", rows)
    assert (found.prompts, found.missing) == (30, 0)
    assert found.verdict is Verdict.REFUTED
    healthy = {name: {"margin": 0.1 if n < 30 else 3.0} for n, name in enumerate(NAMES)}
    few = of_part("unit: position, min_prompts: 50, where: reference_margin < 0.25", healthy)
    assert few.verdict is Verdict.UNDECIDED
    assert "30 prompts measured, 20 short of min_prompts 50" in few.reason


def test_a_prompt_nobody_measured_might_have_been_inside(of_part):
    found = of_part("unit: position, min_prompts: 50, where: depth < 2", {name: {} for name in NAMES[1:]})
    assert (found.verdict, found.missing) == (Verdict.UNDECIDED, 1)


def test_positions_may_be_chosen_by_columns_of_their_prompt(of_part):
    rows = {name: {"half_span": 9.0} if n % 2 else {} for n, name in enumerate(NAMES)}
    found = of_part(
        "unit: position, min_prompts: 50, where: language = 'en' AND depth < 2",
        rows,
        language=["de" if n % 2 else "en" for n in range(150)],
    )
    assert (found.verdict, found.prompts) == (Verdict.CERTIFIED, 75)


def test_undecided_prompts_are_a_slice(of_part):
    """Undecided: some margin is within twice the half span, so that a flip could not be ruled out."""
    close = {"margin": [3.0, 0.5, 3.0], "half_span": 0.3}
    wide = {"margin": 3.0, "half_span": 0.3}
    rows = {name: close if n < 60 else wide for n, name in enumerate(NAMES)}
    assert of_part("min_prompts: 50, where: undecided", rows).prompts == 60
    assert of_part("min_prompts: 50, where: NOT undecided", rows).prompts == 90
    assert of_part("unit: position, min_prompts: 50, where: undecided", rows).prompts == 60


def test_whole_answers_have_no_positions(contract, evidence, prompts):
    wanted = contract(
        ("[prefill]", "[decode-sampled]"),
        slice_line("unit: position, min_prompts: 50, where: depth < 2"),
        ('tv_token: "0.10"', 'tv_answer: "0.10"'),
        ("runtime: {batch_invariance: bitwise}\n", ""),
    )
    cells = {(cell.clause.name, cell.slice.name) for cell in wanted.cells}
    assert ("tv_answer", "all") in cells
    assert ("tv_answer", "part") not in cells
    assert ("half_span", "part") in cells
    findings = judge(wanted, prompts(FULL), evidence({n: {} for n in NAMES}, path="decode-sampled")).findings
    assert {finding.verdict for finding in findings} == {Verdict.CERTIFIED}


def test_a_predicate_about_positions_means_nothing_for_prompts(of_part):
    with pytest.raises(DefinitionError, match="slice 'part'"):
        of_part("min_prompts: 50, where: depth < 2", {name: {} for name in NAMES})


@given(st.sets(st.text(min_size=1), min_size=1, max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_a_smaller_sample_is_in_a_larger(ids, one, other):
    fewer, more = sorted((one, other))
    ordered = sorted(ids)
    assert set(sample(ordered, fewer)) <= set(sample(ordered[::-1], more))
    assert len(sample(ordered, fewer)) == min(fewer, len(ids))


def test_a_sampled_clause_wants_its_sample_and_nothing_else(contract, evidence, prompts):
    wanted = contract(("batch_invariance: bitwise", "batch_invariance: {bitwise: true, at_most: '0.2', sample: 60}"))
    chosen = sample(NAMES, 60)
    table = pa.concat_tables([evidence({n: {} for n in NAMES}), evidence({n: {} for n in chosen}, pair="batching")])
    finding = judge(wanted, prompts(FULL), table).findings[-1]
    assert (finding.slice, finding.prompts, finding.missing) == ("sample", 60, 0)
    assert finding.verdict is Verdict.CERTIFIED
    lost = judge(wanted, prompts(FULL), table.slice(0, table.num_rows - 3)).findings[-1]
    assert (lost.verdict, lost.missing) == (Verdict.UNDECIDED, 1)


@pytest.mark.parametrize(
    ("seconds", "runs", "verdict"), [(1.0, 30, "CERTIFIED"), (9.0, 30, "REFUTED"), (1.0, 29, "UNDECIDED")]
)
def test_timings_are_judged_from_the_evidence(only, evidence, prompts, seconds, runs, verdict):
    timing = {"batching": Batching.ALONE, "prompts": ("p000",), "tokens": 16, "seconds_reference": 2.0}
    taken = [PairedTiming(**timing, seconds_serving=seconds, peak_reference=1, peak_serving=1)] * runs
    table = evidence_from_parquet(
        evidence_to_parquet(evidence({n: {} for n in NAMES}), {"timings": timings_to_json(taken)})
    )
    clause = only('runtime: {latency_ratio: {at_most: "1.5", quantile: "0.5", runs: 30}}')
    (finding,) = judge(clause, prompts(FULL), table).findings
    assert (finding.verdict, finding.path, finding.prompts) == (verdict, "generation", runs)
    if verdict == "REFUTED":
        assert finding.witness.figures["seconds_serving"] == "9"
        assert Decimal(finding.estimate) == 1


def test_lengths_come_from_provenance():
    zero = "sha256-target-v1:" + "0" * 64
    digests = {"weights": "blake3-weights-v1:" + "0" * 64, "probes": "blake3-probes-v1:" + "0" * 64}
    known = Provenance(
        **digests,
        reference=zero,
        serving=zero,
        temperature="1",
        comparisons={},
        lengths={"a": (5, 3)},
        sampled={"a": 2},
    )
    found = with_lengths(pa.table({"id": ["a", "b"]}), known).to_pylist()
    assert found[0] == {"id": "a", "prompt_tokens": 5, "answer_tokens": 3, "sampled_tokens": 2}
    assert found[1] == {"id": "b", "prompt_tokens": 0, "answer_tokens": 0, "sampled_tokens": 0}
