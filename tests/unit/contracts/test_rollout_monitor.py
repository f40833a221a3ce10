"""Monitors: what they keep of a request, and verdicts that hold however often one looks."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_logs import FIRST, drift_of, records, requests

from snapline.contracts.clauses.protocol import Figures, Measured
from snapline.contracts.clauses.tv_answer import TvAnswer
from snapline.contracts.contract import KernelContract, Slice
from snapline.contracts.rollout.judging import Cells, judge_monitor, limits, members, more_needed, watched
from snapline.contracts.rollout.log import Tally
from snapline.contracts.rollout.monitor import (
    Facts,
    Monitor,
    Scored,
    extended,
    from_parquet,
    monitored,
    opened,
    to_parquet,
)
from snapline.contracts.verdict import Finding, Verdict
from snapline.lineage.documents import parse
from snapline.lineage.errors import DefinitionError, IntegrityError

TALLY = Tally(requests=1, oldest=FIRST, newest=FIRST)
FACTS = Facts(
    rollout="r", stage="canary", contract="sha256-contract-v1:" + "0" * 64, clauses=("tv_answer", "log_ratio")
)
ALL = Slice(name="all", min_prompts=1)


class LogRatio:
    """The share of answers with a token whose log-ratio exceeds 1."""

    name = "log_ratio"
    allowed = Decimal("0.1")
    figure = "share of answers with a token off by more than 1 nat"

    def relevant(self, measured: Measured) -> Measured:
        return measured

    def units(self, measured: Measured) -> Figures:
        return measured.any_row(np.abs(measured.columns["logp_serving"] - measured.columns["logp_reference"]) > 1)


CLAUSES = (TvAnswer.model_validate("0.1"), LogRatio())


def scored(rows: list[dict[str, Any]]) -> list[Scored]:
    return [Scored(record, record.reference_logprob) for record in records(rows)]


def after(rows: list[dict[str, Any]], monitor: Monitor | None = None) -> Monitor:
    return extended(monitor or opened(FACTS), scored(rows), CLAUSES, TALLY)


def judged(monitor: Monitor, *slices: Slice, min_requests: int = 20, confidence: str = "0.95") -> tuple[Finding, ...]:
    return judge_monitor(monitor, Cells(CLAUSES, slices or (ALL,), Decimal(confidence), min_requests))


def test_a_request_becomes_one_number_for_each_clause() -> None:
    monitor = after(requests([0.0, drift_of(0.4), drift_of(0.9)]))
    assert monitor.units("tv_answer") == pytest.approx([0.0, 0.4, 0.9])
    assert list(monitor.units("log_ratio")) == [0, 0, 1]
    assert monitor.rows["answer_tokens"].to_pylist() == [2, 2, 2]
    assert "token_ids" not in monitor.rows.column_names


def test_what_could_not_be_scored_is_kept_without_a_number() -> None:
    monitor = after(
        [*requests([0.0]), *requests([0.0], 1, sampled_logprob=None), *requests([0], 2, reference_logprob=None)]
    )
    assert np.isnan(monitor.units("tv_answer")).tolist() == [False, True, True]


def test_a_monitor_comes_back_out_of_its_bytes() -> None:
    monitor = after(requests([0.0, 0.3, 0.2], tags={"tenant": "a"}))
    data = to_parquet(monitor)
    found = from_parquet(data)
    assert (found.facts, found.rows) == (monitor.facts, monitor.rows)
    assert to_parquet(found) == data
    for damaged in (b"no parquet", data[:-9]):
        with pytest.raises(IntegrityError):
            from_parquet(damaged)


@settings(max_examples=40)
@given(drifts=st.lists(st.floats(0, 2), min_size=1, max_size=40), data=st.data())
def test_a_log_in_pieces_gives_the_monitor_of_the_whole(drifts: list[float], data: st.DataObject) -> None:
    rows = requests(drifts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    monitor = opened(FACTS)
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        monitor = after(rows[begin:end], monitor)
    assert to_parquet(monitor) == to_parquet(after(rows))


def test_enough_honest_requests_certify_and_too_few_say_how_many_are_missing() -> None:
    honest = judged(after(requests([0.0] * 400)))
    assert [finding.verdict for finding in honest] == [Verdict.CERTIFIED] * 2
    (tv, _) = judged(after(requests([0.0] * 15)))
    assert tv.verdict is Verdict.UNDECIDED
    assert "15 requests scored, 5 short of min_requests 20" in tv.reason
    assert "more like these would" in tv.reason


def test_the_forecast_is_kept() -> None:
    values = np.tile([0.0, 0.02], 30)
    more = more_needed(values, 0.01, 0.1)
    assert more is not None
    grown = np.tile(values, 100)[: len(values) + more]
    assert limits(grown, 0.01, 1000)[1] <= 0.1 < limits(grown[:-1], 0.01, 1000)[1]
    assert more_needed(np.full(10, 0.2), 0.01, 0.1) is None
    assert more_needed(np.empty(0), 0.01, 0.1) is None


def test_a_faulty_engine_is_refuted_with_the_request_that_shows_it_most() -> None:
    rows = requests([*[drift_of(0.3)] * 60, drift_of(0.99)])
    tv, ratio = judged(after(rows))
    assert tv.verdict is Verdict.REFUTED
    assert "most of all request 'r60' with 0.99" in tv.reason
    assert ratio.verdict is not Verdict.REFUTED, "one answer in sixty-one is within its tenth"


def test_a_fault_after_a_long_honest_time_is_seen_while_the_mean_still_looks_fine() -> None:
    late = after(requests([*[0.0] * 3000, *[drift_of(0.9)] * 60]))
    assert late.units("tv_answer").mean() < 0.1
    assert judged(late, min_requests=100)[0].verdict is Verdict.REFUTED


def test_leaving_out_what_looks_bad_certifies_nothing() -> None:
    honest, hidden = requests([0.0] * 400), requests([0.0] * 400)
    for row in hidden[::5]:
        del row["sampled_logprob"]
    assert judged(after(honest))[0].verdict is Verdict.CERTIFIED
    tv = judged(after(hidden))[0]
    assert (tv.verdict, tv.missing) == (Verdict.UNDECIDED, 80)
    assert "80 requests could not be scored" in tv.reason
    assert float(tv.lower) == 0.0, "what is not known convicts nobody either"


def test_a_slice_is_judged_on_its_own_requests() -> None:
    rows = [
        *requests([0.0] * 300, tags={"language": "en"}),
        *requests([drift_of(0.8)] * 60, 300, tags={"language": "de"}),
    ]
    german = Slice(name="german", where="language = 'de'", min_prompts=1)
    english = Slice(name="english", where="language = 'en'", min_prompts=1)
    found = {(f.clause, f.slice): f for f in judged(after(rows), german, english)}
    assert found["tv_answer", "german"].verdict is Verdict.REFUTED
    assert found["tv_answer", "english"].verdict is Verdict.CERTIFIED
    assert {finding.level for finding in found.values()} == {"0.00625"}


@pytest.mark.parametrize(
    ("where", "inside"),
    [
        ("prompt_tokens >= 3", [True, True]),
        ("answer_tokens > 2", [False, False]),
        ("tenant = 'a'", [True, False]),
        ("Tenant = 'a' and prompt_tokens = 3", [True, False]),
        ("nobody_logs_this = 1", [False, False]),
        ("\"long\" or tenant = 'a'", [True, True]),
        ("long", [False, True]),
        ("route = 'serving'", [True, True]),
    ],
)
def test_a_predicate_reads_tags_and_lengths_and_what_nobody_logged_matches_nothing(
    where: str, inside: list[bool]
) -> None:
    rows = [*requests([0], tags={"tenant": "a"}), *requests([0], 1, tags={"long": "true"})]
    assert members(Slice(name="s", where=where, min_prompts=1), after(rows).rows).tolist() == inside


def test_a_predicate_that_is_none_is_refused_by_the_slices_name() -> None:
    with pytest.raises(DefinitionError, match="slice 'broken'"):
        members(Slice(name="broken", where="prompt_tokens >", min_prompts=1), after(requests([0])).rows)


CONTRACT = """
apiVersion: snapline/v1
kind: KernelContract
name: tiny
probes: chats
reference: {engine: transformers, dtype: float32}
serving: {engine: vllm, dtype: bfloat16}
confidence: "0.95"
paths: [prefill, decode-sampled]
slices:
  - {name: all, min_prompts: 60}
  - {name: unsure, where: "undecided", min_prompts: 5}
  - {name: near, where: "reference_margin < 0.25", unit: position, min_prompts: 5}
statistical: {tv_token: "0.2", tv_answer: "0.2"}
"""


def test_a_monitor_holds_what_a_served_answer_can_show() -> None:
    contract = parse(CONTRACT, KernelContract, name="c")
    assert [clause.name for clause in monitored(contract)] == ["tv_answer"]
    assert [part.name for part in watched(contract)] == ["all"]
    text = CONTRACT.replace("paths: [prefill, decode-sampled]", "paths: [prefill]").replace(', tv_answer: "0.2"', "")
    assert monitored(parse(text, KernelContract, name="c")) == ()


def bursts(generator: np.random.Generator, length: int) -> list[int]:
    """Looks at random moments, most of them close to one another."""
    gaps = generator.choice([1, 2, 3, 40], size=length)
    return [int(place) for place in np.cumsum(gaps) if place <= length]


@pytest.mark.parametrize("kind", ["rare and large", "spread", "heavy at one end"])
def test_looking_often_convicts_an_honest_engine_no_more_often_than_stated(kind: str) -> None:
    """At the edge of what is allowed: with confidence 0.8 each side may fail in a tenth of the streams."""
    generator = np.random.default_rng(5)
    alpha, allowed, convicted, certified, streams = 0.1, 0.1, 0, 0, 250
    for _ in range(streams):
        if kind == "rare and large":
            values = (generator.random(250) < allowed).astype(float)
        elif kind == "spread":
            values = 2 * allowed * generator.random(250)
        else:
            values = generator.beta(0.05, 0.45, 250)
        seen = [limits(values[:look], alpha, 25) for look in bursts(generator, 250)]
        convicted += any(lower > allowed for lower, _ in seen)
        certified += any(upper < allowed for _, upper in seen)
    tolerated = alpha * streams + 3 * np.sqrt(alpha * (1 - alpha) * streams)
    assert convicted <= tolerated
    assert certified <= tolerated


def test_a_fixed_interval_would_not_survive_as_many_looks() -> None:
    """The negative control: Hoeffding's limit for one look, asked at every look, convicts far too often."""
    generator = np.random.default_rng(6)
    alpha, allowed, convicted, streams = 0.1, 0.5, 0, 250
    for _ in range(streams):
        values = (generator.random(2000) < allowed).astype(float)
        counts = np.arange(1, 2001)
        lower = np.cumsum(values) / counts - np.sqrt(np.log(1 / alpha) / (2 * counts))
        convicted += bool((lower > allowed).any())
    assert convicted > alpha * streams + 3 * np.sqrt(alpha * (1 - alpha) * streams)
