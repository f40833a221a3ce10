"""What a contract asks to have measured: which programs are compared, on how many prompts, and how often timed."""

from __future__ import annotations

from dataclasses import dataclass

from snapline.contracts.clauses.performance import PerformanceClause
from snapline.contracts.contract import KernelContract
from snapline.contracts.engines.protocol import Batching, Path
from snapline.contracts.evidence import Pair


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two programs to compare on a path.

    Attributes:
        prompts: How many prompts: the first ones of `slices.sample`.
        changed: What is changed between the two, where the pair alone does not say it.
    """

    pair: Pair
    path: Path
    prompts: int
    changed: str = ""

    @property
    def key(self) -> str:
        """Its name in provenance."""
        return " ".join(filter(None, (self.pair.value, self.path.value, self.changed)))


@dataclass(frozen=True, slots=True)
class Procedure:
    """How to measure.

    Attributes:
        comparisons: Of the reference with the serving engine, all prompts; then of the serving engine with itself.
        timings: How many batches to time, by whether prompts run alone or together.
        temperature: Divides both engines' logits.
        horizon: The most tokens of an answer the serving engine draws.
        chunk: How many prompts are scored at a time at most: it is the batch that `batched` means.
    """

    comparisons: tuple[Comparison, ...]
    timings: tuple[tuple[Batching, int], ...] = ()
    temperature: float = 1.0
    horizon: int = 32
    chunk: int = 32


def procedure_of(contract: KernelContract, prompts: int) -> Procedure:
    """Return what a contract's clauses need, over a probe set of so many prompts."""
    wanted: dict[tuple[Pair, Path, str], int] = {(Pair.SERVING, path, ""): prompts for path in contract.paths}
    runs: dict[Batching, int] = {}
    for clause in contract.clauses:
        if isinstance(clause, PerformanceClause):
            batching = Batching.BATCHED if clause.batched else Batching.ALONE
            runs[batching] = max(runs.get(batching, 0), clause.runs)
            continue
        count = min(prompts, clause.sampled or prompts)
        for path in clause.on(contract.paths):
            key = clause.pair, Path(path), clause.changed
            wanted[key] = max(wanted.get(key, 0), count)
    return Procedure(
        comparisons=tuple(Comparison(pair, path, count, changed) for (pair, path, changed), count in wanted.items()),
        timings=tuple((batching, runs[batching]) for batching in Batching if batching in runs),
        temperature=float(contract.temperature),
        horizon=contract.horizon,
    )
