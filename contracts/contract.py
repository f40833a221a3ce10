"""The kernel contract: what a serving engine promises about its numbers, against which reference, and how surely.

Every clause, slice and path is one cell. The contract's confidence is family-wise: a cell gets an equal share of the
error probability, and pays for both of its sides out of it. So with probability at least `confidence` no cell is
CERTIFIED whose promise is broken and none REFUTED whose promise holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, Context, Decimal
from typing import Annotated, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from snapline.contracts.clauses import Diagnostics, Numerical, Runtime, Statistical
from snapline.contracts.clauses.protocol import Clause, DrawnAnswerClause
from snapline.contracts.clauses.sampler_drift import SamplerDrift
from snapline.contracts.engines.protocol import Path
from snapline.contracts.figures import DecimalText, Level
from snapline.contracts.rollout.documents import Escalation, Observability, RouteSlice, Stages
from snapline.lineage.digest import document_digest
from snapline.lineage.documents import Value
from snapline.lineage.snapshot import Name

Text = Annotated[str, Field(min_length=1)]
DEFAULT_HORIZON = 32
_LEVEL = Context(prec=12, rounding=ROUND_DOWN)


def _canonical_specifiers(text: str) -> str:
    try:
        return ",".join(sorted(str(specifier) for specifier in SpecifierSet(text)))
    except InvalidSpecifier:
        raise ValueError(f"expected a version range such as >=0.30,<0.34, found {text!r}") from None


def _one_or_several(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _sorted_once(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(set(values)))


def _in_order(paths: Sequence[Path]) -> tuple[Path, ...]:
    if not paths or len(set(paths)) < len(paths):
        raise ValueError(f"expected at least one path and none twice, found {', '.join(paths) or 'none'}")
    return tuple(path for path in Path if path in paths)


class Reference(Value):
    """The engine whose numbers count as right; `interpreter` is the Python that runs it, None the current one."""

    engine: Text
    dtype: Text
    interpreter: Text | None = None


class Serving(Value):
    """What may serve.

    Attributes:
        version: A PEP 440 version range; without one, any version may serve.
        dtype: One or several; each target is still measured and certified on its own.
        quantization: None allows only a target without one.
        kv_cache_dtype: `auto` is the engine's own default.
    """

    engine: Text
    version: Annotated[str, AfterValidator(_canonical_specifiers)] = ""
    dtype: Annotated[
        tuple[Text, ...], BeforeValidator(_one_or_several), Field(min_length=1), AfterValidator(_sorted_once)
    ]
    quantization: Text | None = None
    kv_cache_dtype: Text = "auto"

    def objections(
        self, *, engine: str, version: str, dtype: str, quantization: str | None, kv_cache_dtype: str | None
    ) -> tuple[str, ...]:
        """Return one sentence for each way a target is outside what may serve; none means it is inside."""
        wanted_and_found = (
            ("engine", (self.engine,), engine),
            ("dtype", self.dtype, dtype),
            ("quantization", (self.quantization or "none",), quantization or "none"),
            ("kv_cache_dtype", (self.kv_cache_dtype,), kv_cache_dtype or "auto"),
        )
        objections = [
            f"{field}: the contract allows {' or '.join(wanted)}, the target has {found}"
            for field, wanted, found in wanted_and_found
            if found not in wanted
        ]
        if not self._allows_version(version):
            objections.append(f"version: the contract allows {self.version}, the target has {version}")
        return tuple(objections)

    def _allows_version(self, version: str) -> bool:
        if not self.version:
            return True
        try:
            return SpecifierSet(self.version).contains(Version(version), prereleases=True)
        except InvalidVersion:
            return False


class Slice(Value):
    """A part of the traffic that each clause must hold on by itself.

    Attributes:
        where: A DuckDB predicate; None is all. Over prompts it reads the probe table's columns, `prompt_tokens`,
            `answer_tokens` and `undecided`; over positions also `depth`, `token`, `reference_margin` and `entropy`.
        min_prompts: Fewer measured prompts than this certify nothing.
        unit: What the predicate chooses. A slice of positions holds the prompts that have any, and their figures are
            of those positions alone.
    """

    name: Name
    where: Text | None = None
    min_prompts: Annotated[int, Field(ge=1)]
    unit: Literal["prompt", "position"] = "prompt"


class Search(Value):
    """Look for the slice a clause holds worst on, among the values of some prompt columns.

    What is found can refute; it certifies nothing. All candidates together pay for one cell of each clause and path.

    Attributes:
        columns: Probe columns; each distinct value of each is a candidate.
        min_prompts: Smaller candidates are passed over, and counted.
    """

    columns: Annotated[tuple[Name, ...], Field(min_length=1)]
    min_prompts: Annotated[int, Field(ge=1)] = 20


@dataclass(frozen=True, slots=True)
class Cell:
    """One clause on one slice and path: what gets a verdict."""

    clause: Clause
    slice: Slice
    path: str


def _named_once(slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
    names = [part.name for part in slices]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"expected at least one slice and no name twice, found {', '.join(names) or 'none'}")
    return slices


class KernelContract(Value):
    """The document a person writes.

    Attributes:
        probes: Name of the probe set that stands for the traffic.
        temperature: Logits are divided by it before anything is measured.
        confidence: Family-wise, over every clause, slice and path.
        diagnostics: Unbounded figures to report beside the verdict; no finite sample bounds them, so none is promised.
    """

    apiVersion: Literal["snapline/v1"]  # noqa: N815 - the document's spelling
    kind: Literal["KernelContract"]
    name: Name
    probes: Name
    reference: Reference
    serving: Serving
    temperature: Annotated[DecimalText, Field(gt=0)] = Decimal(1)
    confidence: Level
    paths: Annotated[tuple[Path, ...], AfterValidator(_in_order)]
    slices: Annotated[tuple[Slice, ...], AfterValidator(_named_once)]
    search: Search | None = None
    numerical: Numerical = Numerical()
    statistical: Statistical = Statistical()
    runtime: Runtime = Runtime()
    diagnostics: Diagnostics = ()
    observability: Observability | None = None
    escalation: tuple[Escalation, ...] = ()
    stages: Stages | None = None

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if not self.clauses:
            raise ValueError("expected at least one clause under numerical, statistical or runtime, found none")
        for clause in self.clauses:
            if not clause.on(self.paths):
                raise ValueError(
                    f"{clause.name} cannot be held on {' or '.join(self.paths)}: name another path, or leave it out"
                )
        routed = any(isinstance(act, RouteSlice) for one in self.escalation for act in one.do)
        if routed and all(part.unit == "position" for part in self.slices):
            raise ValueError("route_slice needs a slice of prompts: positions of one answer cannot be routed apart")
        return self

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """The promises, in the order the language declares them."""
        groups: tuple[Value, ...] = (self.numerical, self.statistical, self.runtime)
        written = (getattr(group, field) for group in groups for field in type(group).model_fields)
        return tuple(clause for clause in written if isinstance(clause, Clause))

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every clause on each slice and path it is held on.

        A clause that is measured on a sample speaks of all traffic at once; one about whole answers of no slice of
        positions.
        """
        return tuple(
            Cell(clause, part, path)
            for clause in self.clauses
            for part in self._slices_of(clause)
            for path in clause.on(self.paths)
        )

    def _slices_of(self, clause: Clause) -> tuple[Slice, ...]:
        if clause.sampled is not None:
            return (Slice(name="sample", min_prompts=clause.sampled),)
        return tuple(part for part in self.slices if part.unit == "prompt" or not clause.whole_answers)

    @property
    def horizon(self) -> int:
        """The most tokens of an answer that is drawn on `decode-sampled`."""
        return max((clause.horizon for clause in self.of_drawn_answers), default=DEFAULT_HORIZON)

    @property
    def of_drawn_answers(self) -> tuple[DrawnAnswerClause | SamplerDrift, ...]:
        """The clauses that read whole drawn answers, and so mean nothing on answers cut before their horizon."""
        return tuple(clause for clause in self.clauses if isinstance(clause, DrawnAnswerClause | SamplerDrift))

    @property
    def searched(self) -> tuple[tuple[Clause, str], ...]:
        """The clauses and paths the worst slice is searched for."""
        if self.search is None:
            return ()
        return tuple((c, path) for c in self.clauses if c.sampled is None for path in c.on(self.paths))

    @property
    def level(self) -> Decimal:
        """The error probability each side of each cell gets: (1 - confidence) / cells / 2, rounded down."""
        sides = 2 * (len(self.cells) + len(self.searched))
        return _LEVEL.divide(1 - self.confidence, Decimal(sides))

    @property
    def digest(self) -> str:
        """Identity of what is promised: defaults filled in, one spelling per value, and not where a reference runs."""
        promised = self.model_dump(mode="json", exclude_none=True, exclude={"reference": {"interpreter"}})
        return document_digest("contract", promised)
