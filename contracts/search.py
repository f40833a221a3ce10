"""Worst-slice search: the prompts a clause holds worst on, among the values of some columns, with its price paid.

Looking at many slices and reporting the worst finds a bad one by chance sooner or later. So the error probability of
one cell is shared by all candidates: the limits of the one that is reported hold whichever it is.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from snapline.contracts.clauses.protocol import Clause, Figures, Measured
from snapline.contracts.contract import Search
from snapline.contracts.figures import decimal_text, rounded, rounded_down, rounded_up
from snapline.contracts.slices import candidates
from snapline.contracts.verdict import Finding, Searched, Verdict

if TYPE_CHECKING:
    import pyarrow as pa


def worst_slice(
    clause: Clause, path: str, seen: Measured, units: Figures, search: Search, given: tuple[pa.Table, Decimal]
) -> Searched:
    """Return the candidate with the highest lower limit, ties by estimate, at its share of one cell's level.

    Args:
        units: One for each prompt of `seen`.
        given: The probe table, and the error probability of one side of one cell.

    Raises:
        DefinitionError: A searched column is not there.
    """
    prompts, cell_level = given
    found, passed_over = candidates(search, prompts)
    level = cell_level / max(1, len(found))
    place = {prompt: number for number, prompt in enumerate(seen.prompts)}
    ranked = []
    for name, chosen in found.items():
        of_slice = units[[place[prompt] for prompt in chosen if prompt in place]]
        of_slice = of_slice[~np.isnan(of_slice)]
        lower, estimate = clause.lower(of_slice, float(level)), clause.estimate(of_slice)
        ranked.append((lower, float(np.nan_to_num(estimate)), name, of_slice))
    lower, _, name, of_slice = max(ranked, key=lambda one: one[:3], default=(0.0, 0.0, "", np.empty(0)))
    figures: dict[str, Any] = {
        "clause": clause.name,
        "path": path,
        "slice": name,
        "prompts": len(of_slice),
        "estimate": decimal_text(rounded(clause.estimate(of_slice))),
        "lower": decimal_text(rounded_down(lower)),
        "upper": decimal_text(rounded_up(clause.upper(of_slice, float(level)))),
        "limit": decimal_text(clause.allowed),
        "level": decimal_text(level),
    }
    refuted = _refuted(clause, figures, len(found)) if rounded_down(lower) > clause.allowed else None
    return Searched(**figures, candidates=len(found), passed_over=passed_over, finding=refuted)


def _refuted(clause: Clause, figures: dict[str, Any], candidates: int) -> Finding:
    said = f"at least {figures['lower']} on the worst of {candidates} slices searched"
    return Finding(
        **figures,
        verdict=Verdict.REFUTED,
        missing=0,
        method=clause.method,
        reason=f"{clause.figure}: {said}, above the {figures['limit']} allowed",
    )
