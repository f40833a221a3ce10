"""Clauses that no measurement of so few prompts could certify."""

from __future__ import annotations

from snapline.contracts.contract import Cell, KernelContract
from snapline.contracts.figures import decimal_text, rounded_up
from snapline.contracts.lint.issues import Kind, LintIssue, error, field_of
from snapline.contracts.verdict import TIMED


def unattainable(contract: KernelContract) -> list[LintIssue]:
    """Return an error for each clause and slice whose `min_prompts` faultless prompts would not certify it."""
    alpha = float(contract.level)
    issues = {}
    # What faultless prompts give depends on their number alone, so each slice is judged once for all paths.
    for cell in sorted(contract.cells, key=lambda cell: _rank(contract, cell)):
        n, allowed = cell.slice.min_prompts, cell.clause.allowed
        best = rounded_up(cell.clause.best_upper(n, alpha))
        if best > allowed:
            needed = cell.clause.prompts_needed(alpha)
            what = "runs" if cell.path == TIMED else "prompts"
            message = (
                f"{n} {what} cannot certify {cell.clause.name}: without a fault its upper limit is "
                f"{decimal_text(best)}, allowed is {decimal_text(allowed)}; "
                + (f"{needed} {what} could" if needed else f"no feasible number of {what} can")
            )
            field = f"slices.{cell.slice.name}.min_prompts"
            if cell.clause.sampled is not None:
                field = field_of(contract, cell.clause)
            issues[cell.slice.name, cell.clause.name] = error(Kind.TOO_FEW_PROMPTS, field, message)
    return list(issues.values())


def _rank(contract: KernelContract, cell: Cell) -> int:
    names = [part.name for part in contract.slices]
    return names.index(cell.slice.name) if cell.clause.sampled is None else len(names)
