from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from certificates import digest
from hypothesis import given
from hypothesis import strategies as st

from snapline.contracts.evidence import SCHEMA, evidence_from_parquet, evidence_to_parquet
from snapline.contracts.provenance import Provenance, provenance_of
from snapline.lineage.errors import IntegrityError

COMPARISONS = ("serving prefill", "serving decode-forced", "batching prefill", "threads prefill threads=1")


def provenance(**changes: Any) -> Provenance:
    known = {
        "weights": digest("weights"),
        "probes": digest("probes"),
        "reference": digest("target"),
        "serving": digest("target", "b"),
        "temperature": "1",
        "comparisons": {"serving prefill": 60},
    }
    return Provenance.model_validate(known | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": digest("weights", "e")},
        {"probes": digest("probes", "e")},
        {"reference": digest("target", "e")},
        {"serving": digest("target", "e")},
        {"temperature": "0.7"},
        {"recipe": "divergence-v1"},
    ],
)
def test_any_other_input_is_not_covered(changes):
    assert not provenance(**changes).covers(provenance())
    assert not provenance().covers(provenance(**changes))


counts = st.dictionaries(st.sampled_from(COMPARISONS), st.integers(0, 3))


@given(counts, counts, counts, counts)
def test_more_covers_less(measured, wanted, timed, runs):
    found = provenance(comparisons=measured, timings=timed).covers(provenance(comparisons=wanted, timings=runs))
    pairs = (measured, wanted), (timed, runs)
    assert found == all(there.get(key, -1) >= count for there, asked in pairs for key, count in asked.items())


def test_a_longer_horizon_covers_a_shorter_one():
    assert provenance(horizon=32).covers(provenance(horizon=16))
    assert not provenance(horizon=16).covers(provenance(horizon=32))


def test_lengths_are_found_and_never_asked_for():
    found = provenance(lengths={"p0": (9, 4)}, sampled={"p0": 3}, kernel="one")
    assert found.covers(provenance(kernel="other"))


def test_it_travels_inside_the_evidence():
    kept = provenance(lengths={"p0": (9, 4), "é": (1, 1)})
    data = evidence_to_parquet(SCHEMA.empty_table(), {"provenance": kept.model_dump_json()})
    assert provenance_of(evidence_from_parquet(data)) == kept


@pytest.mark.parametrize("metadata", [{}, {"provenance": "{}"}, {"provenance": "not json"}, {"other": "{}"}])
def test_evidence_that_does_not_say_where_it_is_from_is_refused(metadata):
    table: pa.Table = evidence_from_parquet(evidence_to_parquet(SCHEMA.empty_table(), metadata))
    with pytest.raises(IntegrityError, match="evidence without provenance") as caught:
        provenance_of(table)
    assert caught.value.hint
