"""Worst-slice search: it finds the bad slice, and pays for having looked."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from snapline.contracts.contract import Search
from snapline.contracts.judge import judge
from snapline.contracts.slices import candidates
from snapline.contracts.verdict import Verdict
from snapline.lineage.errors import DefinitionError

NAMES = [f"p{n:03}" for n in range(240)]
LANGUAGE = [("en", "de", "fr")[n % 3] for n in range(240)]
SOURCE = ["web" if n < 180 else "book" if n < 230 else None for n in range(240)]
SEARCH = "search: {columns: [language, source], min_prompts: 60}\n"


@pytest.fixture
def judged(contract, evidence, prompts):
    def make(rows, line=SEARCH):
        searching = contract(("numerical:", f"{line}numerical:"))
        table = prompts(dict.fromkeys(NAMES, 3), language=LANGUAGE, source=SOURCE)
        return judge(searching, table, evidence(rows))

    return make


def test_candidates_are_the_values_of_the_columns_that_have_prompts_enough(prompts):
    table = prompts(dict.fromkeys(NAMES, 3), language=LANGUAGE, source=SOURCE)
    found, passed_over = candidates(Search(columns=("language", "source"), min_prompts=60), table)
    assert {name: len(ids) for name, ids in found.items()} == {
        "language = en": 80,
        "language = de": 80,
        "language = fr": 80,
        "source = web": 180,
    }
    assert passed_over == 1
    with pytest.raises(DefinitionError, match="no column 'tenant'"):
        candidates(Search(columns=("tenant",)), table)


def test_a_fault_on_one_language_is_found_and_refutes(judged):
    faulty = {"half_span": 9.0}
    found = judged({name: faulty if LANGUAGE[n] == "de" else {} for n, name in enumerate(NAMES)})
    worst = next(one for one in found.searched if one.clause == "half_span")
    assert (worst.slice, worst.prompts, worst.candidates, worst.passed_over) == ("language = de", 80, 4, 1)
    refuting = [finding for finding in found.findings if finding.slice == "language = de"]
    assert [(f.clause, f.verdict) for f in refuting] == [("half_span", Verdict.REFUTED)]
    assert refuting[0].reason.endswith("on the worst of 4 slices searched, above the 0.1 allowed")


def test_all_candidates_share_the_error_of_one_cell(judged):
    found = judged({name: {} for name in NAMES})
    cells = len(found.findings) + len(found.searched)
    assert (cells, len(found.searched)) == (8, 4)
    level = Decimal(found.findings[0].level)
    assert level == Decimal("0.05") / 8 / 2
    assert {Decimal(one.level) for one in found.searched} == {level / 4}


def test_what_is_searched_certifies_nothing(judged):
    found = judged({name: {} for name in NAMES})
    assert {finding.slice for finding in found.findings} == {"all"}
    nobody = judged({name: {} for name in NAMES}, "search: {columns: [language], min_prompts: 200}\n")
    assert {(one.slice, one.candidates, one.passed_over) for one in nobody.searched} == {("", 0, 3)}


def test_looking_at_many_honest_slices_rarely_refutes(contract, evidence, prompts):
    """Sixty slices of an engine at its limit: a plain 95% limit each would refute in nearly every run."""
    random = np.random.default_rng(5)
    searching = contract(("numerical:", "search: {columns: [tenant], min_prompts: 10}\nnumerical:"))
    refuted = 0
    for _ in range(40):
        bad = random.random(1200) < 0.10
        names = [f"p{n}" for n in range(1200)]
        table = prompts(dict.fromkeys(names, 1), tenant=[f"t{n % 60}" for n in range(1200)])
        rows = evidence({name: {"half_span": 9.0 * bad[n]} for n, name in enumerate(names)}, length=1)
        found = judge(searching, table, rows)
        refuted += any(one.finding for one in found.searched)
    assert refuted <= 2


def test_a_searched_column_must_be_there(contract, evidence):
    searching = contract(("numerical:", "search: {columns: [tenant]}\nnumerical:"))
    table = pa.table({"id": ["a"], "prompt_tokens": [1], "answer_tokens": [3], "sampled_tokens": [0]})
    with pytest.raises(DefinitionError, match="no column 'tenant'"):
        judge(searching, table, evidence({"a": {}}))
