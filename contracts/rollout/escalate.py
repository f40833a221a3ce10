"""Escalation: what a contract declares for a promise that is refuted or cannot be decided. Pure.

Nothing is set off again for the same clause and slice before the cool-down has passed, with one exception: what was
only undecided never keeps a later REFUTED from being acted on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from snapline.contracts.rollout.documents import Act, Escalation, RouteSlice, StageName
from snapline.contracts.verdict import Finding, Verdict
from snapline.lineage.events import Escalated, StageEntered
from snapline.lineage.state import Rollout

ROUTE_SLICE = "route_slice"
_SET_OFF_BY = {"refuted": Verdict.REFUTED, "undecided": Verdict.UNDECIDED}


@dataclass(frozen=True, slots=True)
class Declared:
    """What a contract says of escalation: its rules, the slices it has, and its stages in order."""

    rules: Sequence[Escalation]
    slices: Sequence[str]
    order: Sequence[StageName]


def escalate(
    declared: Declared, findings: Iterable[Finding], rollout: Rollout, now: datetime
) -> tuple[Escalated | StageEntered, ...]:
    """Return what happens: one event for each finding that sets something off, then a demotion if one asks for it."""
    events: list[Escalated | StageEntered] = []
    for finding in findings:
        rules = [rule for rule in declared.rules if _SET_OFF_BY[rule.when] is finding.verdict]
        acts = _acts(finding, rules, declared.slices)
        if acts and not _cooling(finding, rollout, now):
            until = now + max(rule.cool_down for rule in rules)
            events.append(_escalated(finding, acts, rollout, (now, until)))
    demoting = next((event for event in events if isinstance(event, Escalated) and Act.DEMOTE in event.acts), None)
    before = previous(declared.order, rollout.now.stage)
    if demoting is not None and before is not None:
        reason = f"demoted: {demoting.clause} on {demoting.slice} is {demoting.verdict}"
        moved = {"at": now, "stage": before.value, "envelope": None, "reason": reason}
        events.append(rollout.now.model_copy(update=moved))
    return tuple(events)


def previous(order: Sequence[StageName], stage: str | None) -> StageName | None:
    """Return the stage before one; None before the first, and for what is no stage of the contract."""
    earlier = dict(zip((name.value for name in order[1:]), order, strict=False))
    return earlier.get(stage or "")


def alert(event: Escalated, rollout: Rollout) -> Mapping[str, Any]:
    """Return what is posted to the webhook about an escalation, as plain JSON values."""
    return {
        "rollout": event.rollout,
        "model": str(rollout.now.model),
        "target": rollout.now.target,
        "stage": rollout.now.stage,
        "clause": event.clause,
        "slice": event.slice,
        "verdict": event.verdict,
        "acts": list(event.acts),
        "reason": event.reason,
        "at": event.at.isoformat(),
    }


def held_until(rollout: Rollout, now: datetime) -> datetime | None:
    """Return until when the present stage is held; None when it is not."""
    entered = rollout.now.at
    holds = [e.until for e in rollout.escalations if Act.HOLD in e.acts and e.at >= entered and e.until > now]
    return max(holds, default=None)


def _cooling(finding: Finding, rollout: Rollout, now: datetime) -> bool:
    silencing = {finding.verdict.value, Verdict.REFUTED.value}
    return any(
        (past.clause, past.slice) == (finding.clause, finding.slice) and past.verdict in silencing and past.until > now
        for past in rollout.escalations
    )


def _acts(finding: Finding, rules: Sequence[Escalation], slices: Sequence[str]) -> tuple[str, ...]:
    """Return what is to be done, each act once; what is wrong with a log is wrong with no slice and no certificate."""
    declared = (ROUTE_SLICE if isinstance(act, RouteSlice) else act.value for rule in rules for act in rule.do)
    pointless = () if finding.slice in slices else (ROUTE_SLICE, Act.REMEASURE.value)
    return tuple(act for act in dict.fromkeys(declared) if act not in pointless)


def _escalated(finding: Finding, acts: tuple[str, ...], rollout: Rollout, time: tuple[datetime, datetime]) -> Escalated:
    now, until = time
    return Escalated(
        at=now,
        rollout=rollout.now.rollout,
        clause=finding.clause,
        slice=finding.slice,
        verdict=finding.verdict.value,
        acts=acts,
        until=until,
        blocks=Act.BLOCK.value in acts,
        reference_slices=(finding.slice,) if ROUTE_SLICE in acts else (),
        reason=finding.reason,
    )
