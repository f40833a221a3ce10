"""A contract in words: what each clause promises, how many prompts it takes to certify it, and what it leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from snapline.contracts.clauses.protocol import Clause
from snapline.contracts.contract import KernelContract, Slice
from snapline.contracts.figures import decimal_text
from snapline.contracts.lint.issues import field_of
from snapline.contracts.lint.promises import of_answers
from snapline.contracts.rollout.documents import (
    Act,
    Escalation,
    LogField,
    Observability,
    RouteSlice,
    Stage,
    StageName,
    Stages,
)
from snapline.contracts.verdict import TIMED


@dataclass(frozen=True, slots=True)
class Need:
    """How many prompts one slice takes for a clause.

    Attributes:
        least: What certifies when no prompt shows a fault, `min_prompts` included; None when no feasible number would.
        there: How many the probe set has; None when that is not known.
    """

    slice: str
    least: int | None
    there: int | None

    @property
    def missing(self) -> int | None:
        """How many more prompts are needed; None when either number is not known."""
        return None if self.least is None or self.there is None else max(0, self.least - self.there)


@dataclass(frozen=True, slots=True)
class Promise:
    """One clause in words.

    Attributes:
        field: Where it is written.
        says: The promise, as a sentence.
        needed: How many prompts without a fault certify it at the contract's level; None when no number would.
        unit: What is counted: prompts, or timed runs.
        leaves_open: What it cannot promise, one sentence each.
    """

    clause: str
    field: str
    says: str
    paths: tuple[str, ...]
    method: str
    needed: int | None
    unit: str
    needs: tuple[Need, ...]
    leaves_open: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A contract in words, one sentence per line."""

    general: tuple[str, ...]
    promises: tuple[Promise, ...]
    observability: tuple[str, ...]
    escalation: tuple[str, ...]
    stages: tuple[str, ...]


def explain(
    contract: KernelContract, there: Mapping[str, int] | None = None, longest: int | None = None
) -> Explanation:
    """Return what a contract says.

    Args:
        there: Prompts each slice has in the probe set, by slice name; slices of which that is not known left out.
        longest: Tokens of the longest answer; None counts with the contract's horizon.
    """
    return Explanation(
        general=_general(contract),
        promises=tuple(
            _promise(contract, clause, there or {}, longest or contract.horizon) for clause in contract.clauses
        ),
        observability=_observability(contract.observability) if contract.observability else (),
        escalation=tuple(map(_escalation, contract.escalation)),
        stages=_stages(contract.stages) if contract.stages else (),
    )


def words(explanation: Explanation) -> str:
    """Return an explanation as text for people."""
    lines = list(explanation.general)
    for promise in explanation.promises:
        lines += ["", promise.field, f"  Promises: {promise.says}", f"  Held on: {', '.join(promise.paths)}"]
        lines += [f"  Needs: {_needed(promise)}", *(f"    {_need(need, promise.unit)}" for need in promise.needs)]
        lines += [f"  Leaves open: {sentence}" for sentence in promise.leaves_open]
    for name in ("observability", "escalation", "stages"):
        if sentences := getattr(explanation, name):
            lines += ["", name, *(f"  {sentence}" for sentence in sentences)]
    return "\n".join(lines)


def _general(contract: KernelContract) -> tuple[str, ...]:
    reference, serving = contract.reference, contract.serving
    cells = len(contract.cells) + len(contract.searched)
    lines = [
        f"{contract.name}: {serving.engine} {serving.version or 'of any version'} in {' or '.join(serving.dtype)} "
        f"against {reference.engine} in {reference.dtype}, at temperature {decimal_text(contract.temperature)}",
        f"Measured on the probe set {contract.probes}; what is promised is promised of the traffic it stands for.",
        f"Whatever the data, the chance that any of its {cells} cells gets a wrong verdict is at most "
        f"{decimal_text(1 - contract.confidence)}; each side of a cell has {decimal_text(contract.level)} of it.",
    ]
    if contract.search is not None:
        lines.append(
            f"The worst slice is searched for by {', '.join(contract.search.columns)}, among values with at least "
            f"{contract.search.min_prompts} prompts; what is found can refute, never certify."
        )
    if contract.diagnostics:
        lines.append(
            f"Reported and not promised: {', '.join(contract.diagnostics)}; no confidence can be put in them, however "
            "many prompts there are."
        )
    return tuple(lines)


def _promise(contract: KernelContract, clause: Clause, there: Mapping[str, int], longest: int) -> Promise:
    needed = clause.prompts_needed(float(contract.level))
    paths = clause.on(contract.paths)
    slices = {cell.slice.name: cell.slice for cell in contract.cells if cell.clause is clause}
    implied = of_answers(clause, longest)
    return Promise(
        clause=clause.name,
        field=field_of(contract, clause),
        says=f"{clause.figure} is at most {decimal_text(clause.allowed)}",
        paths=paths,
        method=clause.method,
        needed=needed,
        unit="runs" if TIMED in paths else "prompts",
        needs=tuple(_need_of(part, needed, there) for part in slices.values()),
        leaves_open=(clause.gives_up, *([implied] if implied else [])),
    )


def _need_of(part: Slice, needed: int | None, there: Mapping[str, int]) -> Need:
    return Need(part.name, None if needed is None else max(needed, part.min_prompts), there.get(part.name))


def _needed(promise: Promise) -> str:
    if promise.needed is None:
        return f"no feasible number of {promise.unit} certifies this"
    return f"{promise.needed} {promise.unit} without a fault ({promise.method}); more when there are some"


def _need(need: Need, unit: str) -> str:
    least = f"at least {need.least} {unit}" if need.least is not None else "out of reach"
    if unit == "runs":
        return f"{need.slice}: {least}, timed on the prompts there are"
    if need.there is None:
        return f"{need.slice}: {least}; how many there are is not known before measuring"
    missing = f"{need.missing} are missing" if need.missing else "enough"
    return f"{need.slice}: {least}; the probe set has {need.there}" + (f", {missing}" if need.least is not None else "")


_LOGGED = {
    LogField.SAMPLED_LOGPROB: "the log-probability of every token",
    LogField.MARGIN: "the margin of every token",
    LogField.BATCH_SIZE: "the batch size",
    LogField.CACHE_HIT: "whether its prefix was found in the cache",
    LogField.ROUTE: "who answered",
    LogField.LATENCY: "how long it took",
}


def _observability(demanded: Observability) -> tuple[str, ...]:
    share = "Every request" if demanded.sampling == 1 else f"At least {decimal_text(demanded.sampling)} of requests"
    lines = [
        f"{share} must be logged, with its id, time and token ids.",
        f"Each carries {_listed([_LOGGED[name] for name in demanded.log])}.",
    ]
    if demanded.max_age is not None:
        lines.append(f"The newest logged request may be {span(demanded.max_age)} old.")
    if demanded.retention is not None:
        lines.append(f"Logs are kept for {span(demanded.retention)}.")
    return tuple(lines)


_ACTS = {
    Act.LOG: "it is written down in the ledger",
    Act.ALERT: "the webhook is told",
    Act.HOLD: "the rollout stays in its stage",
    Act.REMEASURE: "the certificate goes stale, so that plan measures again",
    Act.DEMOTE: "the rollout goes back one stage",
    Act.BLOCK: "the gate shuts",
}


def _escalation(escalation: Escalation) -> str:
    done = [
        "the slice's traffic goes to the reference" if isinstance(act, RouteSlice) else _ACTS[act]
        for act in escalation.do
    ]
    when = "is refuted" if escalation.when == "refuted" else "cannot be decided"
    return (
        f"When a watched clause {when}: {_listed(done)}; "
        f"not again for the same clause and slice within {span(escalation.cool_down)}."
    )


def _stages(stages: Stages) -> tuple[str, ...]:
    found = {name: getattr(stages, name.value) for name in stages.order}
    lines = [f"{name.value}: {_stage(name, stage)}" for name, stage in found.items()]
    lines.append("Each stage is entered with the certificate of the one before.")
    return tuple(lines)


def _stage(name: StageName, stage: Stage) -> str:
    share = decimal_text(stage.traffic) if stage.traffic is not None else ""
    does = {
        StageName.OFFLINE: "the contract is certified on its probe set, before anything is served",
        StageName.SHADOW: f"the serving engine answers copies of {share} of requests, which nobody sees",
        StageName.CANARY: f"the serving engine answers {share} of requests",
        StageName.FULL: "the serving engine answers every request",
    }[name]
    if name is StageName.OFFLINE:
        return does
    scored = "each" if stage.monitor == Decimal(1) else decimal_text(stage.monitor)
    enough = f"and fewer than {stage.min_requests} certify nothing"
    return f"{does}; the reference scores {scored} of its answers again, {enough}"


_UNITS = {
    "week": timedelta(weeks=1),
    "day": timedelta(days=1),
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
}


def span(length: timedelta) -> str:
    """Return a length of time in the largest unit that it is a whole number of; weeks only from two on."""
    for name, unit in _UNITS.items():
        count = length // unit
        if count * unit == length and count >= (2 if name == "week" else 1):
            return f"{count} {name}{'' if count == 1 else 's'}"
    seconds = int(length.total_seconds())
    return f"{seconds} second{'' if seconds == 1 else 's'}"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
