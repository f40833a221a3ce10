"""The invalidation matrix: what each kind of change does to a model, its certificates and its gate.

`effect` is the whole matrix, pure and total. `gate` and `plan` gather causes from what is there now and ask it; nothing
else decides what a change means.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from snapline.lineage.view import OnErasure, OnRestatement, RefreshPolicy


class ModelState(StrEnum):
    """What a model is, seen from its data, its view and its bytes; in order of gravity.

    A new definition leaves the model what it was; age and new rows make it worse than a newer one; a changed past makes
    what it says of the past wrong; an orphan can be neither checked nor made again; the last three may never be served.
    """

    FRESH = "FRESH"
    STALE_VIEW = "STALE_VIEW"
    STALE_AGE = "STALE_AGE"
    STALE_DATA = "STALE_DATA"
    RESTATED = "RESTATED"
    ORPHANED = "ORPHANED"
    ERASURE_PENDING = "ERASURE_PENDING"
    LEAKED = "LEAKED"
    TAMPERED = "TAMPERED"


class Change(StrEnum):
    """One kind of difference between what the ledger binds and what is there now."""

    METADATA_EDITED = "metadata edited"
    APPENDED_OUTSIDE = "rows appended outside the window"
    AGED = "older than the policy allows"
    NEWER_ROWS = "a later window has new rows"
    RESTATED = "rows inside the cut changed"
    EVALUATION_RESTATED = "rows it was evaluated or calibrated on changed"
    MEMBERS_DELETED = "rows inside the cut were deleted"
    DELTA_EXCEEDED = "more rows changed than the policy allows"
    LAG_EXCEEDED = "more commits than the policy allows"
    SOURCE_UNREAD = "source bytes changed and were not read yet"
    SOURCE_GONE = "source is gone"
    COMMIT_GONE = "the commit it was cut from was expired"
    NO_CUT = "made from no recorded cut"
    ERASURE_PENDING = "made from rows that must be erased"
    ERASED = "made from rows that were erased"
    LEAKED = "leakage rules were broken"
    RETIRED = "retired"
    VIEW_CHANGED = "view was defined anew"
    WEIGHTS_CHANGED = "weights differ"
    WEIGHTS_GONE = "weights are gone"
    RECORD_DAMAGED = "a bound record differs"
    TARGET_UNREADABLE = "what is installed at the target cannot be told"
    ENGINE_CHANGED = "target's identity has no certificate"
    CONTRACT_CHANGED = "contract changed"
    PROBES_CHANGED = "probe set changed"
    NEVER_CERTIFIED = "never certified"
    UNDECIDED = "evidence was too little"
    REFUTED = "contract was refuted"
    ROLLOUT_BLOCKED = "a rollout was blocked"
    REMEASURE_ASKED = "a rollout asks to measure again"


class Remedy(StrEnum):
    """What makes a certificate good again, from nothing to everything."""

    KEEP = "keep"
    REJUDGE = "judge the stored evidence again"
    RECOMPUTE = "measure again"
    EVALUATE = "a person must evaluate or calibrate it again, which no step can do and none waits for"
    REBUILD = "materialize again, then measure"
    BY_HAND = "a person must decide or put something back"


class Why(StrEnum):
    """Why a gate is shut, strongest first; each has its own exit code."""

    TAMPERED = "tampered"
    MISSING = "missing"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Effect:
    """A row of the matrix; `shuts` is None when the gate may stay open."""

    state: ModelState
    remedy: Remedy
    shuts: Why | None


@dataclass(frozen=True, slots=True)
class Cause:
    """A change that was found: what about, in one sentence, with particulars such as bucket names."""

    change: Change
    subject: str
    message: str
    details: tuple[str, ...] = ()


_MATRIX = {
    Change.METADATA_EDITED: Effect(ModelState.FRESH, Remedy.KEEP, None),
    Change.APPENDED_OUTSIDE: Effect(ModelState.FRESH, Remedy.KEEP, None),
    Change.AGED: Effect(ModelState.STALE_AGE, Remedy.BY_HAND, Why.NO),
    Change.NEWER_ROWS: Effect(ModelState.STALE_DATA, Remedy.KEEP, None),
    Change.RESTATED: Effect(ModelState.RESTATED, Remedy.REBUILD, Why.NO),
    # No certificate is measured on those rows: measuring again would only hide what nobody evaluated.
    Change.EVALUATION_RESTATED: Effect(ModelState.FRESH, Remedy.EVALUATE, Why.UNKNOWN),
    Change.MEMBERS_DELETED: Effect(ModelState.ERASURE_PENDING, Remedy.REBUILD, Why.NO),
    Change.DELTA_EXCEEDED: Effect(ModelState.STALE_DATA, Remedy.REBUILD, Why.NO),
    Change.LAG_EXCEEDED: Effect(ModelState.STALE_DATA, Remedy.REBUILD, Why.NO),
    Change.SOURCE_UNREAD: Effect(ModelState.STALE_DATA, Remedy.KEEP, Why.NO),
    Change.SOURCE_GONE: Effect(ModelState.ORPHANED, Remedy.BY_HAND, Why.MISSING),
    Change.COMMIT_GONE: Effect(ModelState.ORPHANED, Remedy.KEEP, None),
    Change.NO_CUT: Effect(ModelState.FRESH, Remedy.KEEP, Why.NO),
    Change.ERASURE_PENDING: Effect(ModelState.ERASURE_PENDING, Remedy.REBUILD, Why.NO),
    Change.ERASED: Effect(ModelState.ERASURE_PENDING, Remedy.KEEP, Why.NO),
    Change.LEAKED: Effect(ModelState.LEAKED, Remedy.BY_HAND, Why.NO),
    Change.RETIRED: Effect(ModelState.FRESH, Remedy.BY_HAND, Why.NO),
    Change.VIEW_CHANGED: Effect(ModelState.STALE_VIEW, Remedy.KEEP, None),
    Change.WEIGHTS_CHANGED: Effect(ModelState.TAMPERED, Remedy.BY_HAND, Why.TAMPERED),
    Change.WEIGHTS_GONE: Effect(ModelState.ORPHANED, Remedy.BY_HAND, Why.MISSING),
    Change.RECORD_DAMAGED: Effect(ModelState.TAMPERED, Remedy.BY_HAND, Why.TAMPERED),
    Change.TARGET_UNREADABLE: Effect(ModelState.FRESH, Remedy.BY_HAND, Why.UNKNOWN),
    Change.ENGINE_CHANGED: Effect(ModelState.FRESH, Remedy.RECOMPUTE, Why.UNKNOWN),
    Change.CONTRACT_CHANGED: Effect(ModelState.FRESH, Remedy.REJUDGE, Why.UNKNOWN),
    Change.PROBES_CHANGED: Effect(ModelState.FRESH, Remedy.RECOMPUTE, Why.UNKNOWN),
    Change.NEVER_CERTIFIED: Effect(ModelState.FRESH, Remedy.RECOMPUTE, Why.UNKNOWN),
    Change.UNDECIDED: Effect(ModelState.FRESH, Remedy.KEEP, Why.UNKNOWN),
    Change.REFUTED: Effect(ModelState.FRESH, Remedy.KEEP, Why.NO),
    # What serving showed speaks against the target, not the model, and no measuring offline takes it back.
    Change.ROLLOUT_BLOCKED: Effect(ModelState.FRESH, Remedy.BY_HAND, Why.NO),
    Change.REMEASURE_ASKED: Effect(ModelState.FRESH, Remedy.RECOMPUTE, None),
}


def effect(change: Change, policy: RefreshPolicy) -> Effect:
    """Return what a change does to a model under a refresh policy."""
    match change:
        case Change.RESTATED if policy.on_restatement is OnRestatement.WARN:
            return Effect(ModelState.RESTATED, Remedy.KEEP, None)
        case Change.AGED if policy.slide is not None:
            # A window that stays is as old after another materialization; one that slides ends later.
            return Effect(ModelState.STALE_AGE, Remedy.REBUILD, Why.NO)
        case Change.ERASURE_PENDING if policy.on_erasure is OnErasure.RETIRE:
            return Effect(ModelState.ERASURE_PENDING, Remedy.BY_HAND, Why.NO)
    return _MATRIX[change]


def worst_state(causes: tuple[Cause, ...], policy: RefreshPolicy) -> ModelState:
    """Return the gravest model state among the causes; FRESH when there is none."""
    order = list(ModelState)
    return max((effect(cause.change, policy).state for cause in causes), key=order.index, default=ModelState.FRESH)
