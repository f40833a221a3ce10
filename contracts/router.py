"""The router: an ASGI app before two OpenAI-compatible servers, the serving engine and the reference.

It sends each request where the ledger's state says, and logs what the contract's observability clause demands. Laws:

- A request that the serving engine fails (unreachable, an error status, no readable answer) before the client got a
  byte is answered by the reference. An answer that breaks after it began is cut off: nobody takes it for whole.
- What cannot be observed is not served: an answer that cannot be logged, and every answer while the log cannot be
  written or the rules are too old, is the reference's.
- The client sees what it would see without the router, and two headers more.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Place

from snapline.contracts.rollout.asked import Asked, asked_of
from snapline.contracts.rollout.documents import LogField
from snapline.contracts.rollout.following import Follower, Outside, Voice
from snapline.contracts.rollout.log_writer import LogWriter
from snapline.contracts.rollout.openai import Served, as_asked, asking, line_of, observable, records_of
from snapline.contracts.rollout.relay import Relay, problem
from snapline.contracts.rollout.routes import (
    LENGTH,
    Route,
    Rules,
    asks_for_length,
    decide,
    logged,
    may_be_inside,
)
from snapline.contracts.rollout.upstream import Refusal, Stream, Upstream, UpstreamError, encoded
from snapline.lineage.errors import DefinitionError

GENERATING = ("/v1/completions", "/v1/chat/completions")
MOST_SHADOWS = 64
LAST_SECONDS = 5.0
ASLEEP_SECONDS = 1.0
GONE = 499  # nobody is there to read it
Answered = TypeVar("Answered")


@dataclass(frozen=True, slots=True)
class Job:
    """A request on its way to one of the engines.

    Attributes:
        fields: What to log of its answer; None when it is not logged.
        began: When it came in, by the monotonic clock.
        fallback: Why the serving engine did not answer it, when that was asked first.
    """

    asked: Asked
    fields: tuple[LogField, ...] | None
    began: float
    fallback: str | None = None

    @property
    def sent(self) -> dict[str, Any]:
        """The body to send on."""
        return self.asked.body if self.fields is None else asking(self.asked.body, self.fields)


@dataclass(frozen=True, slots=True)
class Servers:
    """The two servers."""

    serving: Upstream
    reference: Upstream


class Router:
    """Routes one rollout's traffic.

    Args:
        follower: Knows the rules.
        servers: Both engines; closed with the app.
        log: Where answers are logged; written until the app ends.
    """

    def __init__(self, follower: Follower, servers: Servers, log: LogWriter, outside: Outside, voice: Voice) -> None:
        self._follower, self._servers, self._log = follower, servers, log
        self._outside, self._voice = outside, voice
        self._shadows: set[asyncio.Task[None]] = set()
        self._answers: Counter[str] = Counter()
        self._asleep_until = -math.inf

    def app(self) -> Starlette:
        """Return the ASGI app; its lifespan must run, for it follows the rules and writes the log."""
        return Starlette(
            routes=[
                *(Place(path, self._generate, methods=["POST"]) for path in GENERATING),
                Place("/v1/models", self._models, methods=["GET"]),
                Place("/health", self._health, methods=["GET"]),
            ],
            exception_handlers={404: _elsewhere, 405: _elsewhere},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        following, writing = asyncio.create_task(self._follower.run()), asyncio.create_task(self._log.run())
        try:
            yield
        finally:
            following.cancel()
            if self._shadows:
                _, late = await asyncio.wait(self._shadows, timeout=LAST_SECONDS)
                for task in late:
                    task.cancel()
            self._log.finish()
            await writing
            await self._servers.serving.close()
            await self._servers.reference.close()

    async def _generate(self, request: Request) -> Response:
        began = self._outside.monotonic()
        try:
            asked = await asked_of(request, self._outside.new_id)
            return await self._answered(asked, began, request)
        except DefinitionError as error:
            return _error(400, "BadRequestError", f"{error.message} {error.hint}")
        except ClientDisconnect:
            return Response(status_code=GONE)

    async def _answered(self, asked: Asked, began: float, request: Request) -> Response:
        rules = self._follower.rules
        if self._log.broken:
            rules = rules.shut
        seen = observable(asked.body)
        route = await self._route(rules, asked) if seen else Route("reference")
        job = Job(asked, rules.log if seen and logged(rules, asked.id) else None, began)
        if route.shadow and job.fields is not None:
            self._copy(job)
        if route.engine == "serving":
            try:
                return await self._answer(self._awake(began), job, request)
            except UpstreamError as error:
                self._voice.tell(f"serving {error.reason}", f"the reference is asked instead: {error.message}")
                if error.reason == "unreachable":
                    self._asleep_until = self._outside.monotonic() + ASLEEP_SECONDS
                job = Job(asked, job.fields, began, error.reason)
        try:
            return await self._answer(self._servers.reference, job, request)
        except UpstreamError as error:
            self._voice.tell(f"reference {error.reason}", error.message)
            return _error(502, "BadGatewayError", error.message, _marks("reference", asked))

    def _awake(self, now: float) -> Upstream:
        """Return the serving engine, unless it could not be reached a moment ago: that is waited for once a second.

        Raises:
            UpstreamError: It could not.
        """
        serving = self._servers.serving
        if now < self._asleep_until:
            raise UpstreamError(f"the serving engine at {serving.url} could not be reached just now", "asleep")
        return serving

    async def _route(self, rules: Rules, asked: Asked) -> Route:
        """Return where a request goes; slices are asked only when some are routed away."""
        if not rules.reference_slices or rules.stage is None:
            return decide(rules, asked.id, inside=False)
        columns = dict(asked.columns)
        if asks_for_length(rules, columns):
            with suppress(UpstreamError):
                columns[LENGTH] = await self._servers.reference.length(asked.body, asked.headers)
        return decide(rules, asked.id, await asyncio.to_thread(may_be_inside, rules, columns))

    async def _answer(self, upstream: Upstream, job: Job, request: Request) -> Response:
        """Return an engine's answer.

        Raises:
            UpstreamError: It has none, or, of the serving engine, it is an error: the reference says what is wrong
                with a request.
            ClientDisconnect: Nobody waits for it any more.
        """
        marks = _marks(upstream.engine, job.asked)
        with ExitStack() as held:
            batch_size = held.enter_context(upstream.running_one())
            ask = upstream.stream if job.asked.streamed else upstream.whole
            answer: Any = await _while_waited_for(ask(job.asked.path, job.sent, job.asked.headers), request)
            if isinstance(answer, Refusal):
                if upstream.engine == "serving":
                    raise UpstreamError(
                        f"the serving engine at {upstream.url} refused with status {answer.status}", "refused"
                    )
                return Response(answer.content, answer.status, {**answer.headers, **marks})
            if isinstance(answer, Stream):
                relay = Relay(
                    answer,
                    job.asked.body,
                    lambda chunks, cut: self._write(chunks, job, upstream.engine, batch_size, cut),
                )
                relay.headers.update({**answer.headers, **marks})
                relay.held = held.pop_all()
                return relay
            self._write([answer.message], job, upstream.engine, batch_size)
            return _json(as_asked(answer.message, job.asked.body) or {}, {**answer.headers, **marks})

    def _copy(self, job: Job) -> None:
        """Send a copy to the serving engine, beside the traffic; its answer is only logged."""
        if len(self._shadows) >= MOST_SHADOWS:
            self._voice.tell("shadows", f"copies are left out, for {MOST_SHADOWS} still run on the serving engine")
            return
        task = asyncio.create_task(self._shadow(job))
        self._shadows.add(task)
        task.add_done_callback(self._shadows.discard)

    async def _shadow(self, job: Job) -> None:
        serving, asked = self._servers.serving, job.asked
        body = {name: value for name, value in job.sent.items() if name not in {"stream", "stream_options"}}
        with serving.running_one() as batch_size:
            try:
                answer = await serving.whole(asked.path, body, asked.headers)
            except UpstreamError as error:
                self._voice.tell(f"shadow {error.reason}", f"a copy was not answered: {error.message}")
                return
        if isinstance(answer, Refusal):
            self._voice.tell("shadow refused", f"a copy was refused with status {answer.status}")
            return
        self._write([answer.message], job, "shadow", batch_size)

    def _write(
        self,
        messages: Sequence[Mapping[str, Any]],
        job: Job,
        route: Literal["serving", "reference", "shadow"],
        batch_size: int,
        cut: str | None = None,
    ) -> None:
        """Count and log the answers in a response; one that cannot be a row is told instead."""
        self._answers[route] += len({choice.get("index") for message in messages for choice in message["choices"]})
        if job.fields is None:
            return
        reasons = {"snapline_fallback": job.fallback, "snapline_cut": cut}
        served = Served(
            id=job.asked.id,
            at=self._outside.now(),
            route=route,
            batch_size=batch_size,
            latency_seconds=self._outside.monotonic() - job.began,
            tags={**job.asked.tags, **{name: reason for name, reason in reasons.items() if reason is not None}},
        )
        try:
            for record in records_of(messages, served):
                self._log.put(line_of(record, job.fields))
        except DefinitionError as error:
            self._voice.tell(f"unlogged {route}", f"an answer of {route} is not logged: {error.message} {error.hint}")

    async def _models(self, request: Request) -> Response:
        return await self._page(self._servers.reference, request)

    async def _page(self, upstream: Upstream, request: Request) -> Response:
        try:
            found = await upstream.get(request.url.path, {})
        except UpstreamError as error:
            return _error(502, "BadGatewayError", error.message)
        return Response(found.content, found.status, found.headers)

    async def _health(self, request: Request) -> Response:
        """Say how things stand, with how many answers each gave since the router began, logged or not.

        Healthy means that the reference is: without the serving engine everything is answered all the same.
        """
        serving, reference = await asyncio.gather(
            self._page(self._servers.serving, request), self._page(self._servers.reference, request)
        )
        rules = self._follower.rules
        healthy = reference.status_code == 200
        document = {
            "rollout": rules.rollout,
            "stage": rules.stage,
            "reference_slices": sorted(rules.reference_slices),
            "rules_age_seconds": round(self._follower.age, 3),
            "serving": serving.status_code == 200,
            "reference": healthy,
            "log": not self._log.broken,
            "answers": dict(self._answers),
        }
        return JSONResponse(document, 200 if healthy else 503)


async def _while_waited_for(answer: Awaitable[Answered], request: Request) -> Answered:
    """Return an answer, unless the client hangs up first: then stop the engine's work on it.

    Raises:
        ClientDisconnect: It did.
    """
    working = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return await working
    finally:
        working.cancel()
        leaving.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _marks(engine: str, asked: Asked) -> dict[str, str]:
    return {"x-snapline-route": engine, "x-snapline-request": asked.id}


def _json(message: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    return Response(encoded(message), headers=headers, media_type="application/json")


def _error(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(problem(status, kind, message), status, headers)


async def _elsewhere(request: Request, _error_found: Exception) -> Response:
    places = "POST /v1/completions and /v1/chat/completions, GET /v1/models and /health"
    found = f"{request.method} {request.url.path}"
    return _error(404, "NotFoundError", f"this router forwards {places}; it has no {found}")
