"""The serving engine against itself: an answer does not depend on what should not matter to it.

Each clause changes one thing and limits the share of prompts that then differ anywhere:

    batch_invariance   alone, and in a batch
    order              the order of the batch
    repeat             nothing: the same once more
    prefix_cache       the prompt's keys and values computed, and found in the cache
    chunked_prefill    long prompts computed in one piece, and in several
    threads            the number of CPU threads
    tensor_parallel    the number of devices that share a layer
    cuda_graphs        the model run eagerly, and compiled and captured

Written `bitwise`, `{bitwise: true, at_most: SHARE, sample: PROMPTS}` or `{half_span: LIMIT, ...}`; `repeat` also as a
number of runs; `threads` and `tensor_parallel` with what to run `against`.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from snapline.contracts.clauses.protocol import GIVEN, Figures, Measured, RateClause
from snapline.contracts.engines.protocol import Path
from snapline.contracts.evidence import Pair
from snapline.contracts.figures import Limit, Share, decimal_text
from snapline.lineage.documents import Value

Prompts = Annotated[int, Field(ge=1)]
Runs = Annotated[int, Field(ge=2, le=100)]


class Invariance(Value, RateClause):
    """The share of prompts that differ at any position between two runs of the serving engine is at most `at_most`.

    Attributes:
        between: The two runs, as they end a sentence about two things that differ; fields stand in braces.
        bitwise: One differing bit of a logit is a difference.
        half_span: A half span above this is a difference; the one or the other is written.
        sample: How many prompts, out of all traffic; without it all prompts of every slice.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"half_span", "identical"})
    between: ClassVar[str]

    bitwise: bool = False
    half_span: Limit | None = None
    at_most: Share = Decimal("0.05")
    sample: Prompts | None = None

    @model_validator(mode="before")
    @classmethod
    def _spelt_out(cls, written: Any) -> Any:
        if isinstance(written, (dict, Value)):
            return written
        if written != "bitwise":
            raise ValueError(f"expected bitwise or {{half_span: LIMIT}}, found {written!r}")
        return {"bitwise": True}

    @model_validator(mode="after")
    def _one_measure(self) -> Self:
        if self.bitwise == (self.half_span is not None):
            raise ValueError("expected one of bitwise and half_span")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema with the short spellings beside the long one."""
        return {"anyOf": [*cls._short_spellings(), handler(core)]}

    @classmethod
    def _short_spellings(cls) -> list[JsonSchemaValue]:
        return [] if any(field.is_required() for field in cls.model_fields.values()) else [{"const": "bitwise"}]

    @property
    def allowed(self) -> Decimal:
        """The share of prompts that may differ."""
        return self.at_most

    @property
    def figure(self) -> str:
        """The share, with what counts as a difference."""
        between = self.between.format_map(dict(self))
        if self.half_span is None:
            return f"share of prompts that are not bitwise equal {between}"
        return f"share of prompts more than a half span of {decimal_text(self.half_span)} apart {between}"

    @property
    def resolution(self) -> tuple[str, Decimal] | None:
        """The limit on half span, if that is what is written."""
        return None if self.half_span is None else ("half_span", self.half_span)

    @property
    def sampled(self) -> int | None:
        """The number of prompts, where one is written."""
        return self.sample

    def on(self, paths: Sequence[Path]) -> tuple[str, ...]:
        """Return the paths that score given tokens: drawing another token is no difference of one position's logits."""
        return tuple(path.value for path in paths if path in GIVEN)

    def units(self, measured: Measured) -> Figures:
        """Return 1 for each prompt with a difference at some position."""
        return measured.any_row(self._differs(measured))

    def loudness(self, measured: Measured) -> Figures:
        """Return the half span of each difference."""
        return np.where(self._differs(measured), measured.columns["half_span"], -np.inf)

    def _differs(self, measured: Measured) -> NDArray[np.bool_]:
        differs: NDArray[np.bool_]
        if self.half_span is None:
            differs = ~measured.columns["identical"]
        else:
            differs = measured.columns["half_span"] > float(self.half_span)
        return differs


class BatchInvariance(Invariance):
    """The share of prompts that differ anywhere between running alone and in a batch is at most `at_most`."""

    name: ClassVar[str] = "batch_invariance"
    pair: ClassVar[Pair] = Pair.BATCHING
    between: ClassVar[str] = "alone and in a batch"
    gives_up: ClassVar[str] = "anything about other batches than those that were run"


class Order(Invariance):
    """The share of prompts that differ anywhere when their batch is given in reverse is at most `at_most`."""

    name: ClassVar[str] = "order"
    pair: ClassVar[Pair] = Pair.ORDER
    between: ClassVar[str] = "in one order of the batch and in its reverse"
    gives_up: ClassVar[str] = "anything about orders other than the one given and its reverse"


class Repeat(Invariance):
    """The share of prompts that differ anywhere between `runs` runs of the same batch is at most `at_most`.

    Attributes:
        runs: The first is compared with each later one; a prompt differs if any of them does.
    """

    name: ClassVar[str] = "repeat"
    pair: ClassVar[Pair] = Pair.REPEAT
    between: ClassVar[str] = "over {runs} runs"
    gives_up: ClassVar[str] = "anything that shows less often than once in so many runs, or after a restart"

    runs: Runs = 2

    @model_validator(mode="before")
    @classmethod
    def _spelt_as_runs(cls, written: Any) -> Any:
        counted = isinstance(written, int) or (isinstance(written, str) and written.isdecimal())
        return {"bitwise": True, "runs": written} if counted else written

    @classmethod
    def _short_spellings(cls) -> list[JsonSchemaValue]:
        return [*super()._short_spellings(), {"type": "integer", "minimum": 2, "maximum": 100}]

    @property
    def changed(self) -> str:
        """Nothing is changed; it says how often."""
        return f"runs={self.runs}"


class PrefixCache(Invariance):
    """The share of prompts that differ anywhere between a cold and a warm prefix cache is at most `at_most`."""

    name: ClassVar[str] = "prefix_cache"
    pair: ClassVar[Pair] = Pair.PREFIX_CACHE
    between: ClassVar[str] = "with a cold and with a warm prefix cache"
    gives_up: ClassVar[str] = "anything about prefixes shared with other prompts, or evicted and computed again"

    def on(self, paths: Sequence[Path]) -> tuple[str, ...]:
        """Return `decode-forced`, if it is there: scoring in one pass never reads the cache."""
        return tuple(path.value for path in paths if path is Path.DECODE_FORCED)


class ChunkedPrefill(Invariance):
    """The share of prompts that differ anywhere with prompts computed in pieces is at most `at_most`."""

    name: ClassVar[str] = "chunked_prefill"
    pair: ClassVar[Pair] = Pair.CHUNKED_PREFILL
    between: ClassVar[str] = "with and without chunked prefill"
    gives_up: ClassVar[str] = "anything about prompts longer than those measured: a short one is never cut"


class OtherCount(Invariance):
    """An invariance under the number of something the engine is started with.

    Attributes:
        against: That number in the second run; the first runs as it is served.
    """

    setting: ClassVar[str]

    against: Annotated[int, Field(ge=1, le=4096)]

    @property
    def changed(self) -> str:
        """The setting and its other value, such as `threads=1`."""
        return f"{self.setting}={self.against}"


class Threads(OtherCount):
    """The share of prompts that differ anywhere with `against` CPU threads is at most `at_most`."""

    name: ClassVar[str] = "threads"
    pair: ClassVar[Pair] = Pair.THREADS
    between: ClassVar[str] = "as served and with threads={against}"
    setting: ClassVar[str] = "threads"
    gives_up: ClassVar[str] = "anything about other thread counts than these two, or other processors"


class TensorParallel(OtherCount):
    """The share of prompts that differ anywhere with `against` devices sharing each layer is at most `at_most`."""

    name: ClassVar[str] = "tensor_parallel"
    pair: ClassVar[Pair] = Pair.TENSOR_PARALLEL
    between: ClassVar[str] = "as served and with tensor_parallel={against}"
    setting: ClassVar[str] = "tensor_parallel"
    gives_up: ClassVar[str] = "anything about other numbers of devices than these two, or other links between them"


class CudaGraphs(Invariance):
    """The share of prompts that differ anywhere between an eager and a captured model is at most `at_most`."""

    name: ClassVar[str] = "cuda_graphs"
    pair: ClassVar[Pair] = Pair.CUDA_GRAPHS
    between: ClassVar[str] = "with and without CUDA graphs"
    gives_up: ClassVar[str] = "anything about batches of other sizes, for which other graphs are captured"
