"""O and Pi of a contract: what serving must log, the stages a version goes through, and what a violation sets off.

observability: {log: [sampled_logprob, margin, batch_size, cache_hit], max_age: 30d, sampling: "1", retention: 90d}
escalation:
  - {when: refuted,   do: [block, {route_slice: reference}, alert], cool_down: 1h}
  - {when: undecided, do: [hold, remeasure]}
stages: {offline: {}, shadow: {traffic: "0.01"}, canary: {traffic: "0.05"}, full: {monitor: "0.001"}}
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from snapline.contracts.figures import DecimalText
from snapline.lineage.documents import Value
from snapline.lineage.view import Duration

Part = Annotated[DecimalText, Field(gt=0, le=1)]


class LogField(StrEnum):
    """What a contract may demand of every logged request, beyond its id, time and token ids."""

    SAMPLED_LOGPROB = "sampled_logprob"
    MARGIN = "margin"
    BATCH_SIZE = "batch_size"
    CACHE_HIT = "cache_hit"
    ROUTE = "route"
    LATENCY = "latency_seconds"


def _each_once(fields: tuple[LogField, ...]) -> tuple[LogField, ...]:
    if len(set(fields)) < len(fields):
        raise ValueError(f"expected every field once, found {', '.join(fields)}")
    return fields


class Observability(Value):
    """What must be logged, and checked against a real log.

    Attributes:
        log: Fields that every logged request must carry.
        max_age: How long ago the newest logged request may be.
        sampling: The least share of requests that must be logged.
        retention: How long logs must be kept: the oldest request must be at least that old, once serving is.
    """

    log: Annotated[tuple[LogField, ...], Field(min_length=1), AfterValidator(_each_once)]
    max_age: Annotated[Duration, Field(gt=timedelta())] | None = None
    sampling: Part = Decimal(1)
    retention: Annotated[Duration, Field(gt=timedelta())] | None = None


class Act(StrEnum):
    """What a violation can set off by one word."""

    LOG = "log"
    ALERT = "alert"
    HOLD = "hold"
    REMEASURE = "remeasure"
    DEMOTE = "demote"
    BLOCK = "block"


class RouteSlice(Value):
    """Send the slice's traffic to the reference until somebody or a later look says otherwise."""

    route_slice: Literal["reference"]


class Escalation(Value):
    """What to do when a monitored clause is refuted, or cannot be decided.

    Attributes:
        do: In the order written. `hold` keeps the stage, `demote` goes back one, `block` shuts the gate, `remeasure`
            leaves the certificate stale so that `plan` measures again, `alert` posts to the webhook.
        cool_down: Nothing is set off again for the same clause and slice before this has passed.
    """

    when: Literal["refuted", "undecided"]
    do: Annotated[tuple[Act | RouteSlice, ...], Field(min_length=1)]
    cool_down: Annotated[Duration, Field(gt=timedelta())] = timedelta(hours=1)


class StageName(StrEnum):
    """The stages, in order: each is entered with the certificate of the one before."""

    OFFLINE = "offline"
    SHADOW = "shadow"
    CANARY = "canary"
    FULL = "full"


class Stage(Value):
    """One stage.

    Attributes:
        traffic: The share of requests the serving engine answers: copies of them in `shadow`, real ones in `canary`.
        monitor: The share of its answers that the reference scores again.
        min_requests: Fewer monitored requests than this certify nothing.
    """

    traffic: Part | None = None
    monitor: Part = Decimal(1)
    min_requests: Annotated[int, Field(ge=1)] = 100


class Stages(Value):
    """The stages a version must go through; `shadow` and `canary` may be left out, and are then skipped."""

    offline: Stage = Stage()
    shadow: Stage | None = None
    canary: Stage | None = None
    full: Stage = Stage()

    @model_validator(mode="after")
    def _traffic_where_it_means_something(self) -> Self:
        for name, stage in (("shadow", self.shadow), ("canary", self.canary)):
            if stage is not None and stage.traffic is None:
                raise ValueError(f"{name}: expected traffic, the share of requests it takes, found none")
        for name, stage in (("offline", self.offline), ("full", self.full)):
            if stage.traffic is not None:
                raise ValueError(f"{name} takes no share of traffic; leave it out")
        return self

    @property
    def order(self) -> tuple[StageName, ...]:
        """The stages that are there, first to last."""
        return tuple(name for name in StageName if getattr(self, name.value) is not None)
