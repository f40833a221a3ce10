"""The router before two real vLLM servers, one of which serves wrong numbers, under traffic that does not stop."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from journeys import Snapline
from serving import VllmServer, vllm_server
from tiny_model import write_tiny_model

from snapline.cli.wiring import Home
from snapline.contracts.records import contract_record, read_contract
from snapline.contracts.rollout.log import read_log
from snapline.contracts.rollout.observability import check_observability
from snapline.contracts.rollout.record import ServingRecord
from snapline.contracts.verdict import Verdict
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.events import Escalated, LineageEvent, StageEntered
from snapline.lineage.model import VersionKey

pytestmark = pytest.mark.engine
CONTRACT = """
apiVersion: snapline/v1
kind: KernelContract
name: tiny
probes: chats
reference: {engine: transformers, dtype: float32}
serving: {engine: vllm, dtype: float32}
confidence: "0.95"
paths: [prefill]
slices:
  - {name: all, min_prompts: 60}
  - {name: german, where: "language = 'de'", min_prompts: 60}
statistical: {tv_token: "0.2"}
observability:
  log: [sampled_logprob, margin, batch_size, cache_hit, route, latency_seconds]
  max_age: 1h
stages: {}
"""
ENOUGH = 20
AT_MOST = 20_000


@dataclass(frozen=True)
class Pair:
    """Two vLLM servers on what should be the same weights."""

    faulty: VllmServer
    reference: VllmServer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("models")
    good = write_tiny_model(folder / "good")
    faulty = scaled_layer(good, folder / "faulty")
    with vllm_server(faulty) as serving, vllm_server(good) as reference:
        serving.wait_until_up()
        reference.wait_until_up()
        yield Pair(serving, reference)


def scaled_layer(good: Path, folder: Path) -> Path:
    """Copy a model with one layer's scale changed, as a wrong loader would have it."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(good, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"] *= 1.5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@dataclass(frozen=True)
class Rollout:
    """A home with the rollout `tiny`, in full traffic."""

    snapline: Snapline

    @property
    def home(self) -> Home:
        return Home(self.snapline.home)

    def record(self, *events: LineageEvent) -> None:
        self.home.ledger.commit(lambda _state: events)

    def route_german_away(self) -> None:
        self.record(
            Escalated(
                at=datetime.now(UTC),
                rollout="tiny",
                clause="tv_token",
                slice="german",
                verdict="REFUTED",
                acts=("route_slice",),
                until=datetime.now(UTC) + timedelta(hours=1),
                reference_slices=("german",),
            )
        )


@pytest.fixture
def rollout(snapline: Snapline) -> Rollout:
    snapline.ok("init")
    found = Rollout(snapline)
    file = snapline.folder / "contract.yaml"
    file.write_text(CONTRACT)
    now = datetime.now(UTC)
    objects = found.home.objects(BulkAlgorithm.BLAKE3)
    record = contract_record(str(file), found.home.state(), objects, now)
    key = VersionKey(name="tiny", version=1)
    found.record(
        record, StageEntered(at=now, rollout="tiny", model=key, target="production", contract="tiny", stage="full")
    )
    return found


@dataclass(frozen=True)
class Running:
    url: str
    log: Path

    def rows(self) -> list[ServingRecord]:
        return [ServingRecord.model_validate_json(line) for line in self.log.read_text().splitlines()]


@contextmanager
def routing(rollout: Rollout, pair: Pair) -> Iterator[Running]:
    """Run `snapline route` and yield where it is; its log is whole once it has ended."""
    log = rollout.snapline.folder / "serving.jsonl"
    engines = ["--serving", pair.faulty.url, "--reference", f"{pair.reference.url}/v1"]
    process = rollout.snapline.start("route", "tiny", *engines, "--log", log, "--port", "0", "--json")
    try:
        assert process.stdout is not None
        answer = ""
        for line in process.stdout:
            answer += line
            if line == "}\n":
                break
        assert answer, process.communicate()[1]
        yield Running(json.loads(answer)["url"], log)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors, errors


@dataclass
class Client:
    """Somebody who asks one question after the other, in one language, until told to stop."""

    url: str
    language: str
    streams: bool = False
    answers: list[httpx.Response] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        with httpx.Client(
            base_url=self.url, timeout=60, headers={"x-snapline-tags": f"language={self.language}"}
        ) as http:
            for number in count():
                if stop.is_set() or number == AT_MOST:
                    return
                body, name = self.question(number)
                self.answers.append(http.post("/v1/completions", json=body, headers={"x-request-id": name}))

    def question(self, number: int) -> tuple[dict[str, Any], str]:
        name = f"{self.language}-{'stream' if self.streams else 'whole'}-{number}"
        prompt = [0, *((7 * number + 11 * k) % 990 + 5 for k in range(8 + number % 8))]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0, "stream": self.streams}
        return body, name

    @property
    def routes(self) -> list[str]:
        return [answer.headers.get("x-snapline-route", "") for answer in self.answers]


@contextmanager
def traffic(clients: list[Client]) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Let every client ask; yields what waits, while they do, until something holds."""
    stop = threading.Event()

    def until(holds: Callable[[], bool]) -> None:
        while not holds():
            assert not any(task.done() for task in tasks), [task.exception() for task in tasks if task.done()]
            stop.wait(0.02)

    with ThreadPoolExecutor(len(clients)) as pool:
        tasks = [pool.submit(client.run, stop) for client in clients]
        try:
            yield until
        finally:
            stop.set()
    for task in tasks:
        task.result()


def test_a_bad_slice_moves_to_the_reference_and_no_request_fails(rollout: Rollout, pair: Pair) -> None:
    with routing(rollout, pair) as router:
        languages = [("en", False), ("de", False), ("en", True), ("de", True)]
        clients = [Client(router.url, language, streams) for language, streams in languages]
        german = [client for client in clients if client.language == "de"]
        with traffic(clients) as until:
            until(lambda: all(len(client.answers) >= ENOUGH for client in clients))
            assert {route for client in clients for route in client.routes} == {"serving"}
            rollout.route_german_away()
            until(lambda: all(client.routes.count("reference") >= ENOUGH for client in german))
            english = len(clients[0].answers)
            until(lambda: len(clients[0].answers) >= english + ENOUGH)
        counted = httpx.get(f"{router.url}/health", timeout=60).json()
    for client in clients:
        assert {answer.status_code for answer in client.answers} == {200}
        if client.language == "en":
            assert set(client.routes) == {"serving"}
        else:
            assert client.routes == sorted(client.routes, reverse=True), "once moved, the slice stays moved"
        if client.streams:
            assert all(answer.text.endswith("data: [DONE]\n\n") for answer in client.answers)
    check_log(router, rollout, clients, counted["answers"])
    check_that_one_is_faulty(router)


def check_log(router: Running, rollout: Rollout, clients: list[Client], counted: dict[str, int]) -> None:
    """Every answer is in the log, by whom the client was told, and it holds what the contract demands."""
    rows = router.rows()
    logged = sorted((row.id, row.route) for row in rows if row.route != "shadow")
    seen = [(a.headers["x-snapline-request"], a.headers["x-snapline-route"]) for c in clients for a in c.answers]
    assert logged == sorted(seen)
    assert all(row.tags == {"language": row.id[:2], "temperature": "0"} for row in rows)
    assert {row.id[:2] for row in rows if row.route == "shadow"} == {"de"}
    assert max(row.batch_size or 0 for row in rows) > 1
    state = rollout.home.state()
    contract = read_contract(state.records["contract", "tiny"], rollout.home.objects(state.algorithm))
    assert contract.observability is not None
    tally = read_log(router.log, BulkAlgorithm.BLAKE3, lambda _: False).tally
    tally = tally.model_copy(update={"served": sum(counted.values())})
    now = datetime.now(UTC)
    findings = check_observability(contract.observability, tally, now - timedelta(minutes=5), now)
    assert {finding.verdict for finding in findings} == {Verdict.CERTIFIED}, findings


def check_that_one_is_faulty(router: Running) -> None:
    """The same German requests, answered by the reference and, as copies, by the serving engine, differ."""
    rows = router.rows()
    copies = {row.id: row for row in rows if row.route == "shadow"}
    both = [(row, copies[row.id]) for row in rows if row.route == "reference" and row.id in copies]
    assert len(both) >= ENOUGH
    assert all(row.prompt_ids == copy.prompt_ids for row, copy in both)
    assert sum(row.sampled_logprob != copy.sampled_logprob for row, copy in both) == len(both)


def test_a_serving_engine_that_is_killed_under_traffic_fails_no_request(rollout: Rollout, pair: Pair) -> None:
    """The last test of this file, for it leaves one server dead."""
    with routing(rollout, pair) as router:
        clients = [Client(router.url, language) for language in ("en", "fr", "de")]
        with traffic(clients) as until:
            until(lambda: all(client.routes.count("serving") >= ENOUGH for client in clients))
            pair.faulty.kill()
            until(lambda: all(client.routes.count("reference") >= ENOUGH for client in clients))
        health = httpx.get(f"{router.url}/health", timeout=60)
    for client in clients:
        assert {answer.status_code for answer in client.answers} == {200}
        assert client.routes == sorted(client.routes, reverse=True), "a killed engine answers nothing"
    assert (health.status_code, health.json()["serving"]) == (200, False)
    fallbacks = [row for row in router.rows() if row.route == "reference"]
    assert "unreachable" in {row.tags["snapline_fallback"] for row in fallbacks}
    assert len(router.rows()) == sum(len(client.answers) for client in clients)
