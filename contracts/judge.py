"""Judging: evidence and a contract in, one finding per clause, slice and path out. Pure, and the same everywhere.

A cell is CERTIFIED when its upper confidence limit is at or under what the clause allows, REFUTED when its lower limit
is above it, else UNDECIDED. The limits are compared as the nine-place decimals a finding prints, rounded away from the
estimate. A missing prompt or too few prompts leave a cell UNDECIDED at best; they never hide a REFUTED.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from snapline.contracts.clauses import DIAGNOSTICS
from snapline.contracts.clauses.protocol import Clause, Figures, Measured
from snapline.contracts.contract import Cell, KernelContract, Search, Slice
from snapline.contracts.engines.protocol import Path
from snapline.contracts.evidence import COLUMNS, MEASURES, SCHEMA, Pair
from snapline.contracts.figures import decimal_text, rounded, rounded_down, rounded_up
from snapline.contracts.search import worst_slice
from snapline.contracts.slices import members, rows_inside, sample, with_undecided
from snapline.contracts.timings import measured_timings, timings_of
from snapline.contracts.verdict import TIMED, Finding, Searched, Verdict, Witness
from snapline.lineage.errors import DefinitionError, IntegrityError

WITNESS_TOKENS = 8
_TV_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Judged:
    """What evidence says of a contract.

    Attributes:
        findings: One for every cell, in the contract's order; then one for each searched slice that refutes.
        searched: The worst slice found for each clause and path that was searched.
        diagnostics: Unbounded figures as decimal strings, by path and name.
    """

    findings: tuple[Finding, ...]
    searched: tuple[Searched, ...] = ()
    diagnostics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What a cell reads: its rows, one unit for each of `seen.prompts`, and how many prompts have none."""

    seen: Measured
    units: Figures
    missing: int


def judge(contract: KernelContract, prompts: pa.Table, evidence: pa.Table) -> Judged:
    """Return a finding for every cell of a contract, and what a search and the diagnostics found.

    Args:
        prompts: The probe table as `slices.with_lengths` gives it.
        evidence: Rows of `evidence.SCHEMA`, in any order, with timings in the metadata when they were taken.

    Raises:
        IntegrityError: The table is not evidence.
        DefinitionError: A slice's predicate cannot be evaluated, or a column that is asked for is not there.
    """
    bench = _Bench(contract, prompts, evidence)
    findings = [bench.finding(cell) for cell in contract.cells]
    search = contract.search
    searched = [bench.searched(search, clause, path) for clause, path in contract.searched] if search else []
    findings += [found.finding for found in searched if found.finding]
    return Judged(tuple(findings), tuple(searched), bench.diagnostics())


class _Bench:
    """The evidence, sorted out once for all cells."""

    def __init__(self, contract: KernelContract, prompts: pa.Table, evidence: pa.Table) -> None:
        self._contract, self._level = contract, contract.level
        self._ids: list[str] = prompts["id"].to_pylist()
        rows = _checked(evidence)
        programs = {(clause.pair, path) for clause in contract.clauses for path in clause.on(contract.paths)}
        programs |= {(Pair.SERVING, path.value) for path in contract.paths}
        self._seen = {
            (pair, path): measured(rows, pair, Path(path), expected_positions(prompts, Path(path)))
            for pair, path in programs
            if path != TIMED
        }
        self._seen[Pair.TIMING, TIMED] = measured_timings(timings_of(evidence))
        self._prompts = with_undecided(prompts, self._seen[Pair.SERVING, contract.paths[0].value])
        self._members = {part.name: set(members(part, self._prompts)) for part in contract.slices if _of_prompts(part)}

    def finding(self, cell: Cell) -> Finding:
        """Return the verdict of a cell."""
        return _finding(cell, self._choose(cell), self._level)

    def searched(self, search: Search, clause: Clause, path: str) -> Searched:
        """Return the slice a clause holds worst on."""
        seen = self._read(clause, path)
        return worst_slice(clause, path, seen, clause.units(seen), search, (self._prompts, self._level))

    def diagnostics(self) -> dict[str, dict[str, str]]:
        """Return the figures a contract asks to have reported, for each path that was measured."""
        found: dict[str, dict[str, str]] = {}
        for path in self._contract.paths:
            seen = self._seen[Pair.SERVING, path.value]
            if seen.rows and self._contract.diagnostics:
                figures = {name: DIAGNOSTICS[name](seen) for name in self._contract.diagnostics}
                found[path.value] = {name: decimal_text(rounded(value)) for name, value in figures.items()}
        return found

    def _read(self, clause: Clause, path: str) -> Measured:
        seen = self._seen[clause.pair, path]
        if clause.columns:
            seen = replace(seen, given={name: self._given(name, seen.prompts) for name in clause.columns})
        return clause.relevant(seen)

    def _given(self, name: str, prompts: tuple[str, ...]) -> Figures:
        if name not in self._prompts.column_names:
            raise DefinitionError(
                f"the contract reads column {name!r}, which the probe set does not have",
                hint=f"It has {', '.join(self._prompts.column_names)}.",
            )
        try:
            column = self._prompts[name].cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowException as error:
            raise DefinitionError(
                f"column {name!r} of the probe set is not a number everywhere: {error}", hint="Write numbers there."
            ) from error
        found = dict(zip(self._ids, column, strict=True))
        return np.array([found[prompt] for prompt in prompts], np.float64)

    def _choose(self, cell: Cell) -> _Chosen:
        seen = self._read(cell.clause, cell.path)
        if cell.path == TIMED:
            return _usable(seen, cell.clause.units(seen), wanted=None)
        if not _of_prompts(cell.slice):
            whole = len(self._ids) - len(seen.prompts)
            inside = seen.where(rows_inside(cell.slice, self._prompts, seen))
            return replace(_usable(inside, cell.clause.units(inside), wanted=None), missing=whole)
        sampled = cell.clause.sampled
        wanted = self._members[cell.slice.name] if sampled is None else set(sample(self._ids, sampled))
        return _usable(seen, cell.clause.units(seen), wanted)


def _of_prompts(part: Slice) -> bool:
    return part.unit == "prompt"


def _usable(seen: Measured, units: Figures, wanted: Collection[str] | None) -> _Chosen:
    """Return the wanted prompts that have a unit; None wants all there are."""
    counted = ~np.isnan(units)
    if wanted is not None:
        counted &= np.array([prompt in wanted for prompt in seen.prompts], np.bool_)
    rows = np.repeat(counted, seen.counts)
    total = len(units) if wanted is None else len(wanted)
    return _Chosen(seen.where(rows), units[counted], total - int(counted.sum()))


def expected_positions(prompts: pa.Table, path: Path) -> dict[str, int]:
    """Return how many positions each prompt must have on a path: the length of the answer that was scored there."""
    column = "sampled_tokens" if path is Path.DECODE_SAMPLED else "answer_tokens"
    return dict(zip(prompts["id"].to_pylist(), prompts[column].to_pylist(), strict=True))


def measured(evidence: pa.Table, pair: Pair, path: Path, expected: Mapping[str, int]) -> Measured:
    """Return the usable rows of one pair and path.

    A prompt is usable as a whole or not at all: each expected position once, every measure a number, every half span
    at least 0 and every TV within 0 and 1.
    """
    chosen = evidence.filter((pc.field("pair") == pair.value) & (pc.field("path") == path.value))
    ids, codes = _coded(chosen["prompt"])
    columns = {name: chosen[name].to_numpy() for name in COLUMNS}
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


def _finding(cell: Cell, chosen: _Chosen, level: Decimal) -> Finding:
    clause, allowed, alpha, units = cell.clause, cell.clause.allowed, float(level), chosen.units
    lower, upper = rounded_down(clause.lower(units, alpha)), rounded_up(clause.upper(units, alpha))
    if lower > allowed:
        verdict = Verdict.REFUTED
        said = f"at least {decimal_text(lower)}, above the {decimal_text(allowed)} allowed"
    else:
        doubts = _doubts(cell, len(units), chosen.missing)
        if upper > allowed:
            interval = f"between {decimal_text(lower)} and {decimal_text(upper)}"
            doubts.append(f"{interval}, which does not settle the {decimal_text(allowed)} allowed")
        verdict = Verdict.UNDECIDED if doubts else Verdict.CERTIFIED
        said = "; ".join(doubts) or f"at most {decimal_text(upper)}, within the {decimal_text(allowed)} allowed"
    return Finding(
        clause=clause.name,
        slice=cell.slice.name,
        path=cell.path,
        verdict=verdict,
        prompts=len(units),
        missing=chosen.missing,
        estimate=decimal_text(rounded(clause.estimate(units))),
        lower=decimal_text(lower),
        upper=decimal_text(upper),
        limit=decimal_text(allowed),
        level=decimal_text(level),
        method=clause.method,
        reason=f"{clause.figure}: {said}",
        witness=None if verdict is Verdict.CERTIFIED else witness(clause, cell.path, chosen.seen),
    )


def _doubts(cell: Cell, prompts: int, missing: int) -> list[str]:
    what = "runs" if cell.path == TIMED else "prompts"
    doubts = []
    if missing:
        doubts.append(f"{missing} of {prompts + missing} {what} gave no usable measurement")
    if prompts < cell.slice.min_prompts:
        short = cell.slice.min_prompts - prompts
        doubts.append(f"{prompts} {what} measured, {short} short of min_prompts {cell.slice.min_prompts}")
    return doubts


def witness(clause: Clause, path: str, seen: Measured) -> Witness | None:
    """Return the row that speaks loudest against a promise; None when none does."""
    loudness = clause.loudness(seen)
    row = int(loudness.argmax()) if seen.rows else 0
    if not seen.rows or loudness[row] == -np.inf:
        return None
    prompt = int(np.searchsorted(seen.starts, row, side="right")) - 1
    first = max(int(seen.starts[prompt]), row - WITNESS_TOKENS + 1)
    return Witness(
        prompt=seen.prompts[prompt],
        path=path,
        position=int(seen.columns["position"][row]),
        tokens=tuple(int(token) for token in seen.columns["token"][first : row + 1]),
        figures={
            name: _text(column[row]) for name, column in seen.columns.items() if name not in ("position", "token")
        },
    )


def _text(value: np.generic) -> str:
    if isinstance(value, np.bool_):
        return str(bool(value)).lower()
    return decimal_text(Decimal(repr(value.item())))


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
