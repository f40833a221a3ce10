"""Observability: what a contract demands of serving logs, held against the log that was read.

These findings are counts of one file and no estimates, so both limits are the figure itself. They speak of the newest
log alone. Nothing is made up: how many requests there were is the engines' own count, which a log of some requests
cannot know, and a log that does not reach back far enough says nothing about older ones.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from snapline.contracts.figures import decimal_text, rounded
from snapline.contracts.rollout.documents import Observability
from snapline.contracts.rollout.log import Tally
from snapline.contracts.verdict import Finding, Verdict
from snapline.lineage.errors import DefinitionError

CLAUSE = "observability"
METHOD = "count"
SKEW = timedelta(minutes=5)
"""How far ahead of ours the clocks of servers may be."""


def check_observability(
    observability: Observability, tally: Tally | None, serving_since: datetime, now: datetime
) -> tuple[Finding, ...]:
    """Return a finding for each thing a contract demands of a log: each field, age, sampling and retention.

    Args:
        tally: Of the newest log; None before any was read.
        serving_since: When the rollout first entered a stage in which it serves; nothing older has to be kept.
    """
    if tally is None:
        nothing = Tally(requests=0, oldest=now, newest=now)
        return (_finding("log", nothing, ("NaN", 0), None, "no log of this stage was read yet"),)
    findings = [*_fields(observability, tally), _sampling(observability.sampling, tally)]
    if observability.max_age is not None:
        findings.append(_age(observability.max_age, tally, now))
    if observability.retention is not None:
        findings.append(_retention(observability.retention, tally, serving_since, now))
    return tuple(findings)


def require_possible(tally: Tally, now: datetime) -> None:
    """Raise unless a log can be what it says.

    Raises:
        DefinitionError: More requests are logged than were served, or one was answered in the future.
    """
    if tally.newest > now + SKEW:
        raise DefinitionError(
            f"the log holds a request answered at {tally.newest.isoformat()}, and now it is {now.isoformat()}",
            hint="Set the server's clock, or write instants with their offset from UTC.",
        )
    if tally.served is not None and tally.served < tally.requests:
        raise DefinitionError(
            f"the log holds {tally.requests} requests, more than the {tally.served} that are said to have been served",
            hint="Count with --served every request the engines answered in the log's time, copies included.",
        )


def _fields(observability: Observability, tally: Tally) -> list[Finding]:
    lacking = {one.field: one for one in tally.lacking}
    findings = []
    for field in observability.log:
        found = lacking.get(field)
        if found is None:
            said, count = f"all {tally.requests} requests carry it", 0
        else:
            said, count = (
                f"{found.requests} of {tally.requests} requests lack it, the first {found.first!r}",
                found.requests,
            )
        findings.append(_finding(f"log.{field.value}", tally, (count, 0), count == 0, said))
    return findings


def _sampling(least: Decimal, tally: Tally) -> Finding:
    if tally.served is None:
        said = "nobody said how many requests were served; count them with --served"
        return _finding("sampling", tally, ("NaN", least), None, said)
    share = Decimal(tally.requests) / Decimal(tally.served)
    said = f"{tally.requests} of {tally.served} requests are logged, demanded is a share of {decimal_text(least)}"
    return _finding("sampling", tally, (rounded(float(share)), least), share >= least, said)


def _age(most: timedelta, tally: Tally, now: datetime) -> Finding:
    age = max(now - tally.newest, timedelta())
    said = f"the newest request is {_spelt(age)} old, allowed are {_spelt(most)}"
    return _finding("max_age", tally, (_seconds(age), _seconds(most)), age <= most, said)


def _retention(least: timedelta, tally: Tally, since: datetime, now: datetime) -> Finding:
    age, serving = now - tally.oldest, now - since
    if age >= least:
        holds, said = True, f"the oldest request is {_spelt(age)} old"
    elif serving < least:
        holds, said = True, f"it has been serving for {_spelt(serving)}, so nothing had to be kept for longer"
    else:
        holds = None
        said = f"this log goes back {_spelt(age)}; read one that goes back {_spelt(least)} to show they are kept"
    return _finding("retention", tally, (_seconds(age), _seconds(least)), holds, said)


def _finding(what: str, tally: Tally, figures: tuple[object, object], holds: bool | None, said: str) -> Finding:
    verdict = Verdict.UNDECIDED if holds is None else Verdict.CERTIFIED if holds else Verdict.REFUTED
    figure, limit = (decimal_text(value) if isinstance(value, Decimal) else str(value) for value in figures)
    return Finding(
        clause=CLAUSE,
        slice=what,
        path="log",
        verdict=verdict,
        prompts=tally.requests,
        missing=0,
        estimate=figure,
        lower=figure,
        upper=figure,
        limit=limit,
        level="0",
        method=METHOD,
        reason=f"{what}: {said}",
    )


def _seconds(duration: timedelta) -> int:
    return int(duration.total_seconds())


def _spelt(duration: timedelta) -> str:
    """Return a duration in its two largest units."""
    seconds = _seconds(duration)
    for size, unit, small, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            rest = seconds % size // small
            return f"{seconds // size}{unit}" + (f"{rest}{part}" if rest else "")
    return f"{seconds}s"
