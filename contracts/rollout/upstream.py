"""One of the two OpenAI-compatible servers that the router stands in front of."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx

from snapline.contracts.errors import EngineError
from snapline.contracts.rollout.routes import Engine

CONNECT_SECONDS = 5.0
# Uvicorn, under vLLM, closes a connection that was idle for five seconds; one taken up just then would fail.
IDLE_SECONDS = 2.0
# What belongs to one connection (RFC 9110, 7.6.1) or to one spelling of the body, and is not handed on.
_OF_A_CONNECTION = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "content-length", "content-encoding", "accept-encoding", "expect"),
        *("date", "server"),
    }
)

# What decides how a prompt is spelled in tokens.
_OF_A_PROMPT = frozenset(
    {
        *("model", "prompt", "messages", "tools", "add_special_tokens", "add_generation_prompt"),
        *("continue_final_message", "chat_template", "chat_template_kwargs"),
    }
)


class UpstreamError(EngineError):
    """A server gave no answer that could be handed on.

    Args:
        reason: What happened, in one word of a tag: unreachable, refused, malformed or cut.
    """

    def __init__(self, message: str, reason: str = "refused") -> None:
        super().__init__(message, hint="Look at the server's own log.")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is an error, as the server gave it."""

    status: int
    content: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Whole:
    """A complete answer."""

    message: dict[str, Any]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that has begun: `first` is its first chunk, `rest` gives the others until the server says it is done.

    `rest` raises UpstreamError when the server stops without saying so; closing it closes the connection.
    """

    first: dict[str, Any]
    rest: AsyncGenerator[dict[str, Any], None]
    headers: Mapping[str, str]


class Upstream:
    """A server, and how many requests run on it.

    Args:
        engine: Which of the two it is.
        url: Where it answers, without `/v1`.
        patience: Seconds it may stay silent within one answer.
    """

    def __init__(self, engine: Engine, url: str, patience: float) -> None:
        self.engine = engine
        self.url = url
        self.running = 0
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(patience, connect=CONNECT_SECONDS, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=IDLE_SECONDS),
            trust_env=False,
        )

    @contextmanager
    def running_one(self) -> Iterator[int]:
        """Count a request as running for a while; yields how many run, this one included."""
        self.running += 1
        try:
            yield self.running
        finally:
            self.running -= 1

    async def whole(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Whole | Refusal:
        """Return the answer to a request that is not streamed.

        Raises:
            UpstreamError: There is none.
        """
        with self._failing():
            answer = await self._client.post(path, content=encoded(body), headers=_as_json(headers))
        if answer.status_code >= 400:
            return Refusal(answer.status_code, answer.content, handed_on(answer.headers))
        return Whole(self._message(answer.content), handed_on(answer.headers))

    async def stream(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Stream | Refusal:
        """Return the answer to a streamed request once its first chunk is there.

        Raises:
            UpstreamError: There is none, or its first chunk is an error.
        """
        with self._failing():
            request = self._client.build_request("POST", path, content=encoded(body), headers=_as_json(headers))
            answer = await self._client.send(request, stream=True)
        if answer.status_code >= 400:
            async with aclosing(answer):
                with self._failing():
                    return Refusal(answer.status_code, await answer.aread(), handed_on(answer.headers))
        chunks = self._chunks(answer)
        try:
            first = await anext(chunks)
        except StopAsyncIteration:
            raise UpstreamError(f"the {self.engine} engine at {self.url} answered nothing", "malformed") from None
        except BaseException:
            await chunks.aclose()
            raise
        return Stream(first, chunks, handed_on(answer.headers))

    async def get(self, path: str, headers: Mapping[str, str]) -> Refusal:
        """Return what a plain page says, whatever its status.

        Raises:
            UpstreamError: The server cannot be reached.
        """
        with self._failing():
            answer = await self._client.get(path, headers=headers)
        return Refusal(answer.status_code, answer.content, handed_on(answer.headers))

    async def length(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> int:
        """Return how many tokens the prompt of a request has, which vLLM's `/tokenize` tells.

        Raises:
            UpstreamError: It does not.
        """
        asked = {name: value for name, value in body.items() if name in _OF_A_PROMPT}
        with self._failing():
            answer = await self._client.post("/tokenize", content=encoded(asked), headers=_as_json(headers))
        try:
            return int(answer.json()["count"])
        except (ValueError, KeyError, TypeError):
            raise UpstreamError(f"the {self.engine} engine at {self.url} does not count tokens", "malformed") from None

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def _chunks(self, answer: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of server-sent events until `[DONE]`."""
        begun = False
        async with aclosing(answer):
            with self._failing("cut"):
                async for line in answer.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line.removeprefix("data:").strip()
                    if data == "[DONE]":
                        return
                    begun = True
                    yield self._message(data.encode())
        if not begun:
            raise UpstreamError(f"the {self.engine} engine at {self.url} sent no chunk of an answer", "malformed")
        raise UpstreamError(f"the {self.engine} engine at {self.url} stopped in the middle of an answer", "cut")

    def _message(self, content: bytes) -> dict[str, Any]:
        try:
            message = json.loads(content)
        except ValueError:
            message = None
        choices = message.get("choices") if isinstance(message, dict) else None
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise UpstreamError(
                f"the {self.engine} engine at {self.url}: expected an answer with choices, found {content[:200]!r}",
                "malformed",
            )
        return cast("dict[str, Any]", message)

    @contextmanager
    def _failing(self, reason: str = "unreachable") -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            found = str(error) or type(error).__name__
            raise UpstreamError(f"the {self.engine} engine at {self.url}: {found}", reason) from error


def encoded(message: Mapping[str, Any]) -> bytes:
    """Return a message as JSON in ASCII, which can spell every string that JSON can hold, lone surrogates too."""
    return json.dumps(message, separators=(",", ":")).encode()


def _as_json(headers: Mapping[str, str]) -> dict[str, str]:
    return {**headers, "content-type": "application/json"}


def handed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that may go from one connection to the next."""
    return {name: value for name, value in headers.items() if name.lower() not in _OF_A_CONNECTION}
