"""What was erased must stay erased: a changed tombstone, index or certificate is noticed, never worked with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from journeys import ROOT, Snapline, flights, flipped

OPTIONS = ["--time", "dep_time", "--key", "flight_id", "--from", "2013-01-01", "--until", "2013-01-05"]


@pytest.fixture(scope="module")
def snapline(tmp_path_factory: pytest.TempPathFactory) -> Snapline:
    """A home with one snapshot, and a request that affects no model and so is closed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SNAPLINE_")}
    found = Snapline(tmp_path_factory.mktemp("erased"), kept | {"PYTHONPATH": str(ROOT / ".namespace")})
    pq.write_table(flights(), found.folder / "flights.parquet")
    found.ok("init")
    found.ok("snapshot", "take", "flights", "--source", "flights.parquet", *OPTIONS)
    (found.folder / "keys.csv").write_text("flight_id\n7\n")
    assert found.ok("erase", "--snapshot", "flights", "--keys", "keys.csv")["state"] == "closed"
    return found


def events(snapline: Snapline, kind: str) -> list[Any]:
    entries = snapline.ok("log", "--limit", "100")["entries"]
    return [entry["event"] for entry in entries if entry["event"]["kind"] == kind]


def stored(snapline: Snapline, address: str) -> Path:
    name = address.rpartition(":")[2]
    return snapline.home / "objects" / name[:2] / name[2:]


def test_a_tombstone_set_is_changed(snapline: Snapline) -> None:
    (erased,) = events(snapline, "erased")
    with flipped(stored(snapline, erased["tombstones"]), 20):
        assert snapline("erasures").code == 5
        assert snapline("snapshot", "take", "flights").code == 5
    assert snapline("erasures").code == 0


def test_a_tombstone_set_is_removed(snapline: Snapline) -> None:
    (erased,) = events(snapline, "erased")
    path = stored(snapline, erased["tombstones"])
    data = path.read_bytes()
    path.unlink()
    try:
        assert snapline("snapshot", "take", "flights").code == 5
    finally:
        path.write_bytes(data)


def test_a_certificate_is_changed(snapline: Snapline) -> None:
    (closed,) = events(snapline, "erasure-closed")
    path = stored(snapline, closed["certificate"])
    for place in (5, len(path.read_bytes()) // 2, -3):
        with flipped(path, place):
            answer = snapline("erasures")
            assert answer.code == 5, answer.out


def test_a_membership_index_is_changed(snapline: Snapline) -> None:
    (taken,) = events(snapline, "snapshot-taken")
    (snapline.folder / "more.csv").write_text("flight_id\n8\n")
    with flipped(stored(snapline, taken["snapshot"]["membership"]), 40):
        answer = snapline("erase", "--snapshot", "flights", "--keys", "more.csv")
        assert (answer.code, "holds other bytes" in answer.err or "expected" in answer.err) == (5, True)
    assert len(events(snapline, "erased")) == 1
