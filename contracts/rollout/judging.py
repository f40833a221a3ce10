"""Judging a monitor: one finding for each monitored clause and slice, at limits that hold at every look at once.

The limits are confidence sequences over requests in the order they were counted, so looking often, or whenever one
likes, costs nothing: with probability at least the contract's confidence no cell is ever REFUTED while its promise
holds, nor CERTIFIED while it is broken, over all looks in a stage.

What certifies is the mean over the stage. What refutes is that mean or the mean over any one block of consecutive
requests: an engine that fails after a long honest time is convicted by what it does then. A request that could not be
scored counts as the worst there is for the upper limit and as the best for the lower, so leaving out what looks bad
never certifies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, Context, Decimal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapline.contracts.clauses.protocol import Figures
from snapline.contracts.contract import KernelContract, Slice
from snapline.contracts.engines.protocol import Path
from snapline.contracts.estimators import SEQUENCE_METHOD, mean_sequence, mean_sequence_lower
from snapline.contracts.figures import decimal_text, rounded, rounded_down, rounded_up
from snapline.contracts.rollout.monitor import Monitor, MonitoredClause
from snapline.contracts.verdict import Finding, Verdict
from snapline.lineage.errors import DefinitionError

LONGEST_FORECAST = 1 << 20
_LEVEL = Context(prec=12, rounding=ROUND_DOWN)
_WORD = re.compile(r'"([^"]+)"|([A-Za-z_]\w*)')
_LITERAL = re.compile(r"'(?:[^']|'')*'")
_OFFLINE_ONLY = frozenset({"undecided"})


@dataclass(frozen=True, slots=True)
class Cells:
    """What a monitor is held against.

    Attributes:
        confidence: Family-wise, over every clause and slice, both sides, and every look.
        min_requests: Fewer requests than this certify nothing; it is also the length of a block.
    """

    clauses: Sequence[MonitoredClause]
    slices: Sequence[Slice]
    confidence: Decimal
    min_requests: int

    @property
    def level(self) -> Decimal:
        """The error probability of each side of each cell."""
        return _LEVEL.divide(1 - self.confidence, Decimal(2 * max(1, len(self.clauses) * len(self.slices))))


def watched(contract: KernelContract) -> tuple[Slice, ...]:
    """Return the slices a monitor can hold: those of prompts, and not by what only measuring offline tells."""
    return tuple(part for part in contract.slices if part.unit == "prompt" and not _OFFLINE_ONLY & _words(part.where))


def judge_monitor(monitor: Monitor, cells: Cells) -> tuple[Finding, ...]:
    """Return a finding for each clause and slice, in that order.

    Raises:
        DefinitionError: A slice's predicate cannot be evaluated on what was logged.
    """
    inside = {part.name: members(part, monitor.rows) for part in cells.slices}
    ids = np.array(monitor.rows["id"].to_pylist(), dtype=object)
    return tuple(
        _judge(clause, part.name, _Units(ids[inside[part.name]], monitor.units(clause.name)[inside[part.name]]), cells)
        for clause in cells.clauses
        for part in cells.slices
    )


def members(part: Slice, rows: pa.Table) -> NDArray[np.bool_]:
    """Return which rows of a monitor a slice holds.

    The predicate reads `prompt_tokens`, `answer_tokens`, `route` and the tags, each a column of text. A column that no
    request has is NULL, so nothing matches on it.

    Raises:
        DefinitionError: The predicate cannot be evaluated on these columns; it names the slice.
    """
    from snapline.lineage.query import matching

    if part.where is None:
        return np.ones(rows.num_rows, dtype=np.bool_)
    table = rows.select(["id", "route", "prompt_tokens", "answer_tokens"])
    tags = [{name.lower(): text for name, text in json.loads(row).items()} for row in rows["tags"].to_pylist()]
    wanted = {*(name for row in tags for name in row), *(word.lower() for word in _words(part.where))}
    for name in sorted(wanted - set(table.column_names)):
        table = table.append_column(name, pa.array([row.get(name) for row in tags], pa.string()))
    try:
        return np.array(matching(table, f"CAST(({part.where}\n) AS BOOLEAN)"), dtype=np.bool_)
    except DefinitionError as error:
        raise DefinitionError(f"slice {part.name!r}: {error.message}", hint=error.hint) from error


def _words(where: str | None) -> set[str]:
    """Return the words of a predicate: no fewer than the columns it names."""
    found: Iterable[tuple[str, str]] = _WORD.findall(_LITERAL.sub("''", where or ""))
    return {quoted or plain for quoted, plain in found}


def limits(units: Figures, alpha: float, block: int) -> tuple[float, float]:
    """Return the lower and the upper limit of the mean of numbers in [0, 1], each at `alpha` over all looks at once.

    NaN is what could not be measured. The lower limit is the largest of that over everything, at half of `alpha`, and
    those over each run of `block` numbers, the k-th at 1/(2 k (k + 1)) of it: together they add up to `alpha`.
    """
    if not len(units):
        return 0.0, 1.0
    upper = float(mean_sequence(np.nan_to_num(units, nan=1.0), alpha)[-1])
    least = np.nan_to_num(units, nan=0.0)
    lowers = [mean_sequence_lower(least, alpha / 2)[-1]]
    for number, start in enumerate(range(0, len(least), block), start=1):
        paid = alpha / (2 * number * (number + 1))
        lowers.append(mean_sequence_lower(least[start : start + block], paid)[-1])
    return float(max(lowers)), upper


@dataclass(frozen=True, slots=True)
class _Units:
    """A clause's numbers in one slice, and whose they are."""

    ids: NDArray[np.object_]
    values: Figures

    @property
    def loudest(self) -> str:
        """The request that speaks loudest against the promise, with its number."""
        place = int(np.nan_to_num(self.values, nan=-1.0).argmax())
        return f"most of all request {self.ids[place]!r} with {decimal_text(rounded(self.values[place]))}"


def _judge(clause: MonitoredClause, part: str, seen: _Units, cells: Cells) -> Finding:
    alpha, allowed, units = float(cells.level), clause.allowed, seen.values
    low, high = limits(units, alpha, cells.min_requests)
    lower, upper = rounded_down(low), rounded_up(high)
    measured = units[~np.isnan(units)]
    if lower > allowed:
        verdict = Verdict.REFUTED
        said = f"at least {decimal_text(lower)}, above the {decimal_text(allowed)} allowed; {seen.loudest}"
    else:
        doubts = _doubts(units, (lower, upper, allowed), cells)
        verdict = Verdict.UNDECIDED if doubts else Verdict.CERTIFIED
        said = "; ".join(doubts) or f"at most {decimal_text(upper)}, within the {decimal_text(allowed)} allowed"
    return Finding(
        clause=clause.name,
        slice=part,
        path=Path.DECODE_SAMPLED.value,
        verdict=verdict,
        prompts=len(measured),
        missing=len(units) - len(measured),
        estimate=decimal_text(rounded(float(measured.mean()) if len(measured) else np.nan)),
        lower=decimal_text(lower),
        upper=decimal_text(upper),
        limit=decimal_text(allowed),
        level=decimal_text(cells.level),
        method=SEQUENCE_METHOD,
        reason=f"{clause.figure}: {said}",
    )


def _doubts(units: Figures, figures: tuple[Decimal, Decimal, Decimal], cells: Cells) -> list[str]:
    lower, upper, allowed = figures
    doubts = []
    count = int((~np.isnan(units)).sum())
    if count < cells.min_requests:
        short = cells.min_requests - count
        doubts.append(f"{count} requests scored, {short} short of min_requests {cells.min_requests}")
    if upper > allowed:
        interval = f"between {decimal_text(lower)} and {decimal_text(upper)}"
        more = more_needed(units, float(cells.level), float(allowed))
        forecast = f"; about {more} more like these would" if more else ""
        doubts.append(f"{interval}, which does not settle the {decimal_text(allowed)} allowed{forecast}")
    if doubts and (missing := len(units) - count):
        doubts.append(f"{missing} requests could not be scored")
    return doubts


def more_needed(units: Figures, alpha: float, allowed: float) -> int | None:
    """Return how many more requests like those seen would bring the upper limit under `allowed`; None when unknown."""
    values = np.nan_to_num(units, nan=1.0)
    if not len(values) or values.mean() >= allowed:
        return None
    times = 2
    while len(values) * times <= max(LONGEST_FORECAST, 2 * len(values)):
        enough = np.flatnonzero(mean_sequence(np.tile(values, times), alpha) <= allowed)
        if len(enough):
            return int(enough[0]) + 1 - len(values)
        times *= 4
    return None
