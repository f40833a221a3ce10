from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.lineage.cut import Bucket, Cut, parse_instant
from snapline.lineage.digest import hex_part
from snapline.lineage.model import ModelVersion, VersionKey, Weights
from snapline.lineage.registries.protocol import MirrorError, MirrorRecord, snapshot_label, source_document
from snapline.lineage.snapshot import Commit, Series, Snapshot

MODEL = ModelVersion(
    key=VersionKey(name="m", version=1),
    weights=Weights(
        digest=f"blake3-weights-v1:{'a' * 64}", path="/w", manifest=f"blake3-object-v1:{'b' * 64}", size_bytes=1
    ),
)


def taken(source: str, rows_hex: str, *, as_of: str | None = None) -> Snapshot:
    return Snapshot(
        series=Series(name="flights", source=source, time="t", known=None, key="k", bucket=Bucket.DAY),
        cut=Cut(
            since=parse_instant("2013-01-01"),
            until=parse_instant("2013-07-01"),
            as_of=parse_instant(as_of) if as_of else None,
        ),
        digest=f"blake3-rows-v2:{rows_hex}",
        rows=5,
        buckets=2,
        manifest=f"blake3-object-v1:{'d' * 64}",
        taken_at=parse_instant("2026-01-01"),
        commit=Commit(id="1"),
        membership=f"blake3-object-v1:{'d' * 64}",
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tags": {"verdict": "CERTIFIED"}}, "not the caller's"),
        ({"tags": {"snapline.home": "x"}}, "not the caller's"),
        ({"tags": {"snapline.version": "m/1"}}, "not the caller's"),
        ({"tags": {"snapline.data": "x" * 65}}, "65 characters"),
        ({"tags": {"snapline.data": ""}}, "0 characters"),
        ({"description": "x" * 4501}, "4501 characters"),
        ({"description": "## CERTIFIED"}, "not plain"),
        ({"description": "| a | b |"}, "not plain"),
        ({"metrics": {"tv": float("nan")}}, "tv is nan"),
        ({"metrics": {"tv": float("-inf")}}, "tv is -inf"),
        ({"artifacts": {"../report.md": b""}}, "plain file name"),
        ({"artifacts": {"": b""}}, "plain file name"),
        ({"artifacts": {"..": b""}}, "plain file name"),
        ({"artifacts": {"report.html": bytes(500_001)}}, "500001 bytes"),
    ],
)
def test_a_record_no_registry_can_show_is_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(MirrorError, match=expected) as refused:
        MirrorRecord(MODEL, **fields)
    assert refused.value.hint


def test_a_record_keeps_its_own_copy_of_what_it_was_given() -> None:
    tags = {"snapline.verdict": "CERTIFIED"}
    record = MirrorRecord(MODEL, tags=tags)
    tags["snapline.verdict"] = "REFUTED"
    assert record.tags["snapline.verdict"] == "CERTIFIED"
    with pytest.raises(TypeError):
        record.tags["snapline.verdict"] = "REFUTED"  # type: ignore[index]


def test_the_source_document_names_everything_needed_to_find_the_rows_again() -> None:
    snapshot = taken("/data/flights.parquet", "c" * 64, as_of="2013-08-01")
    document = source_document(snapshot)
    assert document["digest"] == snapshot.digest
    assert document["id"] == snapshot.id
    assert document["source"] == "/data/flights.parquet"
    assert (document["since"], document["until"]) == ("2013-01-01T00:00:00+00:00", "2013-07-01T00:00:00+00:00")
    assert document["as_of"] == "2013-08-01T00:00:00+00:00"
    assert "known" not in document


@given(rows=st.text("0123456789abcdef", min_size=64, max_size=64), other=st.text(min_size=1))
def test_a_label_is_readable_short_and_different_for_another_source_of_the_same_rows(rows: str, other: str) -> None:
    here, there = taken("/data/flights.parquet", rows), taken(f"/data/{other}", rows)
    assert len(snapshot_label(here)) == 36
    assert snapshot_label(here).startswith(hex_part(here.digest)[:20])
    if here != there:
        assert snapshot_label(here) != snapshot_label(there)
