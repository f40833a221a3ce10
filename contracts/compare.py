"""Two tables of evidence side by side: did a serving engine get nearer to the reference, or further from it?

Both are of the same weights, probes, temperature and reference; what served may differ. Figures are paired by prompt,
so that what makes prompts differ cancels: the mean difference of figures in [0, 1] with the limits of bounded paired
differences, the median difference of the largest half span with order statistics. All limits together hold with the
confidence asked for. "No difference was seen" is not "equal": read the limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from snapline.contracts import estimators
from snapline.contracts.engines.protocol import Path
from snapline.contracts.errors import IncomparableError
from snapline.contracts.evidence import COLUMNS, SCHEMA
from snapline.contracts.provenance import Provenance, provenance_of

if TYPE_CHECKING:
    from snapline.contracts.clauses.protocol import Figures

MEANS = ("tv", "flip", "not_identical")
"""Figures in [0, 1] at each position, averaged over a prompt's."""
LARGEST = "half_span"
"""The figure without a bound; a prompt counts with its largest."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How a figure of the second table differs from the first's, over the prompts of both.

    Attributes:
        statistic: `mean` or `median` of the prompts' differences, second less first.
        first, second: That statistic of each table's own figures.
        lower, upper: Confidence limits of the difference; infinite with too few prompts to have one.
        method: The estimator.
    """

    measure: str
    statistic: str
    first: float
    second: float
    difference: float
    lower: float
    upper: float
    method: str


@dataclass(frozen=True, slots=True)
class PairCompared:
    """One pair and path in both tables.

    Attributes:
        prompts: Prompts of both that are compared.
        only_first, only_second: Prompts that one table alone has.
        other_tokens: Prompts of both whose tokens or positions differ. Where answers are given these are not compared;
            drawn answers may differ and are, for leaving them out would choose prompts by what came of them.
        unusable: Prompts of both with a figure that is no number.
        identical: Whether every row of both tables is the same.
        differences: Empty without a prompt to compare.
    """

    pair: str
    path: str
    prompts: int
    only_first: int
    only_second: int
    other_tokens: int
    unusable: int
    identical: bool
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two tables of evidence.

    Attributes:
        same_serving: Whether the same thing served in both.
        level: The error probability of each limit.
        identical: Whether every row of both is the same.
    """

    same_serving: bool
    level: float
    identical: bool
    pairs: tuple[PairCompared, ...]


def compare(first: pa.Table, second: pa.Table, confidence: float = 0.95) -> Comparison:
    """Return how the second table of evidence differs from the first.

    Args:
        confidence: Of all limits together.

    Raises:
        IntegrityError: A table has no provenance.
        IncomparableError: More than what served differs between them.
    """
    ours, theirs = provenance_of(first), provenance_of(second)
    _require_comparable(ours, theirs)
    programs = sorted(_programs(first) | _programs(second))
    level = (1 - confidence) / (2 * max(1, len(programs)) * (len(MEANS) + 1))
    pairs = tuple(_compare(_rows(first, program), _rows(second, program), program, level) for program in programs)
    return Comparison(ours.serving == theirs.serving, level, all(pair.identical for pair in pairs), pairs)


def _require_comparable(first: Provenance, second: Provenance) -> None:
    different = [
        f"{name}: {ours} and {theirs}"
        for name in ("recipe", "weights", "probes", "temperature", "reference")
        if (ours := getattr(first, name)) != (theirs := getattr(second, name))
    ]
    if different:
        raise IncomparableError(
            f"the two tables of evidence differ in more than what served: {'; '.join(different)}",
            hint="Compare evidence of the same weights, probes, temperature and reference.",
        )


def _programs(evidence: pa.Table) -> set[tuple[str, str]]:
    distinct = evidence.select(["pair", "path"]).group_by(["pair", "path"]).aggregate([])
    return set(zip(distinct["pair"].to_pylist(), distinct["path"].to_pylist(), strict=True))


def _rows(evidence: pa.Table, program: tuple[str, str]) -> pa.Table:
    pair, path = program
    chosen = evidence.select(SCHEMA.names).filter((pc.field("pair") == pair) & (pc.field("path") == path))
    return chosen.sort_by([("prompt", "ascending"), ("position", "ascending")]).combine_chunks()


def _compare(first: pa.Table, second: pa.Table, program: tuple[str, str], level: float) -> PairCompared:
    ours, theirs = dict(_by_prompt(first)), dict(_by_prompt(second))
    pair, path = program
    both = [prompt for prompt in ours if prompt in theirs]
    usable = [prompt for prompt in both if _is_usable(ours[prompt]) and _is_usable(theirs[prompt])]
    other = {prompt for prompt in usable if not _same_tokens(ours[prompt], theirs[prompt])}
    chosen = [prompt for prompt in usable if path == Path.DECODE_SAMPLED or prompt not in other]
    differences = _differences([ours[p] for p in chosen], [theirs[p] for p in chosen], level) if chosen else ()
    return PairCompared(
        pair=pair,
        path=path,
        prompts=len(chosen),
        only_first=len(ours) - len(both),
        only_second=len(theirs) - len(both),
        other_tokens=len(other),
        unusable=len(both) - len(usable),
        identical=first.replace_schema_metadata(None).equals(second.replace_schema_metadata(None)),
        differences=tuple(differences),
    )


Columns = dict[str, NDArray[np.float64]]


def _by_prompt(rows: pa.Table) -> Iterator[tuple[str, Columns]]:
    """Yield each prompt's columns, from rows sorted by prompt."""
    prompts = rows["prompt"].to_numpy(zero_copy_only=False)
    columns = {name: rows[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in COLUMNS}
    columns["not_identical"] = 1 - columns["identical"]
    starts = [0, *(np.flatnonzero(prompts[1:] != prompts[:-1]) + 1), len(prompts)] if len(prompts) else []
    for start, end in pairwise(starts):
        yield prompts[start], {name: column[start:end] for name, column in columns.items()}


def _is_usable(columns: Columns) -> bool:
    return not any(np.isnan(columns[name]).any() for name in (*MEANS, LARGEST))


def _same_tokens(ours: Columns, theirs: Columns) -> bool:
    return all(np.array_equal(ours[name], theirs[name]) for name in ("position", "token"))


def _differences(ours: list[Columns], theirs: list[Columns], level: float) -> Iterator[Difference]:
    for measure in MEANS:
        first, second = (np.clip([rows[measure].mean() for rows in side], 0.0, 1.0) for side in (ours, theirs))
        change = second - first
        yield Difference(
            measure=measure,
            statistic="mean",
            first=float(first.mean()),
            second=float(second.mean()),
            difference=float(change.mean()),
            lower=estimators.paired_mean_lower(change, level),
            upper=estimators.paired_mean_upper(change, level),
            method=f"paired {estimators.MEAN_METHOD}",
        )
    first, second = (np.array([rows[LARGEST].max() for rows in side]) for side in (ours, theirs))
    yield _median(first, second, level)


def _median(first: Figures, second: Figures, level: float) -> Difference:
    # An infinite half span on both sides is no change.
    with np.errstate(invalid="ignore"):
        change = np.where(first == second, 0.0, second - first)
    return Difference(
        measure=LARGEST,
        statistic="median",
        first=float(np.median(first)),
        second=float(np.median(second)),
        difference=float(np.median(change)),
        lower=estimators.quantile_lower(change, 0.5, level),
        upper=estimators.quantile_upper(change, 0.5, level),
        method=f"paired {estimators.QUANTILE_METHOD}",
    )
