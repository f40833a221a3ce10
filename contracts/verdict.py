"""Verdicts and the findings they rest on."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from snapline.lineage.documents import Received

TIMED = "generation"
"""What a timing exercises, in place of a path."""


class Verdict(StrEnum):
    """What evidence says of a promise. Too little evidence is UNDECIDED, never CERTIFIED."""

    CERTIFIED = "CERTIFIED"
    UNDECIDED = "UNDECIDED"
    REFUTED = "REFUTED"


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict over many: REFUTED beats UNDECIDED beats CERTIFIED, and nothing at all is UNDECIDED."""
    found = set(verdicts)
    if Verdict.REFUTED in found:
        return Verdict.REFUTED
    return Verdict.CERTIFIED if found == {Verdict.CERTIFIED} else Verdict.UNDECIDED


class Witness(Received):
    """The measured position that speaks loudest against a promise.

    Attributes:
        tokens: The given token at the position and the ones just before it, oldest first.
        figures: Measures at the position by name, as decimal strings.
    """

    prompt: str
    path: str
    position: int
    tokens: tuple[int, ...]
    figures: dict[str, str]


class Finding(Received):
    """The verdict of one clause on one slice and path.

    Attributes:
        prompts: How many prompts were measured in the slice; the unit of independence is the prompt.
        missing: How many prompts of the slice gave no usable measurement.
        estimate, lower, upper, limit: Decimal strings in the clause's unit; `lower` and `upper` are one-sided
            confidence limits, each at `level`.
        level: The error probability each side was given of the family-wise level, as a decimal string.
        method: The estimator, by name.
        reason: One sentence a release engineer can act on.
    """

    clause: str
    slice: str
    path: str
    verdict: Verdict
    prompts: int
    missing: int
    estimate: str
    lower: str
    upper: str
    limit: str
    level: str
    method: str
    reason: str
    witness: Witness | None = None


class Searched(Received):
    """The worst of the candidate slices for one clause and path.

    Attributes:
        slice: Its predicate; empty when no candidate was large enough.
        candidates: How many were compared.
        passed_over: How many were too small to be.
        level: The error probability each side of each candidate was given.
        finding: The finding that refutes the clause there; None when it does not.
    """

    clause: str
    path: str
    slice: str
    candidates: int
    passed_over: int
    prompts: int
    estimate: str
    lower: str
    upper: str
    limit: str
    level: str
    finding: Finding | None = None
