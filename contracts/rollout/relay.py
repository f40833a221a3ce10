"""A streamed answer on its way from an engine to a client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack
from typing import Any

import anyio
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from snapline.contracts.rollout.openai import as_asked
from snapline.contracts.rollout.upstream import Stream, UpstreamError, encoded


class Relay(StreamingResponse):
    """A streamed answer on its way through: chunks in, chunks less what was not asked for out.

    When the engine breaks off, the client is told in an event, and the connection is closed without the end that a
    whole answer has.

    Args:
        body: The request as the client sent it.
        log: Called once with the chunks and, unless the answer came to its end, who cut it.
    """

    def __init__(
        self, stream: Stream, body: Mapping[str, Any], log: Callable[[list[dict[str, Any]], str | None], None]
    ) -> None:
        super().__init__(self._events(), media_type="text/event-stream")
        self.held = ExitStack()
        self._stream, self._body, self._log = stream, body, log
        self._seen: list[dict[str, Any]] = []
        self._cut: str | None = "client"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, and log it however it ended."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.held.close()
            self._log(self._seen, self._cut)
            with anyio.CancelScope(shield=True):
                await self._stream.rest.aclose()

    async def stream_response(self, send: Send) -> None:
        """Send the answer; on a broken one, return without the message that ends it, so that the server hangs up."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for event in self.body_iterator:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except UpstreamError as error:
            self._cut = "engine"
            event = _event(problem(502, "BadGatewayError", error.message))
            await send({"type": "http.response.body", "body": event, "more_body": True})
            return
        self._cut = None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        chunk = self._stream.first
        while True:
            self._seen.append(chunk)
            told = as_asked(chunk, self._body)
            if told is not None:
                yield _event(told)
            try:
                chunk = await anext(self._stream.rest)
            except StopAsyncIteration:
                break
        yield b"data: [DONE]\n\n"


def _event(message: Mapping[str, Any]) -> bytes:
    return b"data: " + encoded(message) + b"\n\n"


def problem(status: int, kind: str, message: str) -> dict[str, Any]:
    """Return an error in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}
