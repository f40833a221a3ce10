from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from stored_evidence import ANSWER, OTHER, chat_probes, rows_of, stored_table

from snapline.contracts.compare import compare
from snapline.contracts.errors import IncomparableError
from snapline.lineage.errors import IntegrityError


@pytest.fixture
def held(contract):
    return contract()


@pytest.fixture
def probes():
    return chat_probes()


def by_measure(compared, pair="serving"):
    (found,) = [one for one in compared.pairs if one.pair == pair]
    return {difference.measure: difference for difference in found.differences}


def with_rows(table: pa.Table, pair: str, rows: pa.Table) -> pa.Table:
    """Evidence in which the rows of one pair are others."""
    kept = table.filter(pa.compute.field("pair") != pair)
    return pa.concat_tables([kept, rows.replace_schema_metadata(table.schema.metadata)])


def test_a_table_beside_itself_is_identical(held, probes):
    table = stored_table(held, probes)
    found = compare(table, table.take(list(range(table.num_rows - 1, -1, -1))))
    assert found.identical
    assert found.same_serving
    assert {(pair.pair, pair.path, pair.prompts) for pair in found.pairs} == {
        ("serving", "prefill", 60),
        ("batching", "prefill", 60),
        ("noise-floor", "prefill", 4),
    }
    assert all(one.difference == 0 for pair in found.pairs for one in pair.differences)
    assert all(one.lower <= 0 <= one.upper for pair in found.pairs for one in pair.differences)


def test_a_serving_engine_that_got_worse_is_shown_to_be(held, probes):
    ids = probes["id"].to_pylist()
    rng = np.random.default_rng(5)
    before = {
        one: {"tv": float(tv), "half_span": float(4 * tv)} for one, tv in zip(ids, rng.uniform(0, 0.3, 60), strict=True)
    }
    after = {one: {"tv": said["tv"] + 0.4, "half_span": said["half_span"] + 1.5} for one, said in before.items()}
    first = stored_table(held, probes, {"serving": before})
    second = stored_table(held, probes, {"serving": after}, serving=OTHER)
    found = compare(first, second)
    assert not found.same_serving
    assert not found.identical
    differences = by_measure(found)
    tv, half_span = differences["tv"], differences["half_span"]
    assert tv.difference == pytest.approx(0.4)
    assert 0 < tv.lower < 0.4 < tv.upper
    assert (half_span.statistic, half_span.difference) == ("median", pytest.approx(1.5))
    assert half_span.lower == pytest.approx(1.5)
    assert differences["flip"].difference == 0
    back = by_measure(compare(second, first))["tv"]
    assert (back.difference, back.lower) == (pytest.approx(-0.4), pytest.approx(-tv.upper))


def test_the_confidence_is_split_over_both_sides_of_every_limit(held, probes):
    table = stored_table(held, probes)
    assert compare(table, table, 0.9).level == pytest.approx(0.1 / (2 * 3 * 4))
    wide, narrow = (by_measure(compare(table, table, confidence))["tv"] for confidence in (0.99, 0.8))
    assert wide.lower < narrow.lower < narrow.upper < wide.upper


def test_prompts_of_one_table_alone_are_counted_and_left_out(held, probes):
    table = stored_table(held, probes)
    ids = probes["id"].to_pylist()
    fewer = with_rows(table, "serving", rows_of([*ids[5:], "another"], "serving", "prefill", {"another": {"tv": 1.0}}))
    (found,) = [pair for pair in compare(table, fewer).pairs if pair.pair == "serving"]
    assert (found.prompts, found.only_first, found.only_second, found.identical) == (55, 5, 1, False)
    assert {one.difference for one in found.differences} == {0.0}


def test_given_answers_with_other_tokens_are_not_compared(held, probes):
    table, ids = stored_table(held, probes), probes["id"].to_pylist()
    other = with_rows(table, "serving", rows_of(ids, "serving", "prefill", {ids[0]: {"token": 9, "tv": 1.0}}))
    (found,) = [pair for pair in compare(table, other).pairs if pair.pair == "serving"]
    assert (found.prompts, found.other_tokens) == (59, 1)
    assert by_measure(compare(table, other))["tv"].difference == 0


def test_drawn_answers_are_compared_whatever_was_drawn(contract, probes):
    drawn, ids = contract(("[prefill]", "[prefill, decode-sampled]")), probes["id"].to_pylist()
    first = stored_table(drawn, probes)
    other = rows_of(ids, "serving", "decode-sampled", {one: {"token": 9, "tv": 0.25} for one in ids})
    kept = first.filter(pa.compute.field("path") != "decode-sampled")
    second = pa.concat_tables([kept, other.replace_schema_metadata(first.schema.metadata)])
    (found,) = [pair for pair in compare(first, second).pairs if pair.path == "decode-sampled"]
    assert (found.prompts, found.other_tokens) == (60, 60)
    assert found.differences[0].difference == pytest.approx(0.25)


def test_a_figure_that_is_no_number_makes_its_prompt_unusable(held, probes):
    ids = probes["id"].to_pylist()
    broken = {"serving": {ids[0]: {"tv": float("nan")}, ids[1]: {"half_span": float("inf")}}}
    table, other = stored_table(held, probes), stored_table(held, probes, broken)
    (found,) = [pair for pair in compare(table, other).pairs if pair.pair == "serving"]
    assert (found.prompts, found.unusable) == (59, 1)
    assert by_measure(compare(other, other))["half_span"].difference == 0


def test_too_few_prompts_have_no_limit_on_a_median(held):
    few = chat_probes(3)
    table = stored_table(held, few)
    median = by_measure(compare(table, table))["half_span"]
    assert (median.lower, median.upper) == (-np.inf, np.inf)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", f"blake3-weights-v1:{'b' * 64}"),
        ("probes", f"blake3-probes-v1:{'b' * 64}"),
        ("temperature", "0.7"),
        ("reference", OTHER),
        ("recipe", "divergence-v0"),
    ],
)
def test_more_than_the_serving_side_may_not_differ(held, probes, field, value):
    with pytest.raises(IncomparableError, match=f"{field}: .*{value[:16]}"):
        compare(stored_table(held, probes), stored_table(held, probes, **{field: value}))


def test_a_table_that_says_nothing_of_itself_is_not_compared(held, probes):
    with pytest.raises(IntegrityError):
        compare(stored_table(held, probes), rows_of(["a"], "serving", "prefill"))


def test_a_pair_that_one_table_alone_has_is_told_without_figures(held, contract, probes):
    both = stored_table(contract(("[prefill]", "[prefill, decode-forced]")), probes)
    found = {(pair.pair, pair.path): pair for pair in compare(both, stored_table(held, probes)).pairs}
    alone = found["serving", "decode-forced"]
    assert (alone.prompts, alone.only_first, alone.differences) == (0, 60, ())
    assert both.num_rows == ANSWER * (4 * 60 + 4)
