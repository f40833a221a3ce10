"""Slices: which prompts of a probe set a contract's slice holds."""

from __future__ import annotations

from itertools import compress

import pyarrow as pa

from snapline.contracts.contract import KernelContract
from snapline.lineage.errors import DefinitionError


def members(contract: KernelContract, probes: pa.Table) -> dict[str, list[str]]:
    """Return prompt ids by slice name, in the table's order; a slice may be empty.

    Args:
        probes: A checked probe table with `prompt_tokens` and `answer_tokens`, the lengths in tokens, added.

    Raises:
        DefinitionError: A predicate is not one DuckDB can evaluate on these columns; it names the slice.
    """
    from snapline.lineage.query import matching

    ids = probes["id"].to_pylist()
    found = {}
    for part in contract.slices:
        try:
            inside = [True] * len(ids) if part.where is None else matching(probes, part.where)
        except DefinitionError as error:
            raise DefinitionError(f"slice {part.name!r}: {error.message}", hint=error.hint) from error
        found[part.name] = list(compress(ids, inside))
    return found
