"""The self test: engines with a known fault, each held to a contract against the honest engine of the same model.

A clause that no faulty engine fails promises nothing, and a fault that no clause fails goes unseen. So a contract whose
every clause is refuted by a fault, whose faults are all refuted by a clause, and that certifies the honest engine, is
shown to tell them apart: at the stated number of prompts, on tiny random models, in this machine's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from snapline.contracts.clauses.reward_drift import MeasuredDrift
from snapline.contracts.contract import KernelContract, Slice
from snapline.contracts.engines.protocol import Batching, Engine, Path, ProbeItem, Sampling
from snapline.contracts.evidence import Pair
from snapline.contracts.judge import judge
from snapline.contracts.measure import Around, measure
from snapline.contracts.procedure import procedure_of
from snapline.contracts.records import parse_contract
from snapline.contracts.selfchecks import varied
from snapline.contracts.timings import timings_to_json
from snapline.contracts.verdict import TIMED, Finding, Verdict

if TYPE_CHECKING:
    import pyarrow as pa

    from snapline.contracts.engines.faulty.catalogue import Fault

PROMPTS = 120
LONGEST_ANSWER = 16
LIKELIEST = 3
_ANSWER = 4
_CONTRACT = """\
apiVersion: snapline/v1
kind: KernelContract
name: self-test
probes: random-tokens
reference: {engine: transformers, dtype: float32}
serving: {engine: transformers, dtype: float32}
temperature: "0.6"
confidence: "0.95"
paths: [prefill, decode-forced, decode-sampled]
slices:
  - {name: all, min_prompts: 120}

numerical:
  half_span: {quantile: "0.9", limit: "0.000000001"}
  log_ratio: {quantile: "0.9", limit: "0.000001"}

statistical:
  tv_token: "0.08"
  tv_answer: {limit: "0.08", horizon: 4}
  sampler_drift: {limit: "0.09", horizon: 12}
  reward_drift: {range: ["0", "1"], limit: "0.08", horizon: 4}
  measured_drift: {range: ["0", "1"], limit: "0.08", rewards: {reference: grade_reference, serving: grade_serving}}
  policy_gradient_bias: {advantage: "1", score: "1", limit: "0.16"}
  greedy_flip_rate: "0.08"
  flip_exposure: {half_span: "0.00001", limit: "0.08"}
  greedy_divergence: {within: 4, at_most: "0.1"}
  calibration_drift: {limit: "0.16"}

runtime:
  batch_invariance: {bitwise: true, at_most: "0.2", sample: 36}
  order: {bitwise: true, at_most: "0.2", sample: 36}
  repeat: {bitwise: true, runs: 3, at_most: "0.2", sample: 36}
  prefix_cache: {bitwise: true, at_most: "0.2", sample: 36}
  chunked_prefill: {bitwise: true, at_most: "0.2", sample: 36}
  threads: {against: 2, bitwise: true, at_most: "0.2", sample: 36}
  tensor_parallel: {against: 2, bitwise: true, at_most: "0.2", sample: 36}
  cuda_graphs: {bitwise: true, at_most: "0.2", sample: 36}
  latency_ratio: {at_most: "3", quantile: "0.5", runs: 15}
  throughput_ratio: {at_least: "0.4", quantile: "0.5", runs: 15}
  peak_memory_ratio: {at_most: "1.5", quantile: "0.5", runs: 15}
"""


def selftest_contract() -> KernelContract:
    """Return the contract that uses every clause there is, on every path, with limits the honest engine keeps."""
    return parse_contract(_CONTRACT.encode(), "the self test's contract")


@dataclass(frozen=True, slots=True)
class Trial:
    """What a contract found of one engine."""

    fault: Fault
    findings: tuple[Finding, ...]

    @property
    def refuted(self) -> tuple[str, ...]:
        """The clauses that refuted it on some path, in the contract's order."""
        return tuple(dict.fromkeys(one.clause for one in self.findings if one.verdict is Verdict.REFUTED))

    @property
    def certified(self) -> bool:
        """Whether every cell that was measured certified it."""
        measured = [one for one in self.findings if self.fault.costs or one.path != TIMED]
        return all(one.verdict is Verdict.CERTIFIED for one in measured)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What a contract found of the honest engines and of every faulty one.

    Attributes:
        prompts: How many prompts each was measured on.
    """

    contract: KernelContract
    prompts: int
    honest: tuple[Trial, ...]
    faulty: tuple[Trial, ...]

    @property
    def uncaught(self) -> tuple[str, ...]:
        """The faults that no clause refuted."""
        return tuple(trial.fault.name for trial in self.faulty if not trial.refuted)

    @property
    def unrefuted(self) -> tuple[str, ...]:
        """The clauses that refuted no fault on so many prompts."""
        refuted = {name for trial in self.faulty for name in trial.refuted}
        return tuple(clause.name for clause in self.contract.clauses if clause.name not in refuted)

    @property
    def caught(self) -> dict[str, str]:
        """The largest figure that any fault showed, by clause name, as decimal strings: what `lint` is given.

        A clause that could not be measured on any fault is not there.
        """
        largest: dict[str, Decimal] = {}
        for finding in (finding for trial in self.faulty for finding in trial.findings):
            figure = Decimal(finding.estimate)
            if not figure.is_nan():
                largest[finding.clause] = max(figure, largest.get(finding.clause, figure))
        return {name: str(figure) for name, figure in largest.items()}

    @property
    def vacuous(self) -> tuple[str, ...]:
        """The clauses whose limit no fault's figure exceeds, so that no number of prompts would refute one."""
        caught = self.caught
        return tuple(
            clause.name
            for clause in self.contract.clauses
            if clause.name in caught and Decimal(caught[clause.name]) <= clause.allowed
        )


def vacuous(contract: KernelContract, report: Callable[[str, int, int], None] = lambda *_: None) -> list[str]:
    """Return the names of a contract's clauses that no fault fails.

    Raises:
        EngineUnavailableError: torch or transformers is not installed.
    """
    return list(run(contract, report=report).vacuous)


def run(
    contract: KernelContract | None = None,
    prompts: int = PROMPTS,
    report: Callable[[str, int, int], None] = lambda *_: None,
) -> SelfTest:
    """Hold the honest engines and every faulty one to a contract; without one, to the self test's own.

    Of a contract that is given, the clauses are held at its own limits and error probability on all prompts at once:
    its slices and its search are of other prompts, and answers longer than `LONGEST_ANSWER` are cut there.

    Raises:
        EngineUnavailableError: torch or transformers is not installed.
    """
    _require_engines()
    from snapline.contracts.engines.faulty.catalogue import FAULTS, HONEST
    from snapline.contracts.engines.faulty.program import one_thread

    held = selftest_contract() if contract is None else on_all_prompts(contract, prompts)
    trials = []
    with one_thread():
        items = probe_items(prompts)
        for done, fault in enumerate((*HONEST, *FAULTS)):
            report(fault.name, done, len(HONEST) + len(FAULTS))
            trials.append(Trial(fault, tried(held, fault, items)))
    return SelfTest(held, prompts, tuple(trials[: len(HONEST)]), tuple(trials[len(HONEST) :]))


def on_all_prompts(contract: KernelContract, prompts: int) -> KernelContract:
    """Return a contract's clauses on one slice of all prompts, each cell at the error probability it had."""
    whole = {
        "slices": (Slice(name="all", min_prompts=prompts),),
        "search": None,
        "observability": None,
        "escalation": (),
        "stages": None,
        "diagnostics": (),
    }
    held = contract.model_copy(update=whole)
    return held.model_copy(update={"confidence": 1 - contract.level * 2 * len(held.cells)})


def probe_items(count: int) -> list[ProbeItem]:
    """Return prompts of random tokens, with answers that the honest engine drew."""
    from snapline.contracts.engines.faulty.catalogue import started
    from snapline.contracts.engines.faulty.tiny import VOCABULARY

    random = Random(5)
    prompts = {f"p{n}": tuple(random.randrange(2, VOCABULARY) for _ in range(6 + n % 7)) for n in range(count)}
    items = [ProbeItem(identifier, prompt, (2,)) for identifier, prompt in prompts.items()]
    answers = started().sample(items, Sampling(_ANSWER, seed=1), Batching.BATCHED)
    return [replace(item, answer=answers[item.id].tokens) for item in items]


def tried(contract: KernelContract, fault: Fault, items: Sequence[ProbeItem]) -> tuple[Finding, ...]:
    """Return what a contract finds of an engine with a fault."""
    engines = fault.reference(), fault.serving()
    procedure = procedure_of(contract, len(items))
    timings = procedure.timings if fault.costs else ()
    procedure = replace(procedure, horizon=min(procedure.horizon, LONGEST_ANSWER), timings=timings)

    @contextmanager
    def start_variant(pair: Pair, changed: str) -> Iterator[Engine]:
        yield _variant(fault, pair, changed)

    found = measure(engines, items, procedure, Around(start_variant, lambda _: None))
    evidence = found.rows.combine_chunks().replace_schema_metadata({"timings": timings_to_json(found.timings)})
    grades = _grades(contract, engines, items, procedure.horizon)
    return judge(contract, _prompts(items, found.sampled, grades), evidence).findings


def _variant(fault: Fault, pair: Pair, changed: str) -> Engine:
    """Return the engine with the one thing changed; what runs with one of a thing already is given two."""
    from snapline.contracts.engines.faulty.catalogue import SPEC

    return fault.serving(varied(SPEC, pair, changed.replace("=1", "=2") if changed.endswith("=1") else changed))


def _grades(
    contract: KernelContract, engines: tuple[Engine, Engine], items: Sequence[ProbeItem], horizon: int
) -> dict[str, list[float | None]]:
    """Return the columns of rewards a contract reads: each engine's answers, graded by the reference.

    The grade of an answer is the share of its tokens that are among the likeliest few of the reference, scaled to the
    range of rewards.
    """
    columns: dict[str, list[float | None]] = {}
    for clause in (clause for clause in contract.clauses if isinstance(clause, MeasuredDrift)):
        low, high = (float(end) for end in clause.range)
        for engine, column in zip(engines, clause.columns, strict=True):
            grades = _graded(engines[0], engine, items, Sampling(horizon, float(contract.temperature)))
            columns[column] = [
                low + (high - low) * g if (g := grades.get(item.id)) is not None else None for item in items
            ]
    return columns


def _graded(grader: Engine, engine: Engine, items: Sequence[ProbeItem], sampling: Sampling) -> dict[str, float]:
    drawn = engine.sample(items, sampling, Batching.BATCHED)
    answered = [replace(item, answer=drawn[item.id].tokens) for item in items if item.id in drawn]
    logits = grader.score(answered, Path.PREFILL, Batching.BATCHED)
    grades = {}
    for item in answered:
        likeliest = logits[item.id].topk(LIKELIEST).indices.tolist()
        grades[item.id] = float(np.mean([token in few for token, few in zip(item.answer, likeliest, strict=True)]))
    return grades


def _prompts(
    items: Sequence[ProbeItem], sampled: Mapping[str, int], grades: Mapping[str, Sequence[float | None]]
) -> pa.Table:
    import pyarrow as pa

    columns: dict[str, Sequence[object]] = {
        "id": [item.id for item in items],
        "prompt_tokens": [len(item.prompt) for item in items],
        "answer_tokens": [len(item.answer) for item in items],
        "sampled_tokens": [sampled.get(item.id, 0) for item in items],
    }
    return pa.table({**columns, **grades})


def _require_engines() -> None:
    from importlib.util import find_spec

    from snapline.contracts.errors import EngineUnavailableError

    if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        raise EngineUnavailableError(
            f"the self test runs real models, and {' and '.join(missing)} is not installed",
            hint="pip install 'snapline[engines]'",
        )
