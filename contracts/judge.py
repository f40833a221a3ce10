"""Judging: evidence and a contract in, one finding per clause, slice and path out. Pure, and the same everywhere.

A cell is CERTIFIED when its upper confidence limit is at or under what the clause allows, REFUTED when its lower limit
is above it, else UNDECIDED. The limits are compared as the nine-place decimals a finding prints, rounded away from the
estimate. A missing prompt or too few prompts leave a cell UNDECIDED at best; they never hide a REFUTED.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from snapline.contracts.clauses.protocol import Clause, Measured
from snapline.contracts.contract import KernelContract, Slice
from snapline.contracts.engines.protocol import Path
from snapline.contracts.evidence import MEASURES, SCHEMA, Pair
from snapline.contracts.figures import decimal_text, rounded, rounded_down, rounded_up
from snapline.contracts.verdict import Finding, Verdict, Witness
from snapline.lineage.errors import IntegrityError

WITNESS_TOKENS = 8
_TV_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class _Cell:
    clause: Clause
    slice: Slice
    path: Path
    level: Decimal
    seen: Measured


def judge(
    contract: KernelContract,
    members: Mapping[str, Sequence[str]],
    expected: Mapping[str, int],
    evidence: pa.Table,
) -> tuple[Finding, ...]:
    """Return a finding for every clause, slice and path, in that order.

    Args:
        members: Prompt ids by slice name; a slice left out is empty.
        expected: How many positions each prompt must have been scored on: its answer's length in tokens.
        evidence: Rows of `evidence.SCHEMA`, in any order; prompts in no slice are ignored.

    Raises:
        IntegrityError: The table is not evidence.
    """
    rows = _checked(evidence)
    programs = {(clause.pair, path) for clause in contract.clauses for path in contract.paths}
    seen = {program: measured(rows, *program, expected) for program in programs}
    cells = (
        _Cell(clause, part, path, contract.level, seen[clause.pair, path])
        for clause in contract.clauses
        for part in contract.slices
        for path in contract.paths
    )
    return tuple(_judge(cell, set(members.get(cell.slice.name, ()))) for cell in cells)


def measured(evidence: pa.Table, pair: Pair, path: Path, expected: Mapping[str, int]) -> Measured:
    """Return the usable rows of one pair and path.

    A prompt is usable as a whole or not at all: each expected position once, every measure a number, every half span
    at least 0 and every TV within 0 and 1.
    """
    chosen = evidence.filter((pc.field("pair") == pair.value) & (pc.field("path") == path.value))
    ids, codes = _coded(chosen["prompt"])
    columns = {name: chosen[name].to_numpy() for name in ("position", "token", *MEASURES, "flip", "identical")}
    order = np.lexsort((columns["position"], codes))
    codes, columns = codes[order], {name: column[order] for name, column in columns.items()}
    counts = np.bincount(codes, minlength=len(ids))

    broken = ~_sound(columns)
    broken[1:] |= (np.diff(codes) == 0) & (np.diff(columns["position"]) == 0)
    complete = counts == np.array([expected.get(prompt, -1) for prompt in ids], dtype=np.int64)
    usable = complete & (np.bincount(codes, weights=broken, minlength=len(ids)) == 0)

    kept = usable[codes]
    return Measured(
        prompts=tuple(prompt for prompt, use in zip(ids, usable, strict=True) if use),
        starts=np.concatenate(([0], np.cumsum(counts[usable])))[:-1].astype(np.int64),
        columns={name: column[kept] for name, column in columns.items()},
    )


def noise_floor(evidence: pa.Table) -> dict[str, str]:
    """Return how far the reference is from itself under other batching, as decimal strings; empty when not measured.

    `half_span` and `tv` are the largest seen on so many `prompts`, `not_identical` the share of positions that differ
    in some bit.
    """
    rows = _checked(evidence)
    rows = rows.filter(pc.field("pair") == Pair.NOISE_FLOOR.value)
    if not rows.num_rows:
        return {}
    figures = {
        "half_span": rows["half_span"].to_numpy().max(),
        "tv": rows["tv"].to_numpy().max(),
        "not_identical": 1 - rows["identical"].to_numpy().mean(),
    }
    floor = {name: decimal_text(rounded_up(value)) for name, value in figures.items()}
    return floor | {"prompts": str(pc.count_distinct(rows["prompt"]).as_py())}


def _judge(cell: _Cell, wanted: Collection[str]) -> Finding:
    clause, allowed, alpha = cell.clause, cell.clause.allowed, float(cell.level)
    chosen = np.array([prompt in wanted for prompt in cell.seen.prompts], dtype=np.bool_)
    units = clause.units(cell.seen)[chosen]
    prompts, missing = len(units), len(wanted) - len(units)
    lower, upper = rounded_down(clause.lower(units, alpha)), rounded_up(clause.upper(units, alpha))
    if lower > allowed:
        verdict = Verdict.REFUTED
        said = f"at least {decimal_text(lower)}, above the {decimal_text(allowed)} allowed"
    else:
        doubts = _doubts(cell, prompts, missing)
        if upper > allowed:
            interval = f"between {decimal_text(lower)} and {decimal_text(upper)}"
            doubts.append(f"{interval}, which does not settle the {decimal_text(allowed)} allowed")
        verdict = Verdict.UNDECIDED if doubts else Verdict.CERTIFIED
        said = "; ".join(doubts) or f"at most {decimal_text(upper)}, within the {decimal_text(allowed)} allowed"
    return Finding(
        clause=clause.name,
        slice=cell.slice.name,
        path=cell.path.value,
        verdict=verdict,
        prompts=prompts,
        missing=missing,
        estimate=decimal_text(rounded(units.mean() if prompts else np.nan)),
        lower=decimal_text(lower),
        upper=decimal_text(upper),
        limit=decimal_text(allowed),
        level=decimal_text(cell.level),
        method=clause.method,
        reason=f"{clause.figure}: {said}",
        witness=None if verdict is Verdict.CERTIFIED else _witness(cell, chosen),
    )


def _doubts(cell: _Cell, prompts: int, missing: int) -> list[str]:
    doubts = []
    if missing:
        doubts.append(f"{missing} of {prompts + missing} prompts gave no usable measurement")
    if prompts < cell.slice.min_prompts:
        short = cell.slice.min_prompts - prompts
        doubts.append(f"{prompts} prompts measured, {short} short of min_prompts {cell.slice.min_prompts}")
    return doubts


def _witness(cell: _Cell, chosen: NDArray[np.bool_]) -> Witness | None:
    """Return the loudest row of the chosen prompts; None when no row speaks against the promise."""
    seen = cell.seen
    loudness = np.where(np.repeat(chosen, seen.counts), cell.clause.loudness(seen), -np.inf)
    row = int(loudness.argmax()) if seen.rows else 0
    if not seen.rows or loudness[row] == -np.inf:
        return None
    prompt = int(np.searchsorted(seen.starts, row, side="right")) - 1
    first = max(int(seen.starts[prompt]), row - WITNESS_TOKENS + 1)
    figures = {name: decimal_text(Decimal(repr(float(seen.columns[name][row])))) for name in MEASURES}
    facts = {name: str(bool(seen.columns[name][row])).lower() for name in ("flip", "identical")}
    return Witness(
        prompt=seen.prompts[prompt],
        path=cell.path.value,
        position=int(seen.columns["position"][row]),
        tokens=tuple(int(token) for token in seen.columns["token"][first : row + 1]),
        figures=figures | facts,
    )


def _checked(evidence: pa.Table) -> pa.Table:
    try:
        return evidence.select(SCHEMA.names).cast(SCHEMA)
    except (KeyError, ValueError) as error:
        raise IntegrityError(f"this table is not evidence: {error}", hint="Measure again.") from error


def _coded(prompts: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct ids in sorted order, and each row's index into them."""
    encoded = prompts.unify_dictionaries() if pa.types.is_dictionary(prompts.type) else prompts.dictionary_encode()
    encoded = encoded.combine_chunks()
    found = encoded.dictionary.to_pylist()
    ids = sorted(found)
    rank = {prompt: index for index, prompt in enumerate(ids)}
    ranks = np.array([rank[prompt] for prompt in found], dtype=np.int64)
    return ids, ranks[encoded.indices.to_numpy()]


def _sound(columns: Mapping[str, NDArray[np.float64]]) -> NDArray[np.bool_]:
    sound = (columns["half_span"] >= 0) & (columns["tv"] >= 0) & (columns["tv"] <= 1 + _TV_ROUNDING)
    for name in MEASURES:
        sound &= ~np.isnan(columns[name])
    return sound
