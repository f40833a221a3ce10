"""View definitions: the query, trainer and policy that turn snapshots into a model."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, field_validator, model_validator

from snapline.lineage.digest import Digest, document_digest
from snapline.lineage.documents import Value
from snapline.lineage.snapshot import Name

_DURATION = re.compile(r"^(\d+)(s|m|h|d|w)$")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _parse_duration(value: object) -> object:
    if isinstance(value, str):
        match = _DURATION.match(value)
        if not match:
            raise ValueError("expected a duration such as 90d, 36h or 15m")
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    return value


Duration = Annotated[
    timedelta,
    BeforeValidator(_parse_duration),
    PlainSerializer(lambda value: f"{int(value.total_seconds())}s", return_type=str),
]


def _inside_the_folder(path: str) -> str:
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        raise ValueError(f"expected a path inside the view's folder, found {path!r}")
    return str(parts)


RelativePath = Annotated[str, AfterValidator(_inside_the_folder)]


class OnRestatement(StrEnum):
    """What the gate does when rows inside a model's cut changed."""

    BLOCK = "block"
    WARN = "warn"


class OnErasure(StrEnum):
    """What becomes of a model when a member row must be erased; it is never served either way."""

    BLOCK = "block"
    RETIRE = "retire"


class RefreshPolicy(Value):
    """How stale a model may get; exceeding any limit shuts its gate.

    Attributes:
        slide: Length of a window that moves on with time, ending where the newest whole bucket does; None for a window
            that stays. Only to a window that moves are rows after its end news.
        max_age: Wall clock minus the cut's `until`.
        max_delta_rows: Rows of the cut that differ in the source now and, where a later window is there to be cut, rows
            after the cut's end.
        max_lag: Commits after the cut's, until they are found not to touch its rows; only for sources with history.
    """

    slide: Annotated[Duration, Field(gt=timedelta())] | None = None
    max_age: Duration | None = None
    max_delta_rows: Annotated[int, Field(ge=0)] | None = None
    max_lag: Annotated[int, Field(ge=0)] | None = None
    on_restatement: OnRestatement = OnRestatement.BLOCK
    on_erasure: OnErasure = OnErasure.BLOCK


class Trainer(Value):
    """The program that makes weights; `code` and `environment` are paths relative to the view file."""

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    code: tuple[RelativePath, ...]
    parameters: dict[str, str] = Field(default_factory=dict)
    seed: Annotated[int, Field(ge=0, lt=2**53)]
    environment: RelativePath | None = None


class ViewDefinition(Value):
    """The document a person writes."""

    apiVersion: Literal["snapline/v1"]  # noqa: N815 - the document's spelling
    kind: Literal["View"]
    name: Name
    inputs: Annotated[dict[str, Name], Field(min_length=1)]
    query: Annotated[str, Field(min_length=1)]
    trainer: Trainer
    base_model: str | None = None
    refresh: RefreshPolicy = RefreshPolicy()

    @field_validator("inputs")
    @classmethod
    def _names_sql_can_use(cls, inputs: dict[str, str]) -> dict[str, str]:
        for name in inputs:
            if not name.isidentifier():
                raise ValueError(f"{name!r} is not a name SQL can use; write letters, digits and underscores")
        return inputs


class StoredFile(Value):
    """A file copied into the object store: the path it had beside the view, and its object address."""

    path: str
    object: Digest


class View(Value):
    """A recorded view: the definition, and the object addresses of everything its trainer needs."""

    definition: ViewDefinition
    code: tuple[StoredFile, ...]
    environment: StoredFile | None

    @property
    def digest(self) -> str:
        """Identity of what the view computes. The refresh policy is left out: it changes no weights."""
        return document_digest(
            "view",
            {
                "definition": self.definition.model_dump(mode="json", exclude={"refresh"}),
                "code": [file.model_dump() for file in self.code],
                "environment": self.environment.model_dump() if self.environment else None,
            },
        )

    @model_validator(mode="after")
    def _files_match_the_definition(self) -> Self:
        if tuple(file.path for file in self.code) != self.definition.trainer.code:
            raise ValueError("the stored code is not the code the definition names")
        if (self.environment.path if self.environment else None) != self.definition.trainer.environment:
            raise ValueError("the stored environment is not the one the definition names")
        return self
