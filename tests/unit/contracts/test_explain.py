from __future__ import annotations

from datetime import timedelta

import pytest
from whole_contract import whole

from snapline.contracts.explain import Need, explain, span, words
from snapline.contracts.figures import decimal_text


@pytest.fixture(scope="module")
def told() -> str:
    return words(explain(whole(), {"all": 800, "sample": 800}))


def test_every_clause_is_said_with_its_limit_and_what_it_leaves_open(told):
    explanation = explain(whole())
    assert [promise.clause for promise in explanation.promises] == [clause.name for clause in whole().clauses]
    for clause, promise in zip(whole().clauses, explanation.promises, strict=True):
        assert promise.says.startswith(clause.figure)
        assert clause.gives_up in promise.leaves_open
        assert f"Promises: {promise.says}" in told
        assert promise.field in told


def test_the_prompts_needed_are_those_at_the_contracts_level_and_no_fewer_than_the_contract_wants():
    half_span = explain(whole(), {"all": 800}).promises[0]
    assert half_span.needed == whole().clauses[0].prompts_needed(float(whole().level))
    assert [need.least for need in half_span.needs] == [900, 900, 900]
    assert [need.missing for need in half_span.needs] == [100, None, None]
    tight = explain(whole(("min_prompts: 900}\n  - {name: long", "min_prompts: 1}\n  - {name: long"))).promises[0]
    assert tight.needs[0].least == half_span.needed


def test_what_is_missing_is_said_slice_by_slice(told):
    assert "all: at least 900 prompts; the probe set has 800, 100 are missing" in told
    assert "undecided: at least 900 prompts; how many there are is not known before measuring" in told
    assert "sample: at least 500 prompts; the probe set has 800, enough" in told
    assert "sample: at least 40 runs, timed on the prompts there are" in told


def test_a_limit_out_of_reach_is_said_to_be(only):
    contract = only("runtime: {batch_invariance: bitwise, at_most: 0}")
    explanation = explain(contract, {"all": 9})
    assert explanation.promises[0].needed is None
    assert explanation.promises[0].needs == (Need("all", None, 9),)
    assert "no feasible number of prompts certifies this" in words(explanation)
    assert "all: out of reach; the probe set has 9\n" in words(explanation)


def test_what_a_limit_on_tokens_leaves_open_is_a_number_for_the_longest_answer(only):
    tokens = only("statistical: {tv_token: 0.01}")
    assert "at each of 32 tokens leaves answers open to a total variation distance of 0.28" in words(explain(tokens))
    assert "at each of 500 tokens leaves answers open to a total variation distance of 0.99" in words(
        explain(tokens, longest=500)
    )
    answers = only("runtime: {batch_invariance: bitwise, at_most: 0.1}")
    assert "leaves answers open" not in words(explain(answers))


def test_the_family_wise_level_is_said_with_its_share(told):
    assert "any of its 147 cells gets a wrong verdict is at most 0.05" in told
    assert f"each side of a cell has {decimal_text(whole().level)} of it" in told


def test_what_is_logged_set_off_and_gone_through_is_said(told):
    for sentence in (
        "At least 0.5 of requests must be logged",
        "The newest logged request may be 30 days old.",
        "Logs are kept for 90 days.",
        "When a watched clause is refuted: the gate shuts, the slice's traffic goes to the reference and the webhook",
        "not again for the same clause and slice within 2 hours.",
        "shadow: the serving engine answers copies of 0.01 of requests, which nobody sees",
        "full: the serving engine answers every request; the reference scores 0.001 of its answers again",
        "Reported and not promised: kl, reverse_kl",
        "The worst slice is searched for by language, source",
    ):
        assert sentence in told


def test_a_contract_without_a_rollout_says_nothing_of_one(contract):
    explanation = explain(contract())
    assert (explanation.observability, explanation.escalation, explanation.stages) == ((), (), ())
    assert "stages" not in words(explanation)


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (timedelta(days=30), "30 days"),
        (timedelta(days=1), "1 day"),
        (timedelta(weeks=1), "7 days"),
        (timedelta(weeks=2), "2 weeks"),
        (timedelta(hours=36), "36 hours"),
        (timedelta(seconds=90), "90 seconds"),
    ],
)
def test_lengths_of_time_in_the_largest_whole_unit(length, said):
    assert span(length) == said
