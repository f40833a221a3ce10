"""Spend a budget of engine time on the certificates it does the most good for.

A certificate is derived like a model is: it goes stale when what it binds changes, and renewing it costs seconds. So
the steps of a plan are segments of `lineage.refresh`, with what the same work took last time as their cost, and are
done in the order of the stale exposure that each second of them avoids at the optimum. Neither targets nor contracts
say how much traffic or harm depends on a certificate, so each weighs 1, and a version with several weighs as many.

The unit of time is the day: the budget stands for what may be spent each day, and a plan is one day's share of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from snapline.contracts.certificate import Certificate
from snapline.contracts.gate import readable
from snapline.contracts.inspection import Inspector
from snapline.contracts.plan import ModelPlan, Step, StepKind
from snapline.lineage.model import ModelVersion
from snapline.lineage.refresh.policy import Poll, estimate
from snapline.lineage.refresh.solver import Segments, avoided_per_cost, optimal_rates
from snapline.lineage.state import State

# Of inputs without a history, such as those of what was never certified.
DEFAULT_CHANGES_A_DAY = 1.0


@dataclass(frozen=True, slots=True)
class Work:
    """Steps that are done together or not at all.

    A version that is materialized again needs its certificates anew, so those steps are one piece of work; any other
    step is one by itself.

    Attributes:
        seconds: What it took last time; 0 when no engine runs, None when any of it was never done.
        changes_a_day: How often its inputs change.
        avoided_per_second: Stale exposure that a second of it avoids; None where the cost is 0 or not known.
        within_budget: None when the cost is not known.
    """

    plan: ModelPlan
    seconds: int | None
    changes_a_day: float
    avoided_per_second: float | None = None
    within_budget: bool | None = None


def schedule(plans: Sequence[ModelPlan], budget: int, inspector: Inspector) -> tuple[Work, ...]:
    """Return the work of some plans, best first, and whether each piece fits into `budget` seconds.

    What costs nothing comes first, and what has no known cost last. A piece that no longer fits is passed over, and a
    smaller one after it may still fit.
    """
    pieces = [_piece(plan, steps, inspector) for plan in plans for steps in _bundles(plan)]
    free = [replace(piece, within_budget=True) for piece in pieces if piece.seconds == 0]
    unknown = [piece for piece in pieces if piece.seconds is None]
    left, priced = budget, []
    for piece in _best_first([piece for piece in pieces if piece.seconds], budget):
        seconds = piece.seconds or 0
        fits = seconds <= left
        left -= seconds if fits else 0
        priced.append(replace(piece, within_budget=fits))
    return (*free, *priced, *unknown)


def _bundles(plan: ModelPlan) -> list[tuple[Step, ...]]:
    if any(step.kind is StepKind.MATERIALIZE for step in plan.steps):
        return [plan.steps]
    return [(step,) for step in plan.steps]


def _piece(plan: ModelPlan, steps: tuple[Step, ...], inspector: Inspector) -> Work:
    seconds = [step.seconds for step in steps]
    known = [one for one in seconds if one is not None]
    rate = max(_changes_a_day(step, inspector) for step in steps)
    return Work(replace(plan, steps=steps), sum(known) if len(known) == len(seconds) else None, rate)


def _best_first(pieces: list[Work], budget: int) -> list[Work]:
    if not pieces:
        return []
    certificates = [sum(step.kind is not StepKind.MATERIALIZE for step in piece.plan.steps) for piece in pieces]
    segments = Segments(
        weight=np.maximum(1.0, np.array(certificates, np.float64)),
        change_rate=np.array([piece.changes_a_day for piece in pieces], np.float64),
        cost=np.array([piece.seconds for piece in pieces], np.float64),
    )
    avoided = avoided_per_cost(segments, optimal_rates(segments, float(budget))).tolist()
    told = [replace(piece, avoided_per_second=worth) for piece, worth in zip(pieces, avoided, strict=True)]
    return sorted(told, key=lambda piece: -(piece.avoided_per_second or 0.0))


def _changes_a_day(step: Step, inspector: Inspector) -> float:
    """Return how often a step's inputs changed: rows for a materialization, everything bound for a certificate.

    That the step is due is a change too, found now.
    """
    state, now = inspector.state, inspector.lens.now
    histories = _takes(step.model, state) if step.kind is StepKind.MATERIALIZE else [_certificates(step, inspector)]
    told = [estimate([*polls, Poll(now, ("due", None))]) for polls in histories]
    return max((found.change_rate for found in told if found is not None), default=DEFAULT_CHANGES_A_DAY)


def _takes(model: ModelVersion, state: State) -> list[list[Poll]]:
    """Return the takes of each series a version was made from, oldest first."""
    histories = []
    for name in dict.fromkeys(state.snapshots[identifier].series.name for identifier in model.snapshots):
        taken = sorted((state.snapshots[identifier] for identifier in state.series[name]), key=lambda one: one.taken_at)
        histories.append([Poll(one.taken_at, (one.digest, None)) for one in taken])
    return histories


def _certificates(step: Step, inspector: Inspector) -> list[Poll]:
    """Return what each certificate of the model's versions at the step's target bound, oldest first."""
    issued: list[tuple[datetime, str]] = []
    for version in inspector.state.models[step.model.key.name]:
        known, _ = readable(version, inspector.state, inspector.read)
        issued += [(found.issued_at, _bound(found)) for _, found in known if found.target == step.target]
    return [Poll(at, (bound, None)) for at, bound in sorted(issued)]


def _bound(certificate: Certificate) -> str:
    documents = certificate.contract.digest, certificate.probes.digest
    return " ".join((certificate.weights, *documents, certificate.target_identity.digest))
