"""The bench compares like with like; how long things take is for people to read."""

from __future__ import annotations

from snapline.cli import bench


def test_digests_are_compared_with_duckdb_on_the_same_rows() -> None:
    baseline, ours = bench._digests()
    assert baseline["what"].startswith("DuckDB")
    assert baseline["ratio"] == 1
    assert ours["seconds"] > 0
    assert ours["ratio"] == ours["seconds"] / baseline["seconds"]
