"""A request as the router reads it: its id, its columns for slices, and what is sent on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.requests import Request

from snapline.contracts.rollout.routes import LENGTH, Column
from snapline.contracts.rollout.upstream import handed_on
from snapline.lineage.errors import DefinitionError

TAGS, ID = "x-snapline-tags", "x-request-id"
LONGEST_ID = 200
_OURS = "snapline_"
_COMPUTED = frozenset({LENGTH, "answer_tokens", "temperature", "truncated"})
# What leaves a draw as it is, for each setting that can make it another one; None, left out, always does.
_UNTRUNCATED: Mapping[str, tuple[object, ...]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "structured_outputs": (),
    "response_format": ({"type": "text"},),
    "use_beam_search": (False,),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Attributes:
        tags: What it says of itself: the tags header, OpenAI's `user`, and the texts in its `metadata`.
        columns: What slices can read: the tags, and the prompt's length where the prompt is token ids.
        headers: Those to send on.
    """

    id: str
    path: str
    body: dict[str, Any]
    tags: Mapping[str, str]
    columns: Mapping[str, Column]
    headers: Mapping[str, str]

    @property
    def streamed(self) -> bool:
        """Whether the answer is wanted in chunks."""
        return bool(self.body.get("stream"))


async def asked_of(request: Request, new_id: Callable[[], str]) -> Asked:
    """Return a request as it was read.

    Raises:
        DefinitionError: Its body is no JSON object, or its tags are not NAME=VALUE.
    """
    try:
        body = json.loads(await request.body(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise DefinitionError(f"the request's body is not JSON: {error}.", hint="Send a JSON object.") from error
    if not isinstance(body, dict):
        raise DefinitionError(f"expected a JSON object, found {type(body).__name__}.", hint="Send a JSON object.")
    tags = tags_of(request.headers.get(TAGS, ""), body) | drawn_as(body)
    given = request.headers.get(ID, "")
    usable = 0 < len(given) <= LONGEST_ID and given.isascii() and given.isprintable()
    return Asked(
        id=given if usable else new_id(),
        path=request.url.path,
        body=body,
        tags=tags,
        columns=tags | length_of(body),
        headers={
            name: value for name, value in handed_on(request.headers).items() if name not in {TAGS, "content-type"}
        },
    )


def tags_of(header: str, body: Mapping[str, Any]) -> dict[str, str]:
    """Return what a request says of itself; the header has the last word.

    Names the router computes or writes itself cannot be given.

    Raises:
        DefinitionError: The header is not `NAME=VALUE, NAME=VALUE`.
    """
    found = {}
    if isinstance(body.get("user"), str):
        found["user"] = body["user"]
    if isinstance(metadata := body.get("metadata"), dict):
        found |= {name: value for name, value in metadata.items() if isinstance(value, str)}
    for part in filter(None, map(str.strip, header.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise DefinitionError(f"{TAGS}: expected NAME=VALUE, found {part!r}.", hint="Write language=en, tenant=a.")
        found[name.strip()] = value.strip()
    return {name: value for name, value in found.items() if name not in _COMPUTED and not name.startswith(_OURS)}


def drawn_as(body: Mapping[str, Any]) -> dict[str, str]:
    """Return how the answer is to be drawn, where the request says it: `temperature`, and whether it is `truncated`.

    What it leaves out is the server's to say; start that so that it means temperature 1 and no truncation.
    """
    drawn = {}
    temperature = body.get("temperature")
    if isinstance(temperature, (int, float)) and not isinstance(temperature, bool):
        drawn["temperature"] = str(temperature)
    if any(body.get(name) is not None and body[name] not in harmless for name, harmless in _UNTRUNCATED.items()):
        drawn["truncated"] = "true"
    return drawn


def length_of(body: Mapping[str, Any]) -> dict[str, Column]:
    """Return the prompt's length in tokens as a column, where the request itself tells it."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return {LENGTH: len(prompt)}
    return {}


def _no_number(spelling: str) -> NoReturn:
    raise ValueError(f"{spelling} is no JSON number")
