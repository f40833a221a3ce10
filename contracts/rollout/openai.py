"""What a vLLM OpenAI-compatible server says of an answer, as rows of a serving log.

A request is sent on with what the log needs added to it (`asking`), and its answer handed back without it
(`as_asked`). Both spellings are read: `text_completion` and `chat.completion`, whole or in chunks.

The server's log-probabilities must be the untruncated ones at temperature 1, vLLM's `--logprobs-mode raw_logprobs`
(its default), and token ids must be there, which `return_token_ids` asks for. `cache_hit` needs the server's
`--enable-prompt-tokens-details`.

Why three alternatives are asked for though a margin is made of two: vLLM lists the sampled token first and cuts the
list after as many entries as were asked, so of two entries the second largest may be missing. And why by id: different
tokens may be spelled alike, and a completion's alternatives are keyed by their spelling. So when a client asks a
completion for alternatives in words, it gets just those, and the row has no margins.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from pydantic import ValidationError

from snapline.contracts.rollout.documents import LogField
from snapline.contracts.rollout.record import ServingRecord
from snapline.lineage.errors import DefinitionError

Message = Mapping[str, Any]
ALTERNATIVES = 3
_BY_ID = "token_id:"
_MORE_THAN_CERTAIN = 1.001
_ALWAYS = frozenset({"id", "at", "route", "prompt_ids", "token_ids", "tags"})


def observable(body: Message) -> bool:
    """Return whether the answer to a request can be logged.

    Not that of an echo or a beam, nor where the prompt has no token ids, the server hides some of the answer's, or the
    alternatives are not the largest.
    """
    unusual = ("echo", "use_beam_search", "prompt_embeds", "logprob_token_ids")
    return not any(body.get(name) for name in unusual) and body.get("include_reasoning") is not False


def asking(body: Message, fields: Collection[LogField]) -> dict[str, Any]:
    """Return a request that also asks for what the fields of a log need."""
    asked = {**body, "return_token_ids": True}
    if {LogField.SAMPLED_LOGPROB, LogField.MARGIN} & set(fields):
        wanted = _alternatives(body)
        if "messages" in body:
            asked["logprobs"] = True
            if wanted is None or 0 <= wanted < ALTERNATIVES:
                asked["top_logprobs"] = ALTERNATIVES
        elif wanted is None:
            asked |= {"logprobs": ALTERNATIVES, "return_tokens_as_token_ids": True}
        elif 0 <= wanted < ALTERNATIVES and body.get("return_tokens_as_token_ids"):
            asked["logprobs"] = ALTERNATIVES
    if LogField.CACHE_HIT in fields and body.get("stream"):
        asked["stream_options"] = {**_stream_options(body), "include_usage": True}
    return asked


def as_asked(message: Message, body: Message) -> dict[str, Any] | None:
    """Return an answer, or a chunk of one, less what `body` did not ask for; None when nothing of it is left."""
    told = dict(message)
    if not body.get("return_token_ids") and told.get("prompt_token_ids") is not None:
        told["prompt_token_ids"] = None
    if body.get("stream") and not _stream_options(body).get("include_usage"):
        had = told.pop("usage", None)
        if had is not None and not told.get("choices"):
            return None
    told["choices"] = [_choice_as_asked(choice, body) for choice in message.get("choices", ())]
    return told


def _choice_as_asked(choice: Message, body: Message) -> dict[str, Any]:
    told = dict(choice)
    if not body.get("return_token_ids"):
        told |= {name: None for name in ("token_ids", "prompt_token_ids") if told.get(name) is not None}
    if told.get("logprobs") is None:
        return told
    wanted = _alternatives(body)
    if wanted is None:
        told["logprobs"] = None
    elif 0 <= wanted < ALTERNATIVES and ("messages" in body or body.get("return_tokens_as_token_ids")):
        told["logprobs"] = _fewer(told["logprobs"], wanted)
    return told


def _alternatives(body: Message) -> int | None:
    """Return how many alternatives a request asks for at each token; None when it asks for no log-probabilities.

    A negative number asks for all of them, and stands for what is no number, which the server will judge.
    """
    wanted = body.get("logprobs")
    if "messages" in body:
        wanted = (body.get("top_logprobs") or 0) if wanted else None
    return wanted if wanted is None or isinstance(wanted, int) else -1


def _stream_options(body: Message) -> Message:
    options = body.get("stream_options")
    return options if isinstance(options, dict) else {}


def _fewer(logprobs: Message, wanted: int) -> dict[str, Any]:
    """Return log-probabilities with no more alternatives than vLLM gives to who asks for `wanted`."""
    if "content" in logprobs:
        content = [{**entry, "top_logprobs": entry["top_logprobs"][:wanted]} for entry in logprobs["content"] or ()]
        return {**logprobs, "content": content}
    kept = []
    for sampled, alternatives in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        # The sampled token comes first, and is one of the `wanted` only if it is among the largest.
        larger = sum(value > sampled for value in (alternatives or {}).values())
        count = wanted if larger < wanted else wanted + 1
        kept.append(dict(list(alternatives.items())[:count]) if alternatives is not None else None)
    return {**logprobs, "top_logprobs": kept}


@dataclass(frozen=True, slots=True)
class Served:
    """What whoever sent a request knows of its answer, beyond the answer.

    Attributes:
        batch_size: How many requests ran beside it when it started, itself included.
    """

    id: str
    at: datetime
    route: Literal["serving", "reference", "shadow"] = "serving"
    batch_size: int | None = None
    latency_seconds: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


def records_of(messages: Sequence[Message], served: Served) -> tuple[ServingRecord, ...]:
    """Return one row for each answer in a server's response.

    Args:
        messages: The response, or every chunk of a streamed one in order.
        served: Of several answers to one request, each row's id is the request's with `.INDEX` after it.

    Raises:
        DefinitionError: Token ids are missing, or its log-probabilities are none.
    """
    prompt: Sequence[int] | None = None
    cached: bool | None = None
    answers: dict[int, _Answer] = {}
    try:
        for message in messages:
            prompt = message.get("prompt_token_ids") or prompt
            details = (message.get("usage") or {}).get("prompt_tokens_details") or {}
            if details.get("cached_tokens") is not None:
                cached = details["cached_tokens"] > 0
            for choice in message.get("choices", ()):
                answers.setdefault(choice["index"], _Answer()).take(choice)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DefinitionError(
            f"expected a completion or a chat completion as vLLM writes them: {error!r}", hint="Look at the response."
        ) from error
    if not answers:
        raise DefinitionError("the response holds no answer", hint="Look at what the server wrote.")
    return tuple(
        _record(answer, prompt, cached, served, f"{served.id}.{index}" if len(answers) > 1 else served.id)
        for index, answer in sorted(answers.items())
    )


def line_of(record: ServingRecord, fields: Collection[LogField]) -> str:
    """Return a row as one line of JSON, with no more than it must have and the fields asked for."""
    kept = _ALWAYS | {str(name) for name in fields}
    return record.model_dump_json(include=set(kept), exclude_none=True)


@dataclass(slots=True)
class _Answer:
    """One answer as far as it was read; a figure that is unknown at any token is None for all."""

    prompt: Sequence[int] | None = None
    tokens: list[int] = field(default_factory=list)
    sampled: list[float | None] = field(default_factory=list)
    margins: list[float | None] = field(default_factory=list)

    def take(self, choice: Message) -> None:
        self.prompt = choice.get("prompt_token_ids") or self.prompt
        tokens = choice.get("token_ids") or ()
        self.tokens += tokens
        figures = _figures(choice.get("logprobs") or {})
        if len(figures) < len(tokens):
            figures = [(None, None)] * len(tokens)
        self.sampled += [sampled for sampled, _ in figures]
        self.margins += [margin for _, margin in figures]


def _figures(logprobs: Message) -> list[tuple[float | None, float | None]]:
    """Return each token's log-probability and margin, as far as they can be told."""
    if "content" in logprobs:
        entries = logprobs["content"] or ()
        alternatives = [[top["logprob"] for top in entry.get("top_logprobs") or ()] for entry in entries]
        return [
            (entry["logprob"], _margin(entry["logprob"], a)) for entry, a in zip(entries, alternatives, strict=True)
        ]
    sampled = logprobs.get("token_logprobs") or ()
    tops = logprobs.get("top_logprobs") or (None,) * len(sampled)
    by_id = [list(top.values()) if top and all(map(_is_id, top)) else [] for top in tops]
    return [(value, _margin(value, a)) for value, a in zip(sampled, by_id, strict=True)]


def _is_id(spelling: str) -> bool:
    return spelling.startswith(_BY_ID)


def _margin(sampled: float | None, alternatives: Sequence[float]) -> float | None:
    """Return the largest less the second largest, if the alternatives, the sampled token first, must hold both."""
    if sampled is None or len(alternatives) < 2:
        return None
    if sum(math.exp(min(value, 1)) for value in alternatives) > _MORE_THAN_CERTAIN:
        raise DefinitionError(
            "expected log-probabilities in the response, found values whose probabilities exceed 1 together",
            hint="Start the server with --logprobs-mode raw_logprobs.",
        )
    first, second = sorted(alternatives, reverse=True)[:2]
    return first - second if len(alternatives) >= ALTERNATIVES or sampled == first else None


def _record(
    answer: _Answer, prompt: Sequence[int] | None, cached: bool | None, served: Served, name: str
) -> ServingRecord:
    prompt = answer.prompt or prompt
    if not prompt or not answer.tokens:
        raise DefinitionError(
            f"expected the token ids of the prompt and of the answer, found {len(prompt or ())} and "
            f"{len(answer.tokens)} of them",
            hint="Ask vLLM for them with return_token_ids: true.",
        )
    try:
        return ServingRecord(
            id=name,
            at=served.at,
            route=served.route,
            prompt_ids=tuple(prompt),
            token_ids=tuple(answer.tokens),
            sampled_logprob=_complete(answer.sampled),
            margin=_complete(answer.margins),
            batch_size=served.batch_size,
            cache_hit=cached,
            latency_seconds=served.latency_seconds,
            tags=dict(served.tags),
        )
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"]))
        raise DefinitionError(
            f"the response cannot be a row of a serving log: {place}: {problem['msg']}",
            hint="Start the server with --logprobs-mode raw_logprobs, and look at what it wrote.",
        ) from error


def _complete(figures: Sequence[float | None]) -> tuple[float, ...] | None:
    known = tuple(figure for figure in figures if figure is not None)
    return known if known and len(known) == len(figures) else None
