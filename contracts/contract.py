"""The kernel contract: what a serving engine promises about its numbers, against which reference, and how surely.

Every clause, slice and path is one cell. The contract's confidence is family-wise: a cell gets an equal share of the
error probability, and pays for both of its sides out of it. So with probability at least `confidence` no cell is
CERTIFIED whose promise is broken and none REFUTED whose promise holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_DOWN, Context, Decimal
from typing import Annotated, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from snapline.contracts.clauses import Numerical, Runtime, Statistical
from snapline.contracts.clauses.protocol import Clause, NotYetSupported
from snapline.contracts.engines.protocol import Path
from snapline.contracts.figures import DecimalText, Level
from snapline.lineage.digest import document_digest
from snapline.lineage.documents import Value
from snapline.lineage.snapshot import Name

Text = Annotated[str, Field(min_length=1)]
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


def _supported_path(value: object) -> object:
    if value == "decode-sampled":
        raise ValueError("decode-sampled is not yet supported")
    return value


def _supported_unit(value: object) -> object:
    if value == "position":
        raise ValueError("position is not yet supported")
    return value


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
        where: A DuckDB predicate over the probe table's columns and `prompt_tokens` and `answer_tokens`; None is all.
        min_prompts: Fewer measured prompts than this certify nothing.
    """

    name: Name
    where: Text | None = None
    min_prompts: Annotated[int, Field(ge=1)]
    unit: Annotated[Literal["prompt"], BeforeValidator(_supported_unit)] = "prompt"


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
    """

    apiVersion: Literal["snapline/v1"]  # noqa: N815 - the document's spelling
    kind: Literal["KernelContract"]
    name: Name
    probes: Name
    reference: Reference
    serving: Serving
    temperature: Annotated[DecimalText, Field(gt=0)] = Decimal(1)
    confidence: Level
    paths: Annotated[tuple[Annotated[Path, BeforeValidator(_supported_path)], ...], AfterValidator(_in_order)]
    slices: Annotated[tuple[Slice, ...], AfterValidator(_named_once)]
    numerical: Numerical = Numerical()
    statistical: Statistical = Statistical()
    runtime: Runtime = Runtime()
    observability: NotYetSupported = None
    escalation: NotYetSupported = None
    stages: NotYetSupported = None

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if not self.clauses:
            raise ValueError("expected at least one clause under numerical, statistical or runtime, found none")
        return self

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """The promises, in the order the language declares them."""
        groups: tuple[Value, ...] = (self.numerical, self.statistical, self.runtime)
        written = (getattr(group, field) for group in groups for field in type(group).model_fields)
        return tuple(clause for clause in written if isinstance(clause, Clause))

    @property
    def level(self) -> Decimal:
        """The error probability each side of each cell gets: (1 - confidence) / cells / 2, rounded down."""
        sides = 2 * len(self.clauses) * len(self.slices) * len(self.paths)
        return _LEVEL.divide(1 - self.confidence, Decimal(sides))

    @property
    def digest(self) -> str:
        """Identity of what is promised: defaults filled in, one spelling per value, and not where a reference runs."""
        promised = self.model_dump(mode="json", exclude_none=True, exclude={"reference": {"interpreter"}})
        return document_digest("contract", promised)
