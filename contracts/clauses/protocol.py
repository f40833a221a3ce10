"""What a clause is: a promise about one figure per prompt, and how evidence is held against it.

A clause reads the rows of one pair and path and gives one number per prompt, the unit of independence: an event or a
mean over scored positions. Its estimator turns those numbers into one-sided confidence limits, and the judge compares
the limits with what the clause allows. Clauses never see slices, levels or verdicts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from snapline.contracts import estimators
from snapline.contracts.engines.protocol import Path
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import rounded_up

Figures = NDArray[np.float64]

GIVEN = (Path.PREFILL, Path.DECODE_FORCED)
"""The paths that score a given answer."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The usable rows of one pair and path, sorted by prompt, then position.

    For timings a row is a batch, and so is a prompt: `prompts` are the batches' names.

    Attributes:
        prompts: Prompt ids, one per group of rows.
        starts: Shape (prompts,): the row each group starts at.
        columns: The evidence's columns by name, each of shape (rows,): `evidence.COLUMNS`, or those of a timing.
        given: Columns of the probe table by name, each of shape (prompts,); those that a clause asks for.
    """

    prompts: tuple[str, ...]
    starts: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]
    given: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.columns["position"])

    @property
    def counts(self) -> NDArray[np.int64]:
        """Shape (prompts,): how many rows each prompt has."""
        counts: NDArray[np.int64] = np.diff(self.starts, append=self.rows)
        return counts

    def any_row(self, events: NDArray[np.bool_]) -> Figures:
        """Return 1 for each prompt with an event at some position, else 0."""
        return self._reduced(np.maximum, events)

    def mean(self, values: NDArray[Any]) -> Figures:
        """Return each prompt's mean over its positions, for values in [0, 1]."""
        means: Figures = np.clip(self.total(values) / np.maximum(self.counts, 1), 0.0, 1.0)
        return means

    def total(self, values: NDArray[Any]) -> Figures:
        """Return each prompt's sum over its positions."""
        return self._reduced(np.add, values)

    def where(self, rows: NDArray[np.bool_]) -> Measured:
        """Return only some of the rows, and the prompts that have any of them."""
        owners = np.repeat(np.arange(len(self.prompts)), self.counts)[rows]
        kept, starts = np.unique(owners, return_index=True)
        return Measured(
            prompts=tuple(self.prompts[owner] for owner in kept),
            starts=starts.astype(np.int64),
            columns={name: column[rows] for name, column in self.columns.items()},
            given={name: column[kept] for name, column in self.given.items()},
        )

    def _reduced(self, operation: np.ufunc, values: NDArray[Any]) -> Figures:
        if not self.prompts:
            return np.empty(0)
        reduced: Figures = operation.reduceat(values.astype(np.float64), self.starts)
        return reduced


class Clause(ABC):
    """One promise of a contract.

    Attributes:
        name: The word a contract writes.
        pair: Which rows of evidence it reads.
        method: The estimator behind its limits.
        reads: The columns of evidence it reads; a monitor holds those that a serving log can give.
        whole_answers: Whether its figure is of whole answers, so that it cannot be held on some positions only.
        gives_up: What it cannot promise however good the evidence, as a sentence for `explain`.
    """

    name: ClassVar[str]
    pair: ClassVar[Pair]
    method: ClassVar[str]
    reads: ClassVar[frozenset[str]]
    whole_answers: ClassVar[bool] = False
    gives_up: ClassVar[str]

    @property
    @abstractmethod
    def allowed(self) -> Decimal:
        """What the figure may at most be in the traffic the prompts stand for."""

    @property
    @abstractmethod
    def figure(self) -> str:
        """What is limited, as a noun phrase: `share of prompts whose largest half span exceeds 2`."""

    @property
    def resolution(self) -> tuple[str, Decimal] | None:
        """The measure a limit is written in and that limit, to hold against the noise floor; None without one."""
        return None

    @property
    def sampled(self) -> int | None:
        """How many prompts it is measured on, over all traffic at once; None for every prompt of every slice."""
        return None

    @property
    def changed(self) -> str:
        """What is changed between the two programs of its pair, where the pair alone does not say it."""
        return ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the probe table whose values it needs per prompt."""
        return ()

    def on(self, paths: Sequence[Path]) -> tuple[str, ...]:
        """Return what it is held on of a contract's paths; none makes the contract malformed."""
        return tuple(path.value for path in paths)

    def relevant(self, measured: Measured) -> Measured:
        """Return the part of what was measured that the promise speaks of."""
        return measured

    @abstractmethod
    def units(self, measured: Measured) -> Figures:
        """Return one number in [0, 1] per prompt, of shape (prompts,)."""

    @abstractmethod
    def loudness(self, measured: Measured) -> Figures:
        """Return how strongly each row speaks against the promise, of shape (rows,); -inf where it does not."""

    def estimate(self, units: Figures) -> float:
        """Return the figure over these units, without a limit; NaN for none."""
        return float(units.mean()) if len(units) else float("nan")

    @abstractmethod
    def upper(self, units: Figures, alpha: float) -> float:
        """Return the one-sided upper limit at error probability `alpha`."""

    @abstractmethod
    def lower(self, units: Figures, alpha: float) -> float:
        """Return the one-sided lower limit at error probability `alpha`."""

    @abstractmethod
    def best_upper(self, n: int, alpha: float) -> float:
        """Return the smallest upper limit any `n` prompts could give: that of prompts without a fault."""

    def prompts_needed(self, alpha: float) -> int | None:
        """Return how many prompts without a fault would certify; None when no feasible number would."""
        return estimators.prompts_needed(
            lambda n: float(rounded_up(self.best_upper(n, alpha))), limit=float(self.allowed)
        )


class RateClause(Clause):
    """A limit on the share of prompts with an event; `units` gives 0 or 1."""

    method: ClassVar[str] = estimators.RATE_METHOD

    def upper(self, units: Figures, alpha: float) -> float:
        """Return Clopper and Pearson's upper limit."""
        return estimators.rate_upper(int(units.sum()), len(units), alpha)

    def lower(self, units: Figures, alpha: float) -> float:
        """Return Clopper and Pearson's lower limit."""
        return estimators.rate_lower(int(units.sum()), len(units), alpha)

    def best_upper(self, n: int, alpha: float) -> float:
        """Return the upper limit after no event."""
        return estimators.rate_upper(0, n, alpha)


class MeanClause(Clause):
    """A limit on the expected per-prompt figure in [0, 1]."""

    method: ClassVar[str] = estimators.MEAN_METHOD

    def upper(self, units: Figures, alpha: float) -> float:
        """Return the betting upper limit of the mean."""
        return estimators.mean_upper(units, alpha)

    def lower(self, units: Figures, alpha: float) -> float:
        """Return the betting lower limit of the mean."""
        return estimators.mean_lower(units, alpha)

    def best_upper(self, n: int, alpha: float) -> float:
        """Return the upper limit of zeros."""
        return estimators.mean_upper_of_zeros(n, alpha)


class TwoSidedClause(MeanClause):
    """A limit on the size of an expected change, up or down; `units` gives (1 + d) / 2 for a change d in [-1, 1]."""

    def estimate(self, units: Figures) -> float:
        """Return the size of the mean change."""
        return abs(2 * super().estimate(units) - 1)

    def upper(self, units: Figures, alpha: float) -> float:
        """Return the larger of both directions' limits, each at `alpha`: only the true direction's can be too small."""
        change = 2 * units - 1
        return max(estimators.paired_mean_upper(change, alpha), -estimators.paired_mean_lower(change, alpha))

    def lower(self, units: Figures, alpha: float) -> float:
        """Return the larger of both directions' lower limits, each at half of `alpha`, for either can be too large."""
        change = 2 * units - 1
        down = -estimators.paired_mean_upper(change, alpha / 2)
        return max(0.0, estimators.paired_mean_lower(change, alpha / 2), down)

    def best_upper(self, n: int, alpha: float) -> float:
        """Return the upper limit of no change at all, which is that of as many zeros in [0, 1].

        The bets against a mean change u are those against a mean (1 + u) / 2 of halves, and those depend on u / (1 - u)
        as the bets against a mean u of zeros do.
        """
        return estimators.mean_upper_of_zeros(n, alpha)


class DrawnAnswerClause(MeanClause):
    """A limit on an expected figure of whole answers that the serving engine draws, scored again by the reference.

    Attributes:
        horizon: The most tokens of an answer it reads. Cutting answers there leaves a promise about their beginnings,
            which is a weaker one, never a wrong one.
    """

    pair: ClassVar[Pair] = Pair.SERVING
    reads: ClassVar[frozenset[str]] = frozenset({"position", "token", "logp_reference", "logp_serving"})
    whole_answers: ClassVar[bool] = True
    horizon: int

    def on(self, paths: Sequence[Path]) -> tuple[str, ...]:
        """Return `decode-sampled`, if it is there."""
        return tuple(path.value for path in paths if path is Path.DECODE_SAMPLED)

    def relevant(self, measured: Measured) -> Measured:
        """Return the answers' first `horizon` tokens."""
        return measured.where(measured.columns["position"] < self.horizon)

    def units(self, measured: Measured) -> Figures:
        """Return max(0, 1 - W) for each answer y, W = P(y) / Q(y): its expectation under Q is TV(P, Q).

        An answer with a token that Q itself holds impossible was not drawn from Q, and counts as wholly wrong.
        """
        units: Figures = np.clip(-np.expm1(np.minimum(-measured.total(self._excess(measured)), 0.0)), 0.0, 1.0)
        return units

    def loudness(self, measured: Measured) -> Figures:
        """Return by how much the serving engine overrates each token."""
        excess = self._excess(measured)
        return np.where(excess > 0, excess, -np.inf)

    def _excess(self, measured: Measured) -> Figures:
        """Return log q - log p of each token; infinite where either is impossible, though it was drawn."""
        p, q = measured.columns["logp_reference"], measured.columns["logp_serving"]
        impossible = np.isneginf(p) | np.isneginf(q)
        excess: Figures = np.subtract(q, p, out=np.full(len(p), np.inf), where=~impossible)
        return excess
