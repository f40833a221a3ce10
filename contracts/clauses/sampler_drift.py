"""`sampler_drift`: the engine draws its tokens from the distribution its own logits say.

Every other clause on drawn answers reads logits, so a sampler that ignores the temperature, truncates, or draws from
something else altogether escapes them. What it cannot hide is how often its most likely token comes out.

Written as a limit, `sampler_drift: "0.1"`, or with the horizon, `{horizon: 16, limit: "0.1"}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from snapline.contracts.clauses.protocol import Figures, Measured, TwoSidedClause
from snapline.contracts.clauses.tv_answer import UpToHorizon
from snapline.contracts.engines.protocol import Path
from snapline.contracts.evidence import Pair


class SamplerDrift(UpToHorizon, TwoSidedClause):
    """The share of drawn tokens that are the engine's own most likely one is what its logits say, within `limit`.

    At each step the probability of that token is known, so that "drawn or not" less this probability has expectation
    zero given all before it. The sum over an answer, stopped wherever it ends, has expectation zero too (optional
    stopping); divided by the horizon, which no answer exceeds, it lies in [-1, 1]. Short answers count for less.
    """

    name: ClassVar[str] = "sampler_drift"
    pair: ClassVar[Pair] = Pair.SERVING
    reads: ClassVar[frozenset[str]] = frozenset({"token", "greedy_serving", "top_serving"})
    whole_answers: ClassVar[bool] = True
    gives_up: ClassVar[str] = "anything about a sampler that is right about the most likely token and wrong elsewhere"

    @property
    def figure(self) -> str:
        """The change of the share."""
        return f"change of the share of most likely tokens among {self.horizon} drawn, from what the logits say"

    def on(self, paths: Sequence[Path]) -> tuple[str, ...]:
        """Return `decode-sampled`, if it is there."""
        return tuple(path.value for path in paths if path is Path.DECODE_SAMPLED)

    def relevant(self, measured: Measured) -> Measured:
        """Return the answers' first `horizon` tokens."""
        return measured.where(measured.columns["position"] < self.horizon)

    def units(self, measured: Measured) -> Figures:
        """Return (1 + d) / 2, d the answer's surplus of most likely tokens over what was to be expected."""
        units: Figures = np.clip((1 + measured.total(self._surplus(measured)) / self.horizon) / 2, 0.0, 1.0)
        return units

    def loudness(self, measured: Measured) -> Figures:
        """Return how unexpected each token's being, or not being, the most likely one is."""
        surprise = np.abs(self._surplus(measured))
        return np.where(surprise > 0, surprise, -np.inf)

    def _surplus(self, measured: Measured) -> Figures:
        drawn = measured.columns["token"] == measured.columns["greedy_serving"]
        surplus: Figures = drawn - np.exp(np.minimum(measured.columns["top_serving"], 0.0))
        return surplus
