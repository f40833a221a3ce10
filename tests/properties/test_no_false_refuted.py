"""An honest engine is not refuted by chance: 200 probe sets, drawn with replacement from one pool of prompts.

A real pair of engines is measured on the pool once: transformers in float32, and in bfloat16 as what serves. The pool
is the traffic, so each clause's true figure is known: its mean over the pool. A contract whose limits are those figures
keeps every promise with nothing to spare, and so every REFUTED is a false one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path as FilePath
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import torch
from tiny_model import VOCABULARY, write_tiny_model

from snapline.contracts.contract import KernelContract
from snapline.contracts.engines.faulty.program import one_thread
from snapline.contracts.engines.protocol import (
    Batching,
    Cache,
    EngineIdentity,
    EngineSpec,
    Path,
    ProbeItem,
    Sampled,
    Sampling,
)
from snapline.contracts.engines.replay import ReplayEngine
from snapline.contracts.engines.transformers import load
from snapline.contracts.judge import judge
from snapline.contracts.measure import Around, Measurements, measure
from snapline.contracts.procedure import procedure_of
from snapline.contracts.verdict import Finding, Verdict, combine

POOL, PROMPTS, SETS = 400, 120, 200
SAMPLING = Sampling(max_tokens=4, seed=0)
GIVEN = (Path.PREFILL, Path.DECODE_FORCED)
Figures = Mapping[str, Decimal]


def contract(figures: Figures, spare: Decimal) -> KernelContract:
    """Return the contract whose limits leave so much to spare over the figures."""
    limit = {name: figure + spare for name, figure in figures.items()}
    document: dict[str, Any] = {
        "apiVersion": "snapline/v1",
        "kind": "KernelContract",
        "name": "honest",
        "probes": "pool",
        "reference": {"engine": "transformers", "dtype": "float32"},
        "serving": {"engine": "transformers", "dtype": ["bfloat16"]},
        "confidence": "0.95",
        "paths": [path.value for path in Path],
        "slices": [{"name": "all", "min_prompts": PROMPTS}],
        "numerical": {
            "half_span": {"quantile": str(1 - limit["half_span"]), "limit": HALF_SPAN},
            "log_ratio": {"quantile": str(1 - limit["log_ratio"]), "limit": LOG_RATIO},
        },
        "statistical": {
            "tv_token": str(limit["tv_token"]),
            "tv_answer": {"limit": str(limit["tv_answer"]), "horizon": SAMPLING.max_tokens},
            "reward_drift": {
                "range": ["0", "1"],
                "limit": str(limit["reward_drift"]),
                "horizon": SAMPLING.max_tokens,
            },
            "measured_drift": {
                "range": ["0", "1"],
                "limit": str(limit["measured_drift"]),
                "rewards": {"reference": "grade_reference", "serving": "grade_serving"},
            },
            "policy_gradient_bias": {
                "advantage": "1",
                "score": "1",
                "limit": str(2 * limit["policy_gradient_bias"]),
            },
            "greedy_flip_rate": str(limit["greedy_flip_rate"]),
            "flip_exposure": {"half_span": "0.02", "limit": str(limit["flip_exposure"])},
            "greedy_divergence": {"within": 3, "at_most": str(limit["greedy_divergence"])},
            "calibration_drift": {"limit": str(2 * limit["calibration_drift"])},
        },
    }
    return KernelContract.model_validate(document)


HALF_SPAN, LOG_RATIO = "0.35", "0.12"
PLACEHOLDERS = dict.fromkeys(
    (
        "half_span",
        "log_ratio",
        "tv_token",
        "tv_answer",
        "reward_drift",
        "measured_drift",
        "policy_gradient_bias",
        "greedy_flip_rate",
        "flip_exposure",
        "greedy_divergence",
        "calibration_drift",
    ),
    Decimal("0.3"),
)


@dataclasses.dataclass(frozen=True)
class Side:
    """What a real engine made of the pool: logits by path and prompt, and the answers that were drawn."""

    identity: EngineIdentity
    scores: Mapping[Path, Mapping[str, torch.Tensor]]
    answers: Mapping[str, Sampled]

    def engine(self, items: Sequence[ProbeItem]) -> ReplayEngine:
        """Return an engine that replays prompts drawn from the pool."""
        scores = {
            (path, Batching.BATCHED, Cache.COLD): {item.id: found[origin(item.id)] for item in items}
            for path, found in self.scores.items()
        }
        answers = {item.id: self.answers[origin(item.id)] for item in items}
        return ReplayEngine(self.identity, scores, {(Batching.BATCHED, Cache.COLD): answers})


@dataclasses.dataclass(frozen=True)
class Pool:
    """Real prompts, what two real engines made of them, and the evidence of all of them."""

    items: tuple[ProbeItem, ...]
    sides: tuple[Side, Side]
    grades: Mapping[str, tuple[float, float]]
    evidence: pa.Table

    def prompts(self, drawn: list[ProbeItem]) -> pa.Table:
        """Return the probe table of prompts drawn from the pool."""
        grades = [self.grades[origin(item.id)] for item in drawn]
        lengths = [len(item.answer) for item in drawn]
        return pa.table(
            {
                "id": [item.id for item in drawn],
                "prompt_tokens": [len(item.prompt) for item in drawn],
                "answer_tokens": lengths,
                "sampled_tokens": lengths,
                "grade_reference": [reference for reference, _ in grades],
                "grade_serving": [serving for _, serving in grades],
            }
        )

    def replayed(self, drawn: list[ProbeItem]) -> pa.Table:
        """Return the evidence of prompts drawn from the pool, measured on engines that replay."""
        return measured((self.sides[0].engine(drawn), self.sides[1].engine(drawn)), drawn).rows


def origin(identifier: str) -> str:
    """Return the prompt of the pool that a drawn one is."""
    return identifier.partition("#")[0]


def drawn_sets(pool: Pool, count: int) -> Iterator[list[ProbeItem]]:
    """Yield probe sets drawn with replacement, each prompt with an id of its own."""
    random = Random(9)
    for _ in range(count):
        chosen = random.choices(pool.items, k=PROMPTS)
        yield [dataclasses.replace(item, id=f"{item.id}#{place}") for place, item in enumerate(chosen)]


@contextmanager
def no_variant(*_: object) -> Iterator[ReplayEngine]:
    raise AssertionError("nothing asked for another serving engine")
    yield


def measured(engines: tuple[ReplayEngine, ReplayEngine], items: list[ProbeItem]) -> Measurements:
    procedure = procedure_of(contract(PLACEHOLDERS, Decimal(0)), len(items))
    return measure(engines, items, procedure, Around(no_variant, lambda _: None))


def greedy_share(answer: Sampled, logits: torch.Tensor) -> float:
    """Return the grade of an answer: the share of its tokens that a program thinks likeliest."""
    return float((logits.argmax(-1) == torch.tensor(answer.tokens)).double().mean())


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """Two threads that wait for each other on busy cores take longer than one."""
    with one_thread():
        yield


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory, alone: None) -> Pool:
    """The given answers are those the serving engine draws, so that one score of the reference is of both."""
    folder: FilePath = write_tiny_model(tmp_path_factory.mktemp("model"))
    reference, serving = (
        load(EngineSpec("transformers", dtype), folder, lambda _: None) for dtype in ("float32", "bfloat16")
    )
    random = Random(3)
    prompts = {f"p{n}": tuple(random.randrange(2, VOCABULARY) for _ in range(4 + n % 5)) for n in range(POOL)}
    bare = [ProbeItem(identifier, prompt, (2,)) for identifier, prompt in prompts.items()]
    answers, own = (engine.sample(bare, SAMPLING, Batching.BATCHED) for engine in (serving, reference))
    items = tuple(dataclasses.replace(item, answer=answers[item.id].tokens) for item in bare)
    ours, theirs = (
        Side(engine.identity, {path: engine.score(items, path, Batching.BATCHED) for path in GIVEN}, answers)
        for engine in (reference, serving)
    )
    grades = {
        item.id: (
            greedy_share(own[item.id], own[item.id].logits),
            greedy_share(answers[item.id], ours.scores[Path.PREFILL][item.id]),
        )
        for item in items
    }
    evidence = measured((ours.engine(items), theirs.engine(items)), list(items)).rows
    return Pool(items, (ours, theirs), grades, evidence)


@pytest.fixture(scope="module")
def truth(pool: Pool) -> dict[str, Decimal]:
    """The clauses' figures over the whole pool, the largest of their paths; never rounded down."""
    findings = judge(contract(PLACEHOLDERS, Decimal(0)), pool.prompts(list(pool.items)), pool.evidence).findings
    figures: dict[str, Decimal] = {}
    for finding in findings:
        figure = Decimal(finding.estimate) + Decimal("1e-9")
        figures[finding.clause] = max(figure, figures.get(finding.clause, figure))
    return figures


def refutations(findings: tuple[Finding, ...]) -> list[str]:
    return [f"{one.clause} {one.path}" for one in findings if one.verdict is Verdict.REFUTED]


def test_the_pair_really_differs_in_every_figure(truth: dict[str, Decimal]) -> None:
    """Otherwise none of the promises would be at its limit."""
    assert set(truth) == set(PLACEHOLDERS)
    assert [name for name, figure in truth.items() if figure <= Decimal("0.0001")] == []


def test_no_probe_set_refutes_an_engine_whose_promises_hold_with_nothing_to_spare(
    pool: Pool, truth: dict[str, Decimal]
) -> None:
    exact, comfortable = contract(truth, Decimal(0)), contract(truth, Decimal("0.2"))
    false: list[list[str]] = []
    verdicts = []
    for items in drawn_sets(pool, SETS):
        prompts, evidence = pool.prompts(items), pool.replayed(items)
        false.append(refutations(judge(exact, prompts, evidence).findings))
        verdicts.append(combine(one.verdict for one in judge(comfortable, prompts, evidence).findings))
    assert [one for one in false if one] == []
    assert verdicts.count(Verdict.REFUTED) == 0
    assert verdicts.count(Verdict.CERTIFIED) >= 0.8 * SETS
