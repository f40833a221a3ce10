"""Every clause has evidence of a known-bad engine that it must refute, and stands exactly at its limit."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from snapline.contracts.clauses import Numerical, Runtime, Statistical
from snapline.contracts.clauses.protocol import Clause
from snapline.contracts.engines.protocol import Path
from snapline.contracts.judge import judge, measured
from snapline.contracts.verdict import Verdict

LINES = {
    "half_span": 'numerical: {half_span: {quantile: "0.90", limit: "2.0"}}',
    "tv_token": 'statistical: {tv_token: "0.10"}',
    "greedy_flip_rate": 'statistical: {greedy_flip_rate: "0.25"}',
    "batch_invariance": "runtime: {batch_invariance: bitwise, at_most: 0.1}",
    "batch_invariance by half span": "runtime: {batch_invariance: {half_span: 0.5, at_most: 0.1}}",
}
# What a faulty engine's rows say: a wrong scale, other distributions, other choices, sums that depend on the batch.
FAULTS = {
    "half_span": {"half_span": [0.1, 9.0, 0.1]},
    "tv_token": {"tv": 0.4},
    "greedy_flip_rate": {"flip": [True, True, False]},
    "batch_invariance": {"identical": [True, True, False], "half_span": [0.0, 0.0, 1e-7]},
    "batch_invariance by half span": {"identical": False, "half_span": [0.0, 0.6, 0.0]},
}
# The worst rows that still keep the promise to the letter.
AT_THE_LIMIT = {
    "half_span": {"half_span": 2.0},
    "tv_token": {"tv": 0.04},
    "greedy_flip_rate": {"flip": False},
    "batch_invariance": {"identical": True, "half_span": 5.0},
    "batch_invariance by half span": {"identical": False, "half_span": 0.5},
}
PROMPTS = [f"p{n:03}" for n in range(200)]


def verdict_on(only, evidence, name, rows_by_prompt):
    contract = only(LINES[name])
    (clause,) = contract.clauses
    table = evidence(rows_by_prompt, pair=clause.pair.value)
    (finding,) = judge(contract, {"all": PROMPTS}, dict.fromkeys(PROMPTS, 3), table)
    return finding


def test_every_clause_of_the_language_is_tested_here():
    groups = (Numerical, Statistical, Runtime)
    annotations = [str(field.annotation) for group in groups for field in group.model_fields.values()]
    declared = sum("clauses." in annotation for annotation in annotations)
    assert declared == len({name.split()[0] for name in LINES}) == 4


@pytest.mark.parametrize("name", LINES)
def test_a_known_bad_engine_is_refuted_with_its_witness(only, evidence, name):
    finding = verdict_on(only, evidence, name, dict.fromkeys(PROMPTS, FAULTS[name]))
    assert finding.verdict is Verdict.REFUTED
    assert Decimal(finding.lower) > Decimal(finding.limit)
    assert finding.witness is not None
    assert finding.witness.prompt in PROMPTS
    assert finding.witness.tokens[-1] == 7 + finding.witness.position


@pytest.mark.parametrize("name", LINES)
def test_a_faultless_engine_is_certified(only, evidence, name):
    finding = verdict_on(only, evidence, name, {prompt: {} for prompt in PROMPTS})
    assert (finding.verdict, finding.witness) == (Verdict.CERTIFIED, None)
    assert (finding.prompts, finding.missing, finding.estimate) == (200, 0, "0")


@pytest.mark.parametrize("name", LINES)
def test_rows_exactly_at_the_limit_keep_the_promise(only, evidence, name):
    finding = verdict_on(only, evidence, name, dict.fromkeys(PROMPTS, AT_THE_LIMIT[name]))
    assert finding.verdict is Verdict.CERTIFIED


@pytest.mark.parametrize("name", ["half_span", "batch_invariance", "batch_invariance by half span"])
def test_a_share_exactly_as_allowed_is_undecided(only, evidence, name):
    rows = {prompt: FAULTS[name] if number % 10 == 0 else {} for number, prompt in enumerate(PROMPTS)}
    finding = verdict_on(only, evidence, name, rows)
    assert (finding.verdict, finding.estimate, finding.limit) == (Verdict.UNDECIDED, "0.1", "0.1")
    assert finding.witness is not None


@pytest.mark.parametrize(("name", "column", "worst"), [("tv_token", "tv", 0.1), ("greedy_flip_rate", "flip", True)])
def test_a_mean_exactly_as_allowed_is_undecided(only, evidence, name, column, worst):
    share = 4 if name == "greedy_flip_rate" else 1
    rows = {prompt: {column: worst} if number % share == 0 else {} for number, prompt in enumerate(PROMPTS)}
    finding = verdict_on(only, evidence, name, rows)
    assert finding.verdict is Verdict.UNDECIDED
    assert Decimal(finding.estimate) == Decimal(finding.limit)


@pytest.mark.parametrize("name", LINES)
def test_a_clause_reads_only_its_own_pair(only, evidence, name):
    table = evidence(dict.fromkeys(PROMPTS, FAULTS[name]), pair="noise-floor")
    (finding,) = judge(only(LINES[name]), {"all": PROMPTS}, dict.fromkeys(PROMPTS, 3), table)
    assert (finding.verdict, finding.prompts, finding.missing) == (Verdict.UNDECIDED, 0, 200)


def test_the_prompt_is_the_unit_whatever_its_length(only, evidence):
    import pyarrow as pa

    (clause,) = only(LINES["tv_token"]).clauses
    table = pa.concat_tables([evidence({"short": {"tv": 0.4}}, length=1), evidence({"long": {}}, length=9)])
    seen = measured(table, clause.pair, Path.PREFILL, {"short": 1, "long": 9})
    assert dict(zip(seen.prompts, clause.units(seen), strict=True)) == {"long": 0.0, "short": 0.4}


@pytest.mark.parametrize("name", LINES)
def test_prompts_needed_is_where_the_best_outcome_certifies(only, name):
    (clause,) = only(LINES[name]).clauses
    needed = clause.prompts_needed(0.003)
    assert clause.best_upper(needed, 0.003) <= clause.allowed < clause.best_upper(needed - 1, 0.003)
    assert clause.best_upper(needed, 0.003) == pytest.approx(clause.upper(np.zeros(needed), 0.003), rel=1e-9)


def test_shares_of_none_can_never_be_shown(only):
    contract = only("runtime: {batch_invariance: bitwise, at_most: 0}")
    assert contract.clauses[0].prompts_needed(0.05) is None


def test_a_clause_is_abstract_until_it_says_everything():
    with pytest.raises(TypeError, match="abstract"):
        Clause()  # type: ignore[abstract]
