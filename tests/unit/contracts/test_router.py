"""The router between two HTTP servers that give what vLLM gave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from routing import CHAT, COMPLETION, FULL, Played, Routed, bare, events, playing, routing, streamed
from serving import RESPONSES

from snapline.contracts.rollout.asked import drawn_as, tags_of
from snapline.contracts.rollout.documents import LogField, StageName
from snapline.contracts.rollout.routes import Rules, logged

GERMAN = Rules("r", StageName.FULL, reference_slices={"german": "language = 'de'"}, log=tuple(LogField))
LONG = Rules("r", StageName.FULL, reference_slices={"long": "prompt_tokens > 6"}, log=tuple(LogField))


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    with playing() as found:
        yield found


@pytest.fixture
def routed(played: Played, tmp_path: Path) -> Routed:
    return partial(routing, played, tmp_path)


@pytest.mark.parametrize("body", [COMPLETION, CHAT], ids=["completion", "chat"])
def test_an_answer_of_the_serving_engine_comes_through_as_it_would_be_and_is_logged(routed: Routed, body: Any) -> None:
    with routed(FULL) as bench:
        answer = bench.post(body, tags="language=en, tenant = a", id="r-17")
    case = RESPONSES["chat" if body is CHAT else "completion"]
    plain, full = case["plain"][0], case["full"][0]
    assert answer.json() == plain | {name: full[name] for name in ("id", "created")}
    assert answer.headers["x-snapline-route"] == "serving"
    assert answer.headers["x-snapline-request"] == "r-17"
    assert answer.headers["x-engine"] == "canned"
    (row,) = bench.rows()
    assert (row.id, row.route, row.batch_size, row.cache_hit) == ("r-17", "serving", 1, False)
    assert row.tags == {"language": "en", "tenant": "a"}
    assert len(row.margin or ()) == len(row.sampled_logprob or ()) == len(row.token_ids)
    assert bench.reference.heard == []


@pytest.mark.parametrize("body", [COMPLETION, CHAT], ids=["completion", "chat"])
def test_a_streamed_answer_comes_through_chunk_by_chunk(routed: Routed, body: Any) -> None:
    with routed(FULL) as bench:
        answer = bench.post(streamed(body))
    case = RESPONSES["chat streamed" if body is CHAT else "completion streamed"]
    same = {name: case["full"][0][name] for name in ("id", "created")}
    assert events(answer) == [bare(message) | same for message in case["plain"]]
    (row,) = bench.rows()
    assert row.token_ids == tuple(t for m in case["full"] for c in m["choices"] for t in c.get("token_ids") or ())
    assert row.id == answer.headers["x-snapline-request"] == "new-0"
    assert "snapline_cut" not in row.tags


def test_in_shadow_a_copy_goes_to_the_serving_engine_and_nobody_sees_its_answer(routed: Routed) -> None:
    with routed(Rules("r", StageName.SHADOW, log=tuple(LogField))) as bench:
        answer = bench.post(streamed(COMPLETION), id="r-1")
    assert answer.headers["x-snapline-route"] == "reference"
    assert events(answer)
    rows = bench.rows()
    assert sorted((row.id, row.route) for row in rows) == [("r-1", "reference"), ("r-1", "shadow")]
    assert rows[0].token_ids == rows[1].token_ids
    (copy,) = bench.serving.heard
    assert "stream" not in copy
    assert "stream_options" not in copy


def test_a_routed_slice_goes_to_the_reference_and_the_others_stay(routed: Routed) -> None:
    with routed(GERMAN) as bench:
        english, german, untagged = (bench.post(COMPLETION, tags=tags) for tags in ("language=en", "language=de", ""))
        by_metadata = bench.post({**COMPLETION, "metadata": {"language": "en"}})
    found = [answer.headers["x-snapline-route"] for answer in (english, german, untagged, by_metadata)]
    assert found == ["serving", "reference", "reference", "serving"]
    # The serving engine still gets copies of what it would have answered.
    assert sorted(row.route for row in bench.rows()) == ["reference"] * 2 + ["serving"] * 2 + ["shadow"] * 2


def test_a_slice_by_length_asks_the_reference_how_long_a_text_is(routed: Routed) -> None:
    with routed(LONG) as bench:
        routes = [
            bench.post({**COMPLETION, "prompt": prompt}).headers["x-snapline-route"] for prompt in ([1] * 6, [1] * 7)
        ]
        bench.reference.tokens = 6
        routes.append(bench.post({**COMPLETION, "prompt": "short"}).headers["x-snapline-route"])
        bench.reference.tokens = 7
        routes.append(bench.post(CHAT).headers["x-snapline-route"])
    assert routes == ["serving", "reference", "serving", "reference"]


def test_the_share_that_is_logged_is_taken_by_the_requests_id(routed: Routed) -> None:
    half = Rules("r", StageName.FULL, sampling=Decimal("0.5"))
    names = [f"r-{number}" for number in range(20)]
    with routed(half) as bench:
        for name in names:
            bench.post(COMPLETION, id=name)
        answers = bench.health["answers"]
    assert [row.id for row in bench.rows()] == [name for name in names if logged(half, name)]
    assert 0 < len(bench.rows()) < 20
    assert answers == {"serving": 20}
    # What is not logged is asked for as the client asked.
    assert sum("return_token_ids" in body for body in bench.serving.heard) == len(bench.rows())


def test_only_what_the_contract_demands_is_logged(routed: Routed) -> None:
    with routed(Rules("r", StageName.FULL, log=(LogField.BATCH_SIZE,))) as bench:
        bench.post(COMPLETION)
    (line,) = bench.log.read_text().splitlines()
    assert set(json.loads(line)) == {"id", "at", "route", "prompt_ids", "token_ids", "tags", "batch_size"}
    assert "logprobs" not in bench.serving.heard[0]


def test_an_answer_that_cannot_be_observed_is_the_references(routed: Routed) -> None:
    with routed(FULL) as bench:
        answer = bench.post({**COMPLETION, "echo": True})
    assert answer.headers["x-snapline-route"] == "reference"
    assert bench.reference.heard == [{**COMPLETION, "echo": True}]
    assert bench.rows() == []


@pytest.mark.parametrize(
    ("path", "method"), [("/v1/embeddings", "POST"), ("/", "GET"), ("/v1/completions", "GET"), ("/metrics", "GET")]
)
def test_anything_else_is_not_there(routed: Routed, path: str, method: str) -> None:
    with routed(FULL) as bench:
        answer = httpx.request(method, f"{bench.url}{path}", timeout=30)
    assert answer.status_code == 404
    assert "/v1/chat/completions" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "tags", "says"),
    [
        (b"{", "", "not JSON"),
        (b"[]", "", "expected a JSON object, found list"),
        (b'{"temperature": NaN}', "", "NaN"),
        (b"[" * 100_000, "", "not JSON"),
        (b"{}", "language", "NAME=VALUE"),
        (b"{}", "=de", "NAME=VALUE"),
    ],
)
def test_a_malformed_request_is_refused_with_what_was_expected(
    routed: Routed, content: bytes, tags: str, says: str
) -> None:
    with routed(FULL) as bench:
        answer = httpx.post(
            f"{bench.url}/v1/completions", content=content, headers={"x-snapline-tags": tags}, timeout=30
        )
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
    assert bench.serving.heard == bench.reference.heard == []


def test_a_client_can_give_no_column_that_the_router_computes_and_no_unusable_id(routed: Routed) -> None:
    with routed(LONG) as bench:
        answer = bench.post(COMPLETION, tags="prompt_tokens=99, snapline_cut=x, user=u", id="x" * 201)
        by_user = bench.post({**COMPLETION, "user": "v"})
    assert answer.headers["x-snapline-route"] == "serving"
    assert answer.headers["x-snapline-request"] == "new-0"
    assert [row.tags for row in bench.rows()] == [{"user": "u"}, {"user": "v"}]
    assert by_user.status_code == 200


def test_models_and_health_are_answered(routed: Routed) -> None:
    with routed(GERMAN) as bench:
        assert httpx.get(f"{bench.url}/v1/models", timeout=30).json() == {"data": [{"id": "tiny"}]}
        health = bench.health
    assert health["rollout"] == "r"
    assert health["stage"] == "full"
    assert health["reference_slices"] == ["german"]


@pytest.mark.parametrize(
    ("body", "tags"),
    [
        ({}, {}),
        ({"temperature": 1, "top_p": 1.0, "top_k": -1, "logit_bias": {}, "min_p": None}, {"temperature": "1"}),
        ({"temperature": 0.7}, {"temperature": "0.7"}),
        ({"temperature": True}, {}),
        ({"top_p": 0.9}, {"truncated": "true"}),
        ({"frequency_penalty": 0.5, "temperature": 0}, {"temperature": "0", "truncated": "true"}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"truncated": "true"}),
    ],
)
def test_how_an_answer_is_drawn_is_tagged_by_the_router_alone(body: dict[str, Any], tags: dict[str, str]) -> None:
    """A monitor's promises are about untruncated draws at the contract's temperature, so a client may not claim one."""
    assert drawn_as(body) == tags
    assert tags_of("temperature=1, truncated=false, language=en", body) == {"language": "en"}
