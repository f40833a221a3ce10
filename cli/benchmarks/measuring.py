"""How a benchmark is timed and told."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure.

    Attributes:
        ratio: This figure over that of `against`; above 1 is more of it.
        target: What was aimed for, in words; empty when nothing was.
        met: Whether it was; None without a target.
    """

    subject: str
    what: str
    value: float
    unit: str
    ratio: float | None = None
    against: str = ""
    target: str = ""
    met: bool | None = None

    def document(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)

    def line(self) -> str:
        """Return the row as a line of text."""
        compared = f"{self.ratio:8.2f}x {self.against}" if self.ratio is not None else ""
        verdict = "" if self.met is None else f"  target {self.target}: {'met' if self.met else 'missed'}"
        return f"{self.subject:<10} {self.what:<58} {self.value:10.3f} {self.unit:<9}{compared}{verdict}"


def median_seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the median time of some work, after one run that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
