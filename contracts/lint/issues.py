"""What lint says: one issue for each thing that is wrong."""

from __future__ import annotations

from enum import StrEnum

from snapline.contracts.clauses.protocol import Clause
from snapline.contracts.contract import KernelContract
from snapline.lineage.documents import Value


class Severity(StrEnum):
    """An error keeps a contract from being met or carried out; a warning is for its author to judge."""

    ERROR = "error"
    WARNING = "warning"


class Kind(StrEnum):
    """What is wrong, in a word."""

    MALFORMED = "malformed"
    UNBOUNDED = "confidence-on-unbounded-figure"
    TOO_FEW_PROMPTS = "too-few-prompts"
    BELOW_FLOOR = "below-noise-floor"
    TOKEN_AS_ANSWER = "token-limit-as-answer-promise"
    VACUOUS = "vacuous"
    UNREADABLE_SLICE = "slice-unreadable"
    NEVER_MATCHES = "slice-never-matches"
    SAME_SLICE = "slices-equal"
    OVERLAP = "slices-overlap"
    NO_COLUMN = "no-such-column"
    NO_STAGES = "escalation-without-stages"
    UNMONITORED = "stages-without-monitor"
    CANNOT_ROUTE = "slice-cannot-be-routed"


class LintIssue(Value):
    """One thing wrong with a contract.

    Attributes:
        field: The place in the document; a slice goes by its name.
        line: The line of the file, when there is a file.
    """

    kind: Kind
    severity: Severity
    field: str
    message: str
    line: int | None = None


def error(kind: Kind, field: str, message: str) -> LintIssue:
    """Return an issue that keeps the contract from being met or carried out."""
    return LintIssue(kind=kind, severity=Severity.ERROR, field=field, message=message)


def warning(kind: Kind, field: str, message: str) -> LintIssue:
    """Return an issue for the author to judge."""
    return LintIssue(kind=kind, severity=Severity.WARNING, field=field, message=message)


def field_of(contract: KernelContract, clause: Clause) -> str:
    """Return where a clause is written, such as `statistical.tv_token`."""
    for group in ("numerical", "statistical", "runtime"):
        written = getattr(contract, group)
        for name in type(written).model_fields:
            if getattr(written, name) is clause:
                return f"{group}.{name}"
    return clause.name
