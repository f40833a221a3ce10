"""Slices: which prompts, or which positions of their answers, a contract's slice holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import compress

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapline.contracts.clauses.protocol import Measured
from snapline.contracts.contract import Search, Slice
from snapline.contracts.provenance import Provenance
from snapline.lineage.errors import DefinitionError

POSITION_COLUMNS: Mapping[str, str] = {
    "depth": "position",
    "token": "token",
    "reference_margin": "margin",
    "entropy": "entropy",
}
"""What a predicate over positions calls the columns of evidence."""


def with_lengths(probes: pa.Table, provenance: Provenance) -> pa.Table:
    """Return a probe table with `prompt_tokens`, `answer_tokens` and `sampled_tokens` added.

    They are 0 for a prompt that was not tokenized, and `sampled_tokens` for one that no answer was drawn to.
    """
    ids = probes["id"].to_pylist()
    lengths = [provenance.lengths.get(identifier, (0, 0)) for identifier in ids]
    columns = {
        "prompt_tokens": [prompt for prompt, _ in lengths],
        "answer_tokens": [answer for _, answer in lengths],
        "sampled_tokens": [provenance.sampled.get(identifier, 0) for identifier in ids],
    }
    for name, values in columns.items():
        probes = probes.append_column(name, pa.array(values, pa.int64()))
    return probes


def members(part: Slice, prompts: pa.Table) -> list[str]:
    """Return the ids of the prompts in a slice of prompts, in the table's order; it may be empty.

    Raises:
        DefinitionError: The predicate is not one DuckDB can evaluate on these columns; it names the slice.
    """
    ids: list[str] = prompts["id"].to_pylist()
    return list(compress(ids, _matching(part, prompts)))


def rows_inside(part: Slice, prompts: pa.Table, seen: Measured) -> NDArray[np.bool_]:
    """Return which rows lie in a slice of positions, of shape (rows,).

    Raises:
        DefinitionError: As for `members`.
    """
    place = {identifier: row for row, identifier in enumerate(prompts["id"].to_pylist())}
    owners = np.repeat([place[prompt] for prompt in seen.prompts], seen.counts).astype(np.int64)
    positions = prompts.take(pa.array(owners))
    for name, column in POSITION_COLUMNS.items():
        positions = _with_column(positions, name, pa.array(seen.columns[column]))
    positions = _with_column(positions, "undecided", pa.array(undecided_rows(seen)))
    return np.array(_matching(part, positions), np.bool_)


def undecided_rows(seen: Measured) -> NDArray[np.bool_]:
    """Return where a flip of the greedy token cannot be ruled out: the margin is at most twice the half span."""
    undecided: NDArray[np.bool_] = seen.columns["margin"] <= 2 * seen.columns["half_span"]
    return undecided


def with_undecided(prompts: pa.Table, seen: Measured) -> pa.Table:
    """Return the prompts with a column `undecided`: true where some measured position is, null where none was."""
    found = dict(zip(seen.prompts, seen.any_row(undecided_rows(seen)) > 0, strict=True))
    column = [None if (one := found.get(identifier)) is None else bool(one) for identifier in prompts["id"].to_pylist()]
    return _with_column(prompts, "undecided", pa.array(column, pa.bool_()))


def sample(ids: Sequence[str], size: int) -> list[str]:
    """Return `size` of the ids, chosen by their hashes: the same ones every time, and a smaller sample is in a larger.

    All of them when there are no more.
    """
    return sorted(ids, key=lambda identifier: hashlib.blake2b(identifier.encode()).digest())[:size]


def candidates(search: Search, prompts: pa.Table) -> tuple[dict[str, list[str]], int]:
    """Return the prompts of each candidate slice by its predicate, and how many candidates were too small.

    Raises:
        DefinitionError: A column is not there.
    """
    ids: list[str] = prompts["id"].to_pylist()
    found: dict[str, list[str]] = {}
    for column in search.columns:
        if column not in prompts.column_names:
            raise DefinitionError(
                f"search: the probe set has no column {column!r}",
                hint=f"Name one of {', '.join(name for name in prompts.column_names if name != 'id')}.",
            )
        for identifier, value in zip(ids, prompts[column].to_pylist(), strict=True):
            if value is not None:
                found.setdefault(f"{column} = {value}", []).append(identifier)
    large = {name: chosen for name, chosen in found.items() if len(chosen) >= search.min_prompts}
    return large, len(found) - len(large)


def _with_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    kept = table.drop_columns([name]) if name in table.column_names else table
    return kept.append_column(name, column)


def _matching(part: Slice, table: pa.Table) -> list[bool]:
    from snapline.lineage.query import matching

    if part.where is None:
        return [True] * table.num_rows
    try:
        return matching(table, part.where)
    except DefinitionError as error:
        raise DefinitionError(f"slice {part.name!r}: {error.message}", hint=error.hint) from error
