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

PATHS = ("prefill", "decode-forced")


def provenance(**changes: Any) -> Provenance:
    known = {
        "weights": digest("weights"),
        "probes": digest("probes"),
        "reference": digest("target"),
        "serving": digest("target", "b"),
        "temperature": "1",
        "paths": PATHS,
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
        {"recipe": "divergence-v2"},
    ],
)
def test_any_other_input_is_not_covered(changes):
    assert not provenance(**changes).covers(provenance())
    assert not provenance().covers(provenance(**changes))


@given(st.sets(st.sampled_from(PATHS)), st.sets(st.sampled_from(PATHS)))
def test_more_paths_cover_fewer(measured, wanted):
    assert provenance(paths=tuple(measured)).covers(provenance(paths=tuple(wanted))) == (wanted <= measured)


def test_lengths_are_found_and_never_asked_for():
    assert provenance(lengths={"p0": (9, 4)}).covers(provenance())


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
