"""Lint: what is wrong with a contract before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from snapline.contracts.clauses.protocol import Clause
from snapline.contracts.contract import KernelContract, Slice
from snapline.contracts.figures import decimal_text, rounded_up
from snapline.lineage.documents import Value
from snapline.lineage.errors import DefinitionError


class Severity(StrEnum):
    """Whether an issue keeps a contract from ever being met."""

    ERROR = "error"
    WARNING = "warning"


class LintIssue(Value):
    """One thing wrong with a contract; `field` is the place in the document."""

    severity: Severity
    field: str
    message: str


def lint(
    contract: KernelContract,
    *,
    available: Mapping[str, int] | None = None,
    floor: Mapping[str, str] | None = None,
) -> tuple[LintIssue, ...]:
    """Return everything wrong with a contract, errors first.

    Args:
        available: Prompts each slice has in the probe set, by slice name.
        floor: The reference's distance from itself, as `judge.noise_floor` gives it.
    """
    issues = [issue for part in contract.slices for issue in _unattainable(contract, part)]
    if available is not None:
        issues += [issue for part in contract.slices for issue in _too_few(part, available.get(part.name, 0))]
    issues += [issue for clause in contract.clauses for issue in _below(clause, floor or {})]
    return tuple(sorted(issues, key=lambda issue: issue.severity is Severity.WARNING))


def require_attainable(contract: KernelContract) -> None:
    """Raise if some clause could not be CERTIFIED by any measurement of `min_prompts` prompts.

    Raises:
        DefinitionError: It names every such clause and slice, and how many prompts would do.
    """
    errors = [issue for issue in lint(contract) if issue.severity is Severity.ERROR]
    if errors:
        raise DefinitionError(
            f"contract {contract.name!r} can never be met:\n"
            + "\n".join(f"{issue.field}: {issue.message}" for issue in errors),
            hint="Raise min_prompts, loosen the limit, or promise less: fewer clauses, slices or paths.",
        )


def _unattainable(contract: KernelContract, part: Slice) -> Iterator[LintIssue]:
    alpha = float(contract.level)
    for clause in contract.clauses:
        best = rounded_up(clause.best_upper(part.min_prompts, alpha))
        if best > clause.allowed:
            needed = clause.prompts_needed(alpha)
            yield LintIssue(
                severity=Severity.ERROR,
                field=f"slices.{part.name}.min_prompts",
                message=(
                    f"{part.min_prompts} prompts cannot certify {clause.name}: without a fault its upper limit is "
                    f"{decimal_text(best)}, allowed is {decimal_text(clause.allowed)}; "
                    + (f"{needed} prompts could" if needed else "no feasible number of prompts can")
                ),
            )


def _too_few(part: Slice, available: int) -> Iterator[LintIssue]:
    if available < part.min_prompts:
        yield LintIssue(
            severity=Severity.ERROR,
            field=f"slices.{part.name}.min_prompts",
            message=f"the probe set has {available} prompts in this slice, {part.min_prompts} are wanted",
        )


def _below(clause: Clause, floor: Mapping[str, str]) -> Iterator[LintIssue]:
    if clause.resolution is None:
        return
    measure, limit = clause.resolution
    # A floor that is not a number is above every limit.
    if measure in floor and not float(limit) >= float(floor[measure]):
        yield LintIssue(
            severity=Severity.WARNING,
            field=clause.name,
            message=f"the limit {decimal_text(limit)} is below the reference's own noise, {floor[measure]} ({measure})",
        )
