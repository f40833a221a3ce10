from __future__ import annotations

import pyarrow as pa
import pytest

from snapline.contracts.contract import Slice
from snapline.contracts.slices import members
from snapline.lineage.errors import DefinitionError

PROBES = pa.table(
    {
        "id": ["c", "a", "b"],
        "text": ["x", "y", "z"],
        "answer": ["1", "2", "3"],
        "carrier": ["UA", None, "AA"],
        "prompt_tokens": [10, 200, 30],
        "answer_tokens": [1, 2, 3],
    }
)


def part(where):
    return Slice(name="part", min_prompts=1, where=where)


def test_a_slice_without_a_predicate_is_everything():
    assert members(part(None), PROBES) == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("prompt_tokens >= 30", ["a", "b"]),
        ("carrier = 'UA'", ["c"]),
        ("carrier IS NULL OR answer_tokens = 3", ["a", "b"]),
        ("carrier <> 'UA'", ["b"]),
        ("prompt_tokens > 999", []),
    ],
)
def test_a_predicate_chooses_by_column(where, ids):
    assert members(part(where), PROBES) == ids


@pytest.mark.parametrize("where", ["reference_margin < 0.25", "prompt_tokens +", "prompt_tokens"])
def test_a_predicate_that_is_none_is_refused_by_slice(where):
    with pytest.raises(DefinitionError, match="slice 'part'"):
        members(part(where), PROBES)
