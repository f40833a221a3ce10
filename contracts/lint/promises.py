"""Promises that say less than they seem to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

from snapline.contracts import bounds
from snapline.contracts.clauses.half_span import HalfSpan
from snapline.contracts.clauses.log_ratio import LogRatio
from snapline.contracts.clauses.performance import LatencyRatio, PeakMemoryRatio, PerformanceClause, ThroughputRatio
from snapline.contracts.clauses.protocol import Clause, DrawnAnswerClause
from snapline.contracts.clauses.reward_drift import MeasuredDrift
from snapline.contracts.clauses.tv_token import TvToken
from snapline.contracts.contract import KernelContract
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import decimal_text
from snapline.contracts.lint.issues import Kind, LintIssue, field_of, warning

if TYPE_CHECKING:
    import pyarrow as pa

MOST_ALLOWED = Decimal("0.5")
"""A figure in [0, 1] that may be larger lets a program be wrong more often than right."""
MOST_HALF_SPAN = Decimal(20)
"""Already at this half span two distributions may be a total variation distance of 1 - 4e-9 apart."""

MOST_TIMES = 100
"""A ratio beyond this says nothing about an engine that anybody would serve with."""


def below_floor(contract: KernelContract, floor: Mapping[str, str]) -> Iterator[LintIssue]:
    """Yield a warning for each limit that the reference does not keep against itself."""
    for clause in contract.clauses:
        if clause.resolution is None:
            continue
        measure, limit = clause.resolution
        # A floor that is not a number is above every limit.
        if measure in floor and not float(limit) >= float(floor[measure]):
            said = f"the limit {decimal_text(limit)} is below the reference's own noise, {floor[measure]} ({measure})"
            yield warning(Kind.BELOW_FLOOR, field_of(contract, clause), said)


def vacuous(contract: KernelContract, caught: Mapping[str, str]) -> Iterator[LintIssue]:
    """Yield a warning for each clause that no faulty engine need fail."""
    for clause in contract.clauses:
        if said := _vacuous(clause, caught):
            yield warning(Kind.VACUOUS, field_of(contract, clause), said)


def _vacuous(clause: Clause, caught: Mapping[str, str]) -> str:
    allowed = decimal_text(clause.allowed)
    if clause.allowed > MOST_ALLOWED:
        return f"{clause.figure} may be {allowed}: a program that is wrong every other time would pass"
    if (half_span := _half_span(clause)) > MOST_HALF_SPAN:
        distance = bounds.tv(float(half_span))
        return (
            f"half spans up to {decimal_text(half_span)} allow a total variation distance of {distance:.9f} at every "
            "token: a program unrelated to the reference would pass"
        )
    if isinstance(clause, PerformanceClause) and _times_worse(clause) > MOST_TIMES:
        return f"{clause.figure}: over {MOST_TIMES} times worse than the reference would pass"
    if clause.name in caught and Decimal(caught[clause.name]) <= clause.allowed:
        return f"allowed is {allowed}, and the worst of the known faults shows {caught[clause.name]}: none would fail"
    return ""


def _half_span(clause: Clause) -> Decimal:
    if isinstance(clause, LogRatio):
        return clause.limit / 2  # a half span of s allows log ratios of up to 2 s
    measure, limit = clause.resolution or ("", Decimal(0))
    return limit if measure == "half_span" else Decimal(0)


def _times_worse(clause: PerformanceClause) -> Decimal:
    """Return how many times worse than the reference's a run's figure may be."""
    if isinstance(clause, ThroughputRatio):
        return 1 / clause.at_least
    return clause.at_most if isinstance(clause, LatencyRatio | PeakMemoryRatio) else Decimal(0)


def tokens_sold_as_answers(contract: KernelContract, prompts: pa.Table | None) -> Iterator[LintIssue]:
    """Yield a warning if people get whole answers under promises about single tokens alone."""
    written = [name for name in ("stages", "escalation", "observability") if getattr(contract, name)]
    against_reference = [clause for clause in contract.clauses if clause.pair is Pair.SERVING]
    of_whole_answers = any(isinstance(clause, DrawnAnswerClause | MeasuredDrift) for clause in against_reference)
    if not written or not against_reference or of_whole_answers:
        return
    names = ", ".join(clause.name for clause in against_reference)
    said = f"{written[0]} is about the answers people get, but {names} about single tokens"
    if implied := [words for clause in against_reference if (words := of_answers(clause, longest(contract, prompts)))]:
        said += f": {'; '.join(implied)}"
    field = field_of(contract, against_reference[0])
    yield warning(Kind.TOKEN_AS_ANSWER, field, f"{said}; promise tv_answer on decode-sampled to speak of answers")


def of_answers(clause: Clause, tokens: int) -> str:
    """Return in words what a limit on single tokens leaves open about answers of that length; empty without one."""
    if isinstance(clause, TvToken):
        limit, distance = clause.allowed, bounds.tv_answer_of_tv(float(clause.allowed), tokens)
    elif isinstance(clause, HalfSpan):
        limit, distance = clause.limit, bounds.tv_answer(float(clause.limit), tokens)
    else:
        return ""
    return (
        f"{clause.name} {decimal_text(limit)} at each of {tokens} tokens leaves answers open to a total variation "
        f"distance of {distance:.2g}"
    )


def longest(contract: KernelContract, prompts: pa.Table | None) -> int:
    """Return how many tokens the longest answer has, as far as that is known; otherwise the contract's horizon."""
    import pyarrow.compute as pc

    if prompts is None or "answer_tokens" not in prompts.column_names:
        return contract.horizon
    return int(pc.max(prompts["answer_tokens"]).as_py() or contract.horizon)
