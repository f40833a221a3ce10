"""The plan: what changed, what must be computed again and why, and at what cost.

A plan is a value. It can be printed, priced and refused; `snapline apply` runs its steps in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from snapline.contracts.certificate import Certificate
from snapline.contracts.gate import Examined, TargetNow, readable
from snapline.contracts.inspection import Inspector
from snapline.lineage.events import Attested
from snapline.lineage.invalidation import Cause, Remedy, effect
from snapline.lineage.model import ModelVersion
from snapline.lineage.observe import policy_of
from snapline.lineage.state import State


class StepKind(StrEnum):
    """What a step does."""

    MATERIALIZE = "materialize"
    CERTIFY = "certify"
    REJUDGE = "rejudge"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to compute again.

    Attributes:
        model: The version as it is now; after a materialize step, later steps of the name mean the new version.
        seconds: What the same work took last time; 0 to judge what was measured, None when it was never done.
    """

    kind: StepKind
    model: ModelVersion
    causes: tuple[Cause, ...]
    seconds: int | None
    target: str | None = None
    contract: str | None = None


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What is to be done about one model version.

    Attributes:
        causes: Everything that differs, including what needs nothing done.
        by_hand: The causes only a person can mend; while there is one, nothing is computed.
    """

    model: ModelVersion
    causes: tuple[Cause, ...]
    steps: tuple[Step, ...]
    by_hand: tuple[Cause, ...]


def live(state: State) -> tuple[ModelVersion, ...]:
    """Return the versions a plan looks at: the newest of each name, and whichever hold an alias; base models not."""
    chosen = {versions[-1].key: versions[-1] for versions in state.models.values()}
    for stack in state.holders.values():
        if stack:
            key = stack[-1].model
            chosen[key] = state.models[key.name][key.version - 1]
    return tuple(chosen[key] for key in sorted(chosen, key=str) if chosen[key].snapshots)


def plan_model(model: ModelVersion, targets: Sequence[TargetNow], inspector: Inspector) -> ModelPlan:
    """Return what must be computed again for one version."""
    state = inspector.state
    observation = inspector.observe(model)
    policy = policy_of(model, state)
    examined = {
        target.name: inspector.inspect(model, target, observation)[1]
        for target in targets
        if model.contract or _certified_there(model, target.name, inspector)
    }
    found = tuple(dict.fromkeys(c for one in examined.values() for c in one.causes))
    causes = (*observation.causes, *found)
    by_hand = tuple(cause for cause in causes if effect(cause.change, policy).remedy is Remedy.BY_HAND)
    if by_hand:
        return ModelPlan(model, causes, (), by_hand)
    rebuild = tuple(c for c in observation.causes if effect(c.change, policy).remedy is Remedy.REBUILD)
    steps: list[Step] = []
    if rebuild:
        steps.append(Step(StepKind.MATERIALIZE, model, rebuild, model.materialize_seconds))
    for target, one in examined.items():
        steps += _certifications(model, target, one, rebuild, inspector)
    return ModelPlan(model, causes, tuple(steps), ())


def _certifications(
    model: ModelVersion, target: str, examined: Examined, rebuild: tuple[Cause, ...], inspector: Inspector
) -> list[Step]:
    known, _ = readable(model, inspector.state, inspector.read)
    policy = policy_of(model, inspector.state)
    steps = []
    for standing in examined.standings:
        causes = rebuild or standing.causes
        remedies = {effect(cause.change, policy).remedy for cause in causes}
        if remedies <= {Remedy.KEEP}:
            continue
        rejudge = remedies <= {Remedy.REJUDGE, Remedy.KEEP}
        kind, seconds = (StepKind.REJUDGE, 0) if rejudge else (StepKind.CERTIFY, _last_cost(known, target))
        steps.append(Step(kind, model, causes, seconds, target, standing.contract))
    return steps


def _certified_there(model: ModelVersion, target: str, inspector: Inspector) -> bool:
    known, _ = readable(model, inspector.state, inspector.read)
    return any(certificate.target == target for _, certificate in known)


def _last_cost(known: list[tuple[Attested, Certificate]], target: str) -> int | None:
    return next((a.seconds for a, c in reversed(known) if c.target == target and a.seconds), None)
