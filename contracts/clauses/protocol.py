"""What a clause is: a promise about one figure per prompt, and how evidence is held against it.

A clause reads the rows of one pair and path and gives one number per prompt, the unit of independence: an event or a
mean over scored positions. Its estimator turns those numbers into one-sided confidence limits, and the judge compares
the limits with what the clause allows. Clauses never see slices, levels or verdicts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from snapline.contracts import estimators
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import rounded_up

Figures = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measured:
    """The usable rows of one pair and path, sorted by prompt, then position.

    Attributes:
        prompts: Prompt ids, one per group of rows.
        starts: Shape (prompts,): the row each group starts at.
        columns: The evidence's columns by name, each of shape (rows,); `position`, `token`, the measures, `flip` and
            `identical`.
    """

    prompts: tuple[str, ...]
    starts: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.columns["position"])

    @property
    def counts(self) -> NDArray[np.int64]:
        """Shape (prompts,): how many rows each prompt has."""
        return np.diff(self.starts, append=self.rows)

    def any_row(self, events: NDArray[np.bool_]) -> Figures:
        """Return 1 for each prompt with an event at some position, else 0."""
        return self._reduced(np.maximum, events)

    def mean(self, values: NDArray[Any]) -> Figures:
        """Return each prompt's mean over its positions, for values in [0, 1]."""
        return np.clip(self._reduced(np.add, values) / self.counts, 0.0, 1.0)

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
    """

    name: ClassVar[str]
    pair: ClassVar[Pair]
    method: ClassVar[str]

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

    @abstractmethod
    def units(self, measured: Measured) -> Figures:
        """Return one number in [0, 1] per prompt, of shape (prompts,)."""

    @abstractmethod
    def loudness(self, measured: Measured) -> Figures:
        """Return how strongly each row speaks against the promise, of shape (rows,); -inf where it does not."""

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


def _refuse(_: object) -> None:
    raise ValueError("not yet supported")


# A word of the language that no clause stands behind yet: writing it is an error, never something to ignore.
NotYetSupported = Annotated[None, BeforeValidator(_refuse), Field(exclude=True)]
