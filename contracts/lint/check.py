"""Everything lint looks for, in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from snapline.contracts.contract import KernelContract
from snapline.contracts.lint import attainable, parts, promises, rollout
from snapline.contracts.lint.issues import LintIssue, Severity
from snapline.lineage.errors import DefinitionError

if TYPE_CHECKING:
    import pyarrow as pa


def lint(
    contract: KernelContract,
    *,
    prompts: pa.Table | None = None,
    floor: Mapping[str, str] | None = None,
    caught: Mapping[str, str] | None = None,
) -> tuple[LintIssue, ...]:
    """Return everything wrong with a contract, errors first.

    Args:
        prompts: The probe table it would be measured on; with the columns of `slices.with_lengths` when the lengths
            are known. Without them, predicates that read lengths are checked and not evaluated.
        floor: The reference's distance from itself, as `judge.noise_floor` gives it.
        caught: The largest figure that a known fault shows, by clause name, as decimal strings. A limit that none of
            them exceeds is vacuous; without them only limits are that no engine need fear.
    """
    issues = [
        *attainable.unattainable(contract),
        *promises.below_floor(contract, floor or {}),
        *promises.vacuous(contract, caught or {}),
        *promises.tokens_sold_as_answers(contract, prompts),
        *parts.unreadable(contract),
        *rollout.issues(contract, prompts),
    ]
    if prompts is not None:
        issues += parts.on_probes(contract, prompts)
    return tuple(sorted(issues, key=lambda issue: issue.severity is Severity.WARNING))


def require_attainable(contract: KernelContract) -> None:
    """Raise if some clause could not be CERTIFIED by any measurement of `min_prompts` prompts.

    Raises:
        DefinitionError: It names every such clause and slice, and how many prompts would do.
    """
    if errors := attainable.unattainable(contract):
        raise DefinitionError(
            f"contract {contract.name!r} can never be met:\n"
            + "\n".join(f"{issue.field}: {issue.message}" for issue in errors),
            hint="Raise min_prompts, loosen the limit, or promise less: fewer clauses, slices or paths.",
        )
