"""The router when an engine, the log, the ledger or a client fails it, in every way each of them can."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from routing import CHAT, COMPLETION, FULL, Clock, Played, Routed, events, playing, routing, streamed
from serving import running

from snapline.contracts.rollout.documents import StageName
from snapline.contracts.rollout.following import BELIEVED_SECONDS, Follower, Outside, Voice
from snapline.contracts.rollout.log_writer import LogWriter
from snapline.contracts.rollout.routes import Rules
from snapline.contracts.router import ASLEEP_SECONDS
from snapline.lineage.errors import NotFoundError


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    with playing() as found:
        yield found


@pytest.fixture
def routed(played: Played, tmp_path: Path) -> Routed:
    return partial(routing, played, tmp_path)


@pytest.mark.parametrize("way", ["refuses", "babbles"])
@pytest.mark.parametrize("body", [COMPLETION, streamed(COMPLETION)], ids=["whole", "streamed"])
def test_what_the_serving_engine_fails_the_reference_answers(routed: Routed, way: str, body: Any) -> None:
    with routed(FULL, serving=way) as bench:
        answer = bench.post(body)
    assert answer.status_code == 200
    assert answer.headers["x-snapline-route"] == "reference"
    (row,) = bench.rows()
    expected = "refused" if way == "refuses" else "malformed"
    assert (row.route, row.tags) == ("reference", {"snapline_fallback": expected})
    assert len(bench.serving.heard) == len(bench.reference.heard) == 1
    assert any("the reference is asked instead" in told for told in bench.told)


@pytest.mark.parametrize("way", ["stops", "fails"])
def test_a_stream_that_fails_before_it_began_is_answered_by_the_reference(routed: Routed, way: str) -> None:
    with routed(FULL, serving=way) as bench:
        answer = bench.post(streamed(COMPLETION))
    assert events(answer)
    assert answer.headers["x-snapline-route"] == "reference"


@pytest.mark.parametrize("body", [COMPLETION, streamed(CHAT)], ids=["whole", "streamed"])
def test_a_serving_engine_that_is_gone_fails_nobody(routed: Routed, body: Any) -> None:
    with routed(FULL, gone=("serving",)) as bench:
        answers = [bench.post(body) for _ in range(5)]
        health = bench.health
    assert [answer.status_code for answer in answers] == [200] * 5
    reasons = [row.tags["snapline_fallback"] for row in bench.rows()]
    assert reasons == ["unreachable", *["asleep"] * 4]
    assert (health["serving"], health["reference"], health["answers"]) == (False, True, {"reference": 5})
    assert len([told for told in bench.told if "instead" in told]) == 2


def test_a_serving_engine_that_comes_back_is_asked_again(routed: Routed) -> None:
    clock = Clock()
    with routed(FULL, gone=("serving",), clock=clock) as bench:
        first = bench.post(COMPLETION)
        with running(bench.serving.app(), bench.urls["serving"]):
            asleep = bench.post(COMPLETION)
            clock.seconds = ASLEEP_SECONDS
            back = bench.post(COMPLETION)
    routes = [answer.headers["x-snapline-route"] for answer in (first, asleep, back)]
    assert routes == ["reference", "reference", "serving"]


def test_a_stream_that_breaks_after_it_began_is_cut_off_and_logged_so(routed: Routed) -> None:
    got: list[bytes] = []
    with (
        routed(FULL, serving="breaks") as bench,
        httpx.stream("POST", f"{bench.url}/v1/completions", json=streamed(COMPLETION), timeout=30) as answer,
    ):
        assert answer.headers["x-snapline-route"] == "serving"
        with pytest.raises(httpx.RemoteProtocolError):
            got.extend(answer.iter_bytes())
    assert b'"error"' in b"".join(got)
    assert b"[DONE]" not in b"".join(got)
    (row,) = bench.rows()
    assert (row.route, row.token_ids, row.tags) == ("serving", (381,), {"snapline_cut": "engine"})


def test_errors_of_the_reference_are_the_clients_to_see(routed: Routed) -> None:
    with routed(Rules("r", StageName.OFFLINE), reference="refuses") as bench:
        answer = bench.post(COMPLETION)
        health = httpx.get(f"{bench.url}/health", timeout=30)
    assert (answer.status_code, answer.json()) == (500, {"error": {"message": "no", "code": 500}})
    assert answer.headers["x-snapline-route"] == "reference"
    assert health.status_code == 503
    assert bench.rows() == []


def test_without_any_engine_the_client_is_told_so(routed: Routed) -> None:
    with routed(FULL, gone=("serving", "reference")) as bench:
        answer = bench.post(COMPLETION)
        models = httpx.get(f"{bench.url}/v1/models", timeout=30)
    assert answer.status_code == models.status_code == 502
    assert "reference" in answer.json()["error"]["message"]


@pytest.mark.parametrize("way", ["refuses", "babbles"])
def test_a_copy_that_fails_is_told_and_disturbs_nobody(routed: Routed, way: str) -> None:
    with routed(Rules("r", StageName.SHADOW), serving=way) as bench:
        answer = bench.post(COMPLETION)
    assert answer.status_code == 200
    assert [row.route for row in bench.rows()] == ["reference"]
    assert any("a copy was" in told for told in bench.told)


def test_rules_too_old_to_be_believed_keep_to_the_reference(routed: Routed) -> None:
    clock = Clock()
    with routed(FULL, clock=clock) as bench:
        first = bench.post(COMPLETION).headers["x-snapline-route"]
        clock.seconds = BELIEVED_SECONDS + 1
        second = bench.post(COMPLETION).headers["x-snapline-route"]
    assert (first, second) == ("serving", "reference")


def test_while_the_log_cannot_be_written_the_serving_engine_serves_nothing(routed: Routed) -> None:
    with routed(FULL) as bench:
        bench.log.unlink()
        bench.log.mkdir()
        assert bench.post(COMPLETION).headers["x-snapline-route"] == "serving"
        bench.until(lambda: not bench.health["log"])
        assert bench.post(COMPLETION).headers["x-snapline-route"] == "reference"
        bench.until(lambda: sum("lines are lost" in told for told in bench.told) == 2)
        bench.log.rmdir()
        bench.post(COMPLETION)
        bench.until(lambda: bench.health["log"])
        assert bench.post(COMPLETION).headers["x-snapline-route"] == "serving"
    assert [row.route for row in bench.rows()] == ["reference", "serving"]


def test_requests_beside_each_other_are_counted_and_one_nobody_waits_for_is_stopped(routed: Routed) -> None:
    body = json.dumps(COMPLETION).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: router\r\ncontent-length: %d\r\n\r\n" % len(body)
    with routed(FULL, serving="waits") as bench:
        place = httpx.URL(bench.url)
        with socket.create_connection((place.host, place.port or 0)) as connection:
            connection.sendall(head + body)
            assert bench.serving.waiting.wait(30)
            bench.serving.way = "well"
            bench.post(COMPLETION)
        assert bench.serving.left.wait(30)
        assert bench.health["answers"] == {"serving": 1}
        bench.post(COMPLETION)
    assert [row.batch_size for row in bench.rows()] == [2, 1]


def test_a_client_that_leaves_a_stream_leaves_what_it_got_in_the_log(routed: Routed) -> None:
    many = threading.Barrier(2, timeout=30)
    with routed(FULL) as bench:
        bench.serving.pause = lambda: asyncio.to_thread(many.wait)
        with httpx.stream("POST", f"{bench.url}/v1/completions", json=streamed(COMPLETION), timeout=30) as answer:
            next(answer.iter_bytes())
        bench.serving.pause = None
        bench.until(lambda: bench.rows() != [])
        many.wait()
        bench.post(COMPLETION, id="after")
    cut, _ = bench.rows()
    assert cut.tags == {"snapline_cut": "client"}
    assert cut.token_ids == (381,)


def test_rules_are_read_again_and_a_failed_reading_is_told_once() -> None:
    told: list[str] = []
    clock = Clock()
    outside = Outside(lambda: datetime.now(UTC), clock, str, told.append)
    readings = 0

    def read() -> Rules:
        nonlocal readings
        readings += 1
        if readings <= 2:
            clock.seconds += 4
            raise ValueError("away")
        return FULL

    async def follow() -> Rules:
        task = asyncio.create_task(follower.run())
        while follower.rules.stage is None:
            await asyncio.sleep(0)
        task.cancel()
        return follower.rules

    follower = Follower(FULL.shut, read, outside, Voice(outside), every=0)
    assert asyncio.run(follow()) == FULL
    assert follower.age == 0
    assert len(told) == 1
    assert "away" in told[0]


def test_a_line_cut_short_by_a_crash_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "serving.jsonl"
    path.write_text('{"id": "cut sho')

    async def write() -> None:
        log = LogWriter(path, print)
        writing = asyncio.create_task(log.run())
        for line in ("one", "two"):
            log.put(line)
        log.finish()
        await writing

    asyncio.run(write())
    assert path.read_text().splitlines() == ['{"id": "cut sho', "one", "two"]


def test_a_log_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"gone/serving\.jsonl"):
        LogWriter(tmp_path / "gone" / "serving.jsonl", print)
