"""Slices and columns that the probes do not have, or that say the same thing twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

from snapline.contracts.contract import KernelContract, Slice
from snapline.contracts.lint.issues import Kind, LintIssue, error, field_of, warning
from snapline.contracts.probe import ANSWERS, COMPUTED, PROMPTS
from snapline.contracts.slices import POSITION_COLUMNS, members
from snapline.contracts.verdict import TIMED
from snapline.lineage.errors import DefinitionError

if TYPE_CHECKING:
    import pyarrow as pa

MEASURED = (*COMPUTED, "sampled_tokens", "undecided")
"""Columns a predicate may read that are known only once a prompt was tokenized or measured."""


def with_written_lengths(probes: pa.Table) -> pa.Table:
    """Return a probe table with the lengths that can be told without a tokenizer: of what is written as token ids."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for tokens, name in (("token_ids", "prompt_tokens"), ("answer_ids", "answer_tokens")):
        if tokens in probes.column_names:
            probes = probes.append_column(name, pc.list_value_length(probes[tokens]).cast(pa.int64()))
    return probes


def columns_read(predicate: str) -> frozenset[str]:
    """Return the names a predicate reads, in lower case; a parameter of a lambda counts as one.

    Raises:
        DefinitionError: It is not an SQL expression.
    """
    from snapline.lineage.query import evaluate

    quoted = f"SELECT 1 FROM prompts WHERE ({predicate})".replace("'", "''")
    (answer,) = evaluate({}, (), [f"SELECT json_serialize_sql('{quoted}') AS tree"])
    tree = json.loads(answer["tree"][0].as_py())
    if tree["error"]:
        raise DefinitionError(
            f"the expression {predicate!r} cannot be read: {tree['error_message']}", hint="It is DuckDB's dialect."
        )
    return frozenset(_names(tree))


def unreadable(contract: KernelContract) -> Iterator[LintIssue]:
    """Yield an error for each predicate that is not SQL."""
    for part in contract.slices:
        try:
            columns_read(part.where or "true")
        except DefinitionError as problem:
            yield error(Kind.UNREADABLE_SLICE, f"slices.{part.name}.where", problem.message)


def on_probes(contract: KernelContract, prompts: pa.Table) -> list[LintIssue]:
    """Return what is wrong with slices, samples, searched and other columns on some probes."""
    issues, inside = [], {}
    for part in contract.slices:
        try:
            inside[part.name] = prompts_inside(part, prompts)
        except DefinitionError as problem:
            issues.append(error(Kind.UNREADABLE_SLICE, f"slices.{part.name}.where", problem.message))
    known = {name: ids for name, ids in inside.items() if ids is not None}
    issues += [
        issue for part in contract.slices if part.name in known for issue in _too_few(part, len(known[part.name]))
    ]
    return [*issues, *_alike(contract, known), *_samples(contract, prompts), *_absent(contract, prompts)]


def prompts_inside(part: Slice, prompts: pa.Table) -> frozenset[str] | None:
    """Return the prompts of a slice; None when only a measurement can tell.

    Raises:
        DefinitionError: The predicate cannot be evaluated on these columns.
    """
    import pyarrow as pa

    if part.where is None:
        return frozenset(prompts["id"].to_pylist())
    lacking = [name for name in MEASURED if name not in prompts.column_names]
    if part.unit == "prompt" and not columns_read(part.where) & set(lacking):
        return frozenset(members(part, prompts))
    # Evaluated on no rows, a predicate still must fit the columns there will be.
    empty = prompts.slice(0, 0)
    types = {name: pa.bool_() if name == "undecided" else pa.int64() for name in lacking}
    if part.unit == "position":
        of_numbers = {"depth": pa.int32(), "token": pa.int32()}
        types |= {name: of_numbers.get(name, pa.float64()) for name in POSITION_COLUMNS}
    for name, kind in types.items():
        if name in empty.column_names:
            empty = empty.drop_columns([name])
        empty = empty.append_column(name, pa.array([], kind))
    members(part, empty)
    return None


def _too_few(part: Slice, there: int) -> Iterator[LintIssue]:
    field = f"slices.{part.name}"
    if not there:
        yield error(Kind.NEVER_MATCHES, f"{field}.where", "no prompt of the probe set is in this slice")
    elif there < part.min_prompts:
        said = f"the probe set has {there} prompts in this slice, {part.min_prompts} are wanted"
        yield error(Kind.TOO_FEW_PROMPTS, f"{field}.min_prompts", said)


def _alike(contract: KernelContract, inside: Mapping[str, frozenset[str]]) -> Iterator[LintIssue]:
    """Yield a warning for each two slices of prompts that share some; a slice without a predicate shares by design."""
    for one, other in combinations([part for part in contract.slices if inside.get(part.name)], 2):
        ours, theirs = inside[one.name], inside[other.name]
        field, shared = f"slices.{other.name}", len(ours & theirs)
        if ours == theirs and one.unit == other.unit:
            said = f"holds the same {shared} prompts as {one.name}, and each cell costs level: leave one out"
            yield warning(Kind.SAME_SLICE, field, said)
        elif shared and one.where is not None and other.where is not None:
            said = f"shares {shared} of its {len(theirs)} prompts with {one.name}: what is found there counts twice"
            yield warning(Kind.OVERLAP, field, said)


def _samples(contract: KernelContract, prompts: pa.Table) -> Iterator[LintIssue]:
    for clause in contract.clauses:
        if clause.sampled is None or TIMED in clause.on(contract.paths) or clause.sampled <= prompts.num_rows:
            continue
        said = f"it is measured on a sample of {clause.sampled} prompts, the probe set has {prompts.num_rows}"
        yield error(Kind.TOO_FEW_PROMPTS, field_of(contract, clause), said)


def _absent(contract: KernelContract, prompts: pa.Table) -> Iterator[LintIssue]:
    wanted = [("search.columns", name) for name in (contract.search.columns if contract.search else ())]
    wanted += [(field_of(contract, clause), name) for clause in contract.clauses for name in clause.columns]
    for field, name in wanted:
        if name not in prompts.column_names and name not in MEASURED:
            there = [column for column in prompts.column_names if column not in ("id", *PROMPTS, *ANSWERS)]
            said = f"the probe set has no column {name!r}; it has {', '.join(there) or 'none to slice by'}"
            yield error(Kind.NO_COLUMN, field, said)


def _names(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("class") == "COLUMN_REF":
            yield node["column_names"][0].lower()
        for part in node.values():
            yield from _names(part)
    elif isinstance(node, list):
        for part in node:
            yield from _names(part)
