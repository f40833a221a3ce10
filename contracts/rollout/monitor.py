"""Monitors: one row for each request that was scored again, and what it says of every monitored clause.

A monitor belongs to one stage of a rollout and is kept as one Parquet object; a look at a log adds rows at its end and
never changes one. No token is kept: what a clause makes of a request is one number in [0, 1].
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from snapline.contracts.clauses.protocol import Figures, Measured
from snapline.contracts.contract import KernelContract
from snapline.contracts.engines.protocol import Path
from snapline.contracts.evidence import Pair
from snapline.contracts.rollout.log import Tally
from snapline.contracts.rollout.record import ServingRecord
from snapline.lineage.digest import Digest
from snapline.lineage.documents import Received
from snapline.lineage.errors import IntegrityError

SEEN = frozenset({"position", "token", "logp_reference", "logp_serving"})
"""Columns of evidence that a served answer gives, once the reference scored its tokens."""
ROW = (
    pa.field("id", pa.string(), nullable=False),
    pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    pa.field("route", pa.string(), nullable=False),
    pa.field("tags", pa.string(), nullable=False),  # a JSON object
    pa.field("prompt_tokens", pa.int64(), nullable=False),
    pa.field("answer_tokens", pa.int64(), nullable=False),
)
_UNIT = "unit:"
_FACTS = b"monitor"
_HINT = "Restore the object from a copy of this home, or abort the rollout and start it again."


class MonitoredClause(Protocol):
    """What a monitor needs of a clause."""

    @property
    def name(self) -> str:
        """The word a contract writes."""

    @property
    def allowed(self) -> Decimal:
        """What the expectation of the units may at most be."""

    @property
    def figure(self) -> str:
        """What is limited, as a noun phrase."""

    def relevant(self, measured: Measured) -> Measured:
        """Return the part of what was measured that the promise speaks of."""

    def units(self, measured: Measured) -> Figures:
        """Return one number in [0, 1] for each answer."""


def monitored(contract: KernelContract) -> tuple[MonitoredClause, ...]:
    """Return the clauses a monitor can hold: those on answers the engine draws, from what a served answer gives."""
    return tuple(
        clause
        for clause in contract.clauses
        if clause.pair is Pair.SERVING
        and clause.reads <= SEEN
        and clause.sampled is None
        and not clause.columns
        and Path.DECODE_SAMPLED.value in clause.on(contract.paths)
    )


class Facts(Received):
    """What a monitor is of.

    Attributes:
        contract: Digest of the contract its numbers were made under.
        tally: What the newest log says of itself; None before any was read.
    """

    recipe: Literal["monitor-v1"] = "monitor-v1"
    rollout: str
    stage: str
    contract: Digest
    clauses: tuple[str, ...]
    tally: Tally | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """A logged request with the reference's log-probabilities of its tokens; None when it could not be scored."""

    record: ServingRecord
    reference: tuple[float, ...] | None

    @property
    def whole(self) -> bool:
        """Whether both sides' figures are there."""
        return self.reference is not None and self.record.sampled_logprob is not None


@dataclass(frozen=True, slots=True)
class Monitor:
    """The rows of a stage so far, in the order they were counted; a unit is NULL where nothing could be measured."""

    facts: Facts
    rows: pa.Table

    def units(self, clause: str) -> Figures:
        """Return a clause's number for each row; NaN where there is none."""
        column: Figures = self.rows[f"{_UNIT}{clause}"].to_numpy().astype(np.float64)
        return column

    @property
    def ids(self) -> frozenset[str]:
        """The requests that were counted."""
        return frozenset(self.rows["id"].to_pylist())


def opened(facts: Facts) -> Monitor:
    """Return the monitor of a stage in which nothing was seen yet."""
    return Monitor(facts, _schema(facts.clauses).empty_table())


def extended(monitor: Monitor, scored: Sequence[Scored], clauses: Iterable[MonitoredClause], tally: Tally) -> Monitor:
    """Return a monitor with more requests at its end, in the order given, after a log with that tally."""
    records = [one.record for one in scored]
    columns: dict[str, object] = {
        "id": [record.id for record in records],
        "at": [record.at for record in records],
        "route": [record.route for record in records],
        "tags": [json.dumps(record.tags, sort_keys=True, ensure_ascii=False) for record in records],
        "prompt_tokens": [len(record.prompt_ids) for record in records],
        "answer_tokens": [len(record.token_ids) for record in records],
    }
    measured = measured_of([one for one in scored if one.whole])
    for clause in clauses:
        units = _by_request(clause, measured)
        columns[f"{_UNIT}{clause.name}"] = [units.get(record.id) for record in records]
    added = pa.table(columns, schema=_schema(monitor.facts.clauses))
    return Monitor(monitor.facts.model_copy(update={"tally": tally}), pa.concat_tables([monitor.rows, added]))


def measured_of(scored: Sequence[Scored]) -> Measured:
    """Return whole answers as what a clause reads: a request is a prompt, a token a row."""
    lengths = np.array([len(one.record.token_ids) for one in scored], dtype=np.int64)
    ends = np.cumsum(lengths)
    return Measured(
        prompts=tuple(one.record.id for one in scored),
        starts=(ends - lengths).astype(np.int64),
        columns={
            "position": np.concatenate([np.arange(0), *(np.arange(length) for length in lengths)]),
            "token": np.array([token for one in scored for token in one.record.token_ids], dtype=np.int64),
            "logp_reference": np.array([x for one in scored for x in one.reference or ()], dtype=np.float64),
            "logp_serving": np.array([x for one in scored for x in one.record.sampled_logprob or ()], dtype=np.float64),
        },
    )


def _by_request(clause: MonitoredClause, measured: Measured) -> Mapping[str, float]:
    """Return a clause's number for each request that has one; what is no number in [0, 1] is none."""
    relevant = clause.relevant(measured)
    units = clause.units(relevant)
    return {id: float(unit) for id, unit in zip(relevant.prompts, units, strict=True) if 0 <= unit <= 1}


def to_parquet(monitor: Monitor) -> bytes:
    """Return a monitor as the bytes of a Parquet file; the same monitor gives the same bytes."""
    sink = pa.BufferOutputStream()
    named = monitor.rows.combine_chunks().replace_schema_metadata({_FACTS: monitor.facts.model_dump_json()})
    pq.write_table(named, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_parquet(data: bytes) -> Monitor:
    """Return the monitor that `to_parquet` wrote.

    Raises:
        IntegrityError: The bytes are no monitor.
    """
    try:
        table = pq.read_table(pa.BufferReader(data))
        facts = Facts.model_validate_json((table.schema.metadata or {})[_FACTS])
    except (pa.ArrowException, OSError, KeyError, ValidationError) as error:
        raise IntegrityError(f"the monitor is not readable: {error}", hint=_HINT) from error
    rows = table.replace_schema_metadata(None)
    if not rows.schema.equals(_schema(facts.clauses)):
        raise IntegrityError(f"expected a monitor of {facts.clauses}, found columns {rows.schema.names}", hint=_HINT)
    return Monitor(facts, rows)


def _schema(clauses: Iterable[str]) -> pa.Schema:
    return pa.schema([*ROW, *(pa.field(f"{_UNIT}{name}", pa.float64()) for name in clauses)])
