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
from snapline.contracts.records import read_contract
from snapline.contracts.targets import objections
from snapline.lineage.events import Attested
from snapline.lineage.invalidation import Cause, Remedy, effect
from snapline.lineage.model import ModelVersion
from snapline.lineage.observe import policy_of
from snapline.lineage.state import State
from snapline.lineage.view import RefreshPolicy


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
        by_hand: The causes only a person can mend; nothing they touch is computed, and an evaluation touches nothing.
    """

    model: ModelVersion
    causes: tuple[Cause, ...]
    steps: tuple[Step, ...]
    by_hand: tuple[Cause, ...]


def live(state: State) -> tuple[ModelVersion, ...]:
    """Return the versions a plan looks at: the newest of each name, and whichever hold an alias.

    Base models and retired versions are not among them: nothing can be computed for those again.
    """
    chosen = {versions[-1].key: versions[-1] for versions in state.models.values()}
    for stack in state.holders.values():
        if stack:
            key = stack[-1].model
            chosen[key] = state.models[key.name][key.version - 1]
    return tuple(chosen[key] for key in sorted(chosen, key=str) if chosen[key].snapshots and key not in state.retired)


def plan_model(model: ModelVersion, targets: Sequence[TargetNow], inspector: Inspector) -> ModelPlan:
    """Return what must be computed again for one version."""
    state = inspector.state
    observation = inspector.observe(model)
    policy = policy_of(model, state)
    rebuild = _of_remedy(Remedy.REBUILD, observation.causes, policy)
    by_hand = list(_of_remedy(Remedy.BY_HAND, observation.causes, policy))
    to_evaluate = _of_remedy(Remedy.EVALUATE, observation.causes, policy)
    causes = list(observation.causes)
    steps = [Step(StepKind.MATERIALIZE, model, rebuild, model.materialize_seconds)] if rebuild else []
    computable = not by_hand
    for target in targets:
        if not _concerns(model, target, inspector):
            continue
        _, examined = inspector.inspect(model, target, observation)
        causes += examined.causes
        blocked = _of_remedy(Remedy.BY_HAND, examined.causes, policy)
        by_hand += blocked
        if not blocked:
            steps += _certifications(model, target.name, examined, rebuild, inspector)
    todo = tuple(steps) if computable else ()
    return ModelPlan(model, tuple(dict.fromkeys(causes)), todo, tuple(dict.fromkeys((*by_hand, *to_evaluate))))


def _of_remedy(remedy: Remedy, causes: Sequence[Cause], policy: RefreshPolicy) -> tuple[Cause, ...]:
    return tuple(cause for cause in causes if effect(cause.change, policy).remedy is remedy)


def _concerns(model: ModelVersion, target: TargetNow, inspector: Inspector) -> bool:
    """Return whether a version should have a certificate at a target: it had one, or its contract lets it serve."""
    known, _ = readable(model, inspector.state, inspector.read)
    if any(certificate.target == target.name for _, certificate in known):
        return True
    record = inspector.state.records.get(("contract", model.contract)) if model.contract else None
    if record is None or target.identity is None:
        return model.contract is not None
    return not objections(read_contract(record, inspector.lens.objects), target.identity)


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


def _last_cost(known: list[tuple[Attested, Certificate]], target: str) -> int | None:
    return next((a.seconds for a, c in reversed(known) if c.target == target and a.seconds), None)
