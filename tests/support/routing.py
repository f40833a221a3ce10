"""The router between two servers that play engines, for its unit tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from serving import RESPONSES, Canned, closed_url, running

from snapline.contracts.rollout.documents import LogField, StageName
from snapline.contracts.rollout.following import Follower, Outside, Voice
from snapline.contracts.rollout.log_writer import LogWriter
from snapline.contracts.rollout.record import ServingRecord
from snapline.contracts.rollout.routes import Rules
from snapline.contracts.rollout.upstream import Upstream
from snapline.contracts.router import Router, Servers
from snapline.lineage.errors import NotFoundError

COMPLETION, CHAT = (RESPONSES[name]["body"] for name in ("completion", "chat"))
FULL = Rules("r", StageName.FULL, log=tuple(LogField))


@dataclass
class Bench:
    """A router that runs, and everything around it."""

    url: str
    serving: Canned
    reference: Canned
    log: Path
    told: list[str]
    urls: dict[str, str]

    def post(self, body: dict[str, Any], tags: str = "", id: str = "", path: str = "") -> httpx.Response:
        headers = {name: value for name, value in {"x-snapline-tags": tags, "x-request-id": id}.items() if value}
        place = path or ("/v1/chat/completions" if "messages" in body else "/v1/completions")
        return httpx.post(f"{self.url}{place}", json=body, headers=headers, timeout=30)

    def rows(self) -> list[ServingRecord]:
        """What was logged; whole once the router has ended."""
        return [ServingRecord.model_validate_json(line) for line in self.log.read_text().splitlines()]

    def until(self, holds: Callable[[], bool]) -> None:
        """Ask the router how it is until something holds: a line is written beside the traffic, a moment later."""
        for _ in range(5000):
            if holds():
                return
            assert self.health
        raise AssertionError("it never held")

    @property
    def health(self) -> Any:
        return httpx.get(f"{self.url}/health", timeout=30).json()


@dataclass
class Clock:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


Played = dict[str, tuple[Canned, str]]


@contextmanager
def playing() -> Iterator[Played]:
    """Run two servers that play engines, and yield them with their URLs; `routing` gives them their parts."""
    with ExitStack() as stack:
        played = {name: Canned() for name in ("serving", "reference")}
        yield {name: (canned, stack.enter_context(running(canned.app()))) for name, canned in played.items()}


@contextmanager
def routing(
    played: Played,
    folder: Path,
    rules: Rules,
    *,
    serving: str = "well",
    reference: str = "well",
    gone: tuple[str, ...] = (),
    clock: Clock | None = None,
) -> Iterator[Bench]:
    """Run a router that follows these rules, and cannot read others.

    Args:
        serving, reference: How each engine behaves; see `Canned`.
        gone: Engines that cannot be reached.
    """
    told: list[str] = []
    numbers = count()
    outside = Outside(
        lambda: datetime(2026, 11, 30, tzinfo=UTC), clock or Clock(), lambda: f"new-{next(numbers)}", told.append
    )
    ways = {"serving": serving, "reference": reference}
    for name, (canned, _) in played.items():
        canned.begin(ways[name])
    urls = {name: closed_url() if name in gone else url for name, (_, url) in played.items()}
    log = folder / "log" / "serving.jsonl"
    log.parent.mkdir()
    voice = Voice(outside)
    servers = Servers(**{name: Upstream(name, url, 20) for name, url in urls.items()})

    def unreadable() -> Rules:
        raise NotFoundError("the ledger is away")

    follower = Follower(rules, unreadable, outside, voice)
    router = Router(follower, servers, LogWriter(log, told.append), outside, voice)
    with running(router.app()) as url:
        yield Bench(url, played["serving"][0], played["reference"][0], log, told, urls)


Routed = Callable[..., AbstractContextManager[Bench]]


def bare(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "system_fingerprint"}


def events(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [bare(json.loads(line)) for line in lines[:-1]]


def streamed(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "stream": True}
