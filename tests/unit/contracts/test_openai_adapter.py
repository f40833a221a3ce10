"""What vLLM's OpenAI-compatible server says, as rows of a serving log; on answers that vLLM 0.32 really gave."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from serving import RESPONSES

from snapline.contracts.rollout.documents import LogField
from snapline.contracts.rollout.openai import Served, as_asked, asking, line_of, observable, records_of
from snapline.contracts.rollout.record import ServingRecord
from snapline.lineage.errors import DefinitionError

NOW = datetime(2026, 11, 30, 9, tzinfo=UTC)
SERVED = Served("r-17", NOW, "serving", batch_size=4, latency_seconds=0.21, tags={"language": "en"})
EVERYTHING = tuple(LogField)
ANSWER = ((381, 496, 171), (-1.8144389390945435, -2.6642611026763916, -5.106289863586426))


def bare(message: dict[str, Any]) -> dict[str, Any]:
    """A message less what differs between two answers; a streamed one's fingerprint goes with the usage chunk."""
    return {name: value for name, value in message.items() if name not in {"id", "created", "system_fingerprint"}}


@pytest.mark.parametrize("name", RESPONSES)
def test_a_client_sees_what_it_would_see_without_the_router(name: str) -> None:
    case = RESPONSES[name]
    told = [as_asked(message, case["body"]) for message in case["full"]]
    assert [bare(message) for message in told if message is not None] == [bare(message) for message in case["plain"]]


@pytest.mark.parametrize("name", RESPONSES)
def test_every_answer_becomes_a_row(name: str) -> None:
    rows = records_of(RESPONSES[name]["full"], SERVED)
    several = RESPONSES[name]["body"].get("n", 1) > 1
    assert [row.id for row in rows] == (["r-17.0", "r-17.1"] if several else ["r-17"])
    for row in rows:
        assert row.cache_hit is False
        assert len(row.sampled_logprob or ()) == len(row.token_ids)
        # Alternatives in words cannot be told apart when they are spelled alike.
        assert (row.margin is None) is (name == "completion with words")
        assert (row.at, row.route, row.batch_size, row.latency_seconds) == (NOW, "serving", 4, 0.21)
        assert row.tags == {"language": "en"}


@pytest.mark.parametrize(
    "name", ["completion", "completion streamed", "completion with ids", "completion with no alternatives"]
)
def test_the_same_answer_gives_the_same_figures_whole_and_in_chunks(name: str) -> None:
    (row,) = records_of(RESPONSES[name]["full"], SERVED)
    assert (row.token_ids, row.sampled_logprob) == ANSWER
    assert row.prompt_ids == (0, 17, 300, 42)
    assert row.margin == pytest.approx((0.396539568901062, 0.8886876106262207, 0.22684240341186523), abs=0)


def test_a_chat_gives_the_same_figures_whole_and_in_chunks() -> None:
    whole, chunked = (records_of(RESPONSES[name]["full"], SERVED) for name in ("chat", "chat streamed"))
    assert whole == chunked
    assert whole[0].token_ids == (516, 561)
    assert len(whole[0].prompt_ids) == 22


def test_what_is_asked_for_is_what_the_log_needs_and_no_more() -> None:
    body = {"prompt": [1], "stream": True}
    assert asking(body, ()) == body | {"return_token_ids": True}
    assert "logprobs" not in asking(body, (LogField.CACHE_HIT, LogField.BATCH_SIZE))
    assert asking(body, (LogField.CACHE_HIT,))["stream_options"] == {"include_usage": True}
    assert "stream_options" not in asking({"prompt": [1]}, EVERYTHING)
    assert asking(body, (LogField.MARGIN,))["logprobs"] == 3
    assert body == {"prompt": [1], "stream": True}


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"prompt": "a", "logprobs": 1}, {"logprobs": 1}),
        ({"prompt": "a", "logprobs": 1, "return_tokens_as_token_ids": True}, {"logprobs": 3}),
        ({"prompt": "a", "logprobs": 5}, {"logprobs": 5}),
        ({"prompt": "a", "logprobs": -1}, {"logprobs": -1}),
        ({"prompt": "a", "logprobs": "many"}, {"logprobs": "many"}),
        ({"messages": [], "logprobs": False}, {"logprobs": True, "top_logprobs": 3}),
        ({"messages": [], "logprobs": True, "top_logprobs": 1}, {"logprobs": True, "top_logprobs": 3}),
        ({"messages": [], "logprobs": True, "top_logprobs": 7}, {"logprobs": True, "top_logprobs": 7}),
        ({"prompt": "a", "stream": True, "stream_options": "all"}, {"stream_options": {"include_usage": True}}),
    ],
)
def test_what_a_client_asks_for_itself_stays(body: dict[str, Any], asked: dict[str, Any]) -> None:
    found = asking(body, EVERYTHING)
    assert {name: found[name] for name in asked} == asked


def completion(*tokens: tuple[float, dict[str, float]]) -> dict[str, Any]:
    logprobs = {"token_logprobs": [lp for lp, _ in tokens], "top_logprobs": [top for _, top in tokens]}
    answer = {"index": 0, "prompt_token_ids": [1], "token_ids": list(range(len(tokens))), "logprobs": logprobs}
    return {"choices": [answer]}


@pytest.mark.parametrize(
    ("sampled", "alternatives", "margin"),
    [
        (-3.0, {"token_id:7": -3.0, "token_id:1": -0.5, "token_id:2": -1.25}, 0.75),
        (-0.5, {"token_id:1": -0.5, "token_id:2": -1.25}, 0.75),
        (-3.0, {"token_id:7": -3.0, "token_id:1": -0.5}, None),  # the second largest was cut off
        (-0.5, {"token_id:1": -0.5}, None),
        (-3.0, {"a": -3.0, "b": -0.5, "c": -1.25}, None),  # words may hide one another
        (-0.5, {"token_id:1": -0.5, "token_id:2": -9999.0, "token_id:3": -9999.0}, 9998.5),
    ],
)
def test_a_margin_is_told_only_where_both_of_its_tokens_must_be_there(
    sampled: float, alternatives: dict[str, float], margin: float | None
) -> None:
    (row,) = records_of([completion((sampled, alternatives))], SERVED)
    assert row.margin == (None if margin is None else (margin,))
    assert row.sampled_logprob == (sampled,)


def test_a_figure_that_one_token_lacks_is_not_given_for_the_others() -> None:
    known = (-0.5, {"token_id:1": -0.5, "token_id:2": -1.25})
    (row,) = records_of([completion(known, (-0.5, {}))], SERVED)
    assert row.margin is None
    assert row.sampled_logprob == (-0.5, -0.5)


def test_logits_in_the_place_of_log_probabilities_are_refused() -> None:
    raw = completion((12.5, {"token_id:1": 12.5, "token_id:2": 11.0, "token_id:3": 9.0}))
    with pytest.raises(DefinitionError, match="probabilities exceed 1") as caught:
        records_of([raw], SERVED)
    assert "raw_logprobs" in caught.value.hint
    with pytest.raises(DefinitionError, match="sampled_logprob"):
        records_of([completion((12.5, {}))], SERVED)


@pytest.mark.parametrize("name", ["completion", "chat", "chat streamed"])
def test_an_answer_without_token_ids_is_refused_with_what_to_ask_for(name: str) -> None:
    with pytest.raises(DefinitionError, match="token ids") as caught:
        records_of(RESPONSES[name]["plain"], SERVED)
    assert "return_token_ids" in caught.value.hint


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"choices": []},
        {"choices": [{"text": "no index"}]},
        {"choices": [{"index": 0, "logprobs": {"content": [{"token": "a"}]}, "token_ids": [1]}]},
        {"choices": [{"index": 0, "logprobs": {"token_logprobs": [-1.0], "top_logprobs": []}, "token_ids": [1]}]},
        {"choices": [{"index": 0, "logprobs": "none", "token_ids": [1]}]},
    ],
)
def test_what_is_no_answer_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        records_of([message], SERVED)


def test_a_prefix_found_in_the_cache_is_a_hit() -> None:
    message = copy.deepcopy(RESPONSES["completion"]["full"][0])
    message["usage"]["prompt_tokens_details"]["cached_tokens"] = 16
    (row,) = records_of([message], SERVED)
    assert row.cache_hit is True
    message["usage"]["prompt_tokens_details"] = None
    (row,) = records_of([message], SERVED)
    assert row.cache_hit is None


@pytest.mark.parametrize(
    "body",
    [
        {"echo": True},
        {"use_beam_search": True},
        {"prompt_embeds": "AA=="},
        {"logprobs": 1, "logprob_token_ids": [3]},
        {"messages": [], "include_reasoning": False},
    ],
)
def test_an_answer_that_cannot_be_logged_is_known_before_it_is_given(body: dict[str, Any]) -> None:
    assert not observable(body)
    assert observable({"prompt": "a", "echo": False, "logprobs": 1})


def test_a_line_holds_what_the_contract_demands_and_no_text() -> None:
    (row,) = records_of(RESPONSES["completion"]["full"], SERVED)
    line = json.loads(line_of(row, (LogField.MARGIN, LogField.BATCH_SIZE)))
    assert set(line) == {"id", "at", "route", "prompt_ids", "token_ids", "tags", "margin", "batch_size"}
    everything = line_of(row, EVERYTHING)
    assert ServingRecord.model_validate_json(everything) == row
    assert RESPONSES["completion"]["full"][0]["choices"][0]["text"] not in everything
