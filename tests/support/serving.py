"""Servers for the router's tests: real HTTP servers that play an engine, and real vLLM servers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

RESPONSES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "unit" / "contracts" / "vllm_responses.json").read_text()
)
"""What vLLM 0.32 answered to requests as clients send them (`plain`), and as the router sends them on (`full`)."""


@contextmanager
def running(app: Any, url: str = "http://127.0.0.1:0") -> Iterator[str]:
    """Serve an ASGI app from a thread and yield its URL; the socket listens before anybody can ask."""
    listener = socket.create_server(("127.0.0.1", int(url.rpartition(":")[2])))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def closed_url() -> str:
    """Return a URL at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@dataclass
class Canned:
    """An engine that gives recorded answers, in whatever way it is told to fail.

    Attributes:
        way: `well`, `refuses`, `babbles`, `breaks` (a stream after its first chunk), `stops` (before it), `fails` (an
            error in its place) or `waits` (until the client hangs up).
        heard: Every body it got, in order.
        pause: Awaited after each chunk of a stream.
        waiting: Set when a request began to wait; `left` when its client hung up.
    """

    way: str = "well"
    heard: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 7
    waiting: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    pause: Callable[[], Awaitable[object]] | None = None

    def begin(self, way: str) -> None:
        """Play another part, and forget what was heard."""
        self.way, self.heard, self.tokens, self.pause = way, [], 7, None
        self.waiting.clear()
        self.left.clear()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/completions", self.answer, methods=["POST"]),
                Route("/v1/chat/completions", self.answer, methods=["POST"]),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/v1/models", self.page),
                Route("/health", self.page),
            ]
        )

    async def page(self, _request: Request) -> Response:
        return JSONResponse({"data": [{"id": "tiny"}]}, 500 if self.way == "refuses" else 200)

    async def tokenize(self, _request: Request) -> Response:
        return JSONResponse({"count": self.tokens})

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.heard.append(body)
        if self.way == "waits":
            self.waiting.set()
            while (await request.receive())["type"] != "http.disconnect":
                pass
            self.left.set()
        if self.way == "refuses":
            return JSONResponse({"error": {"message": "no", "code": 500}}, 500)
        if self.way == "babbles":
            return Response("<html>", media_type="text/html")
        case = RESPONSES[_case(body)]
        messages = case["full" if body.get("return_token_ids") else "plain"]
        if body.get("stream"):
            return StreamingResponse(self.chunks(messages), media_type="text/event-stream")
        return JSONResponse(messages[0], headers={"x-engine": "canned"})

    async def chunks(self, messages: list[dict[str, Any]]) -> AsyncIterator[bytes]:
        if self.way == "stops":
            return
        if self.way == "fails":
            yield b'data: {"error": {"message": "no"}}\n\ndata: [DONE]\n\n'
            return
        for message in messages:
            yield f"data: {json.dumps(message)}\n\n".encode()
            if self.way == "breaks":
                return
            if self.pause is not None:
                await self.pause()
        yield b"data: [DONE]\n\n"


def _case(body: dict[str, Any]) -> str:
    kind = "chat" if "messages" in body else "completion"
    return f"{kind} streamed" if body.get("stream") else kind


@dataclass(frozen=True)
class VllmServer:
    """A vLLM server in a process group of its own."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def wait_until_up(self, seconds: float = 300) -> None:
        for _ in range(int(seconds * 5)):
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            try:
                self.process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"vLLM exited {self.process.returncode}\n{self.log.read_text()[-4000:]}")
        raise AssertionError(f"vLLM is not up after {seconds} s\n{self.log.read_text()[-4000:]}")

    def kill(self) -> None:
        """Kill the server and its engine at once, as a machine that dies does."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()


@contextmanager
def vllm_server(model: Path, name: str = "tiny") -> Iterator[VllmServer]:
    """Start a vLLM server on a model and yield it, perhaps before it is up; it is killed in the end."""
    url = closed_url()
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--host", "127.0.0.1", "--port", url.rpartition(":")[2], "--served-model-name", name),
        *("--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "8", "--enforce-eager"),
        "--enable-prompt-tokens-details",
    ]
    log = model.with_name(f"{model.name}.server.log")
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    server = VllmServer(process, url, log)
    try:
        yield server
    finally:
        server.kill()
