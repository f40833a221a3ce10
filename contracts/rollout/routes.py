"""Who answers a request: a pure decision over what the ledger, the contract and the request itself say.

The reference answers whenever the answer is not a clear yes to the serving engine: no stage, a blocked rollout, a slice
that was routed away and that the request is in, or may be in. Shares are taken by a hash of the request's id, one hash
for each purpose, so that the same request is always answered by the same engine and no two shares are correlated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from typing import Literal

from snapline.contracts.contract import Slice
from snapline.contracts.rollout.documents import LogField, Observability, Stage, StageName, Stages
from snapline.lineage.errors import DefinitionError
from snapline.lineage.state import Rollout

Engine = Literal["serving", "reference"]
Column = str | int
LENGTH = "prompt_tokens"
REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Rules:
    """What the ledger and the contract say of one rollout's traffic.

    Attributes:
        stage: None when nothing may reach the serving engine.
        traffic: The stage's share of requests that the serving engine answers, or gets copies of.
        monitor: The share of a routed-away slice's requests of which it still gets copies, so that a repaired engine
            can be told from a broken one.
        reference_slices: The predicate of each slice whose traffic goes to the reference.
        log: What every logged request must carry.
        sampling: The share of requests that are logged.
    """

    rollout: str
    stage: StageName | None
    traffic: Decimal = Decimal(1)
    monitor: Decimal = Decimal(1)
    reference_slices: Mapping[str, str | None] = field(default_factory=dict)
    log: tuple[LogField, ...] = ()
    sampling: Decimal = Decimal(1)

    @property
    def shut(self) -> Rules:
        """The same rules when they can no longer be followed: the reference answers everything."""
        return replace(self, stage=None)


@dataclass(frozen=True, slots=True)
class Route:
    """Who answers, and whether the serving engine gets a copy whose answer nobody sees."""

    engine: Engine
    shadow: bool = False


def rules_of(
    rollout: Rollout, slices: Sequence[Slice], observability: Observability | None, stages: Stages | None
) -> Rules:
    """Return the rules that a rollout's traffic follows now.

    A stage that the contract no longer has shuts the serving engine out, and so does a block. A routed slice that the
    contract no longer has cannot be evaluated, so every request may be in it (as one without a predicate holds all).
    """
    entered, names = rollout.now, stages or Stages()
    known = None if entered.stage not in names.order or rollout.blocked else StageName(entered.stage)
    stage = (getattr(names, known.value) if known else None) or Stage()
    predicates = {part.name: part.where for part in slices}
    return Rules(
        rollout=entered.rollout,
        stage=known,
        traffic=stage.traffic if stage.traffic is not None else Decimal(1),
        monitor=stage.monitor,
        reference_slices={name: predicates.get(name) for name in sorted(rollout.reference_slices)},
        log=observability.log if observability else (),
        sampling=observability.sampling if observability else Decimal(1),
    )


def decide(rules: Rules, request: str, inside: bool) -> Route:
    """Return the route of a request.

    Args:
        request: Its id.
        inside: Whether it is in a slice whose traffic goes to the reference, or may be; see `may_be_inside`.
    """
    if rules.stage in {None, StageName.OFFLINE}:
        return Route("reference")
    taken = rules.stage is StageName.FULL or within("traffic", request, rules.traffic)
    if rules.stage is StageName.SHADOW:
        return Route("reference", shadow=taken)
    if inside:
        return Route("reference", shadow=taken and within("monitor", request, rules.monitor))
    return Route("serving" if taken else "reference")


def logged(rules: Rules, request: str) -> bool:
    """Return whether a request is in the share that is logged."""
    return within("log", request, rules.sampling)


def within(purpose: str, request: str, share: Decimal) -> bool:
    """Return whether a request is in a share of the traffic: SHA-256(purpose ‖ 0 ‖ id) / 2^64 < share, by 64 bits."""
    digest = hashlib.sha256(f"{purpose}\0{request}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def may_be_inside(rules: Rules, columns: Mapping[str, Column]) -> bool:
    """Return whether a request with these columns is in a routed-away slice, or cannot be told not to be.

    Evaluates the slices' predicates with DuckDB, once for each combination of values: a few milliseconds, so ask it
    off the event loop.
    """
    return any(where is None or _holds(where, _relevant(where, columns)) for where in rules.reference_slices.values())


def asks_for_length(rules: Rules, columns: Mapping[str, Column]) -> bool:
    """Return whether a routed-away slice may read the prompt's length in tokens, which these columns lack."""
    wheres = rules.reference_slices.values()
    return LENGTH not in columns and any(where is not None and LENGTH in where.lower() for where in wheres)


def _relevant(where: str, columns: Mapping[str, Column]) -> tuple[tuple[str, Column], ...]:
    """Return the columns a predicate may read, so that those it does not read make no new combination."""
    text = where.lower()
    return tuple(sorted((name, value) for name, value in columns.items() if "*" in text or name.lower() in text))


@lru_cache(maxsize=REMEMBERED)
def _holds(where: str, columns: tuple[tuple[str, Column], ...]) -> bool:
    """Return whether a predicate holds, or cannot be evaluated on these columns."""
    import pyarrow as pa

    from snapline.lineage.query import matching

    row = pa.table({"snapline_request": [True], **{name: [value] for name, value in columns}})
    try:
        return matching(row, where)[0]
    except DefinitionError:
        return True
