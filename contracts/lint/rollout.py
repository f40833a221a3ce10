"""Stages, monitors and escalations that cannot do what they are there for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from snapline.contracts.contract import KernelContract, Slice
from snapline.contracts.lint.issues import Kind, LintIssue, error, warning
from snapline.contracts.lint.parts import MEASURED, columns_read
from snapline.contracts.rollout.documents import LogField, RouteSlice
from snapline.lineage.errors import DefinitionError

if TYPE_CHECKING:
    import pyarrow as pa

OF_REQUESTS = "prompt_tokens"
"""The one measured column that a request has before it is answered."""


def issues(contract: KernelContract, prompts: pa.Table | None) -> Iterator[LintIssue]:
    """Yield what is wrong with a contract's stages and escalation."""
    if contract.escalation and contract.stages is None:
        said = "nothing watches a contract without stages, so none of this is ever set off"
        yield warning(Kind.NO_STAGES, "escalation", said)
    if contract.stages is not None:
        yield from _monitors(contract)
    if any(isinstance(act, RouteSlice) for escalation in contract.escalation for act in escalation.do):
        for part in contract.slices:
            yield from _route(part, prompts)


def _monitors(contract: KernelContract) -> Iterator[LintIssue]:
    from snapline.contracts.rollout.monitor import monitored

    if not monitored(contract):
        said = "no clause can be held on a serving log, so nothing is watched: promise tv_answer on decode-sampled"
        yield error(Kind.UNMONITORED, "stages", said)
    elif contract.observability is None or LogField.SAMPLED_LOGPROB not in contract.observability.log:
        said = "monitors read sampled_logprob, which observability.log does not demand"
        yield warning(Kind.UNMONITORED, "stages", said)


def _route(part: Slice, prompts: pa.Table | None) -> Iterator[LintIssue]:
    field = f"slices.{part.name}"
    if part.unit == "position":
        said = "route_slice cannot route it: positions of one answer stay together"
        yield warning(Kind.CANNOT_ROUTE, field, said)
    elif part.where is not None and (beyond := _beyond_requests(part.where, prompts)):
        there = "a request has its tags, as text, and prompt_tokens"
        said = f"route_slice cannot route it: {there}, but no {', '.join(beyond)}"
        yield warning(Kind.CANNOT_ROUTE, f"{field}.where", said)


def _beyond_requests(where: str, prompts: pa.Table | None) -> list[str]:
    """Return the columns a predicate reads that no request has: tags are text, and any other name may be a tag."""
    from pyarrow import types

    try:
        read = columns_read(where)
    except DefinitionError:
        return []
    text = {"string", "large_string", "string_view"}
    never = {name for name in MEASURED if name != OF_REQUESTS}
    if prompts is not None:
        schema = prompts.schema
        dictionaries = {f.name.lower(): f.type.value_type if types.is_dictionary(f.type) else f.type for f in schema}
        never |= {name for name, kind in dictionaries.items() if str(kind) not in text} - {OF_REQUESTS}
    return sorted(read & never)
