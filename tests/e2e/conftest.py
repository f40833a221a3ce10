"""The command line as a person runs it: real processes, real exit codes, a home of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from journeys import ROOT, TRAINER, VIEW, Snapline, flights
from safetensors.numpy import save_file


@pytest.fixture
def snapline(tmp_path: Path) -> Snapline:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SNAPLINE_")}
    return Snapline(tmp_path, kept | {"PYTHONPATH": str(ROOT / ".namespace")})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "flights.parquet"
    pq.write_table(flights(), path)
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Callable[[str, int], Path]:
    """Make a folder of tiny weights whose content is the number."""

    def make(name: str, content: int) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        save_file({"weights": np.full(8, content, dtype=np.float32)}, folder / "model.safetensors")
        return folder

    return make


@pytest.fixture
def materialized(snapline: Snapline, source: Path) -> Snapline:
    """A home with the snapshot `flights`, the view `delays`, and its first version."""
    (snapline.folder / "train.py").write_text(TRAINER)
    (snapline.folder / "view.yaml").write_text(VIEW)
    snapline.ok("init")
    options = ["--time", "dep_time", "--known", "arr_known", "--key", "flight_id"]
    window = ["--from", "2013-01-01", "--until", "2013-01-05", "--bucket", "day"]
    snapline.ok("snapshot", "take", "flights", "--source", source, *options, *window)
    snapline.ok("view", "define", "view.yaml")
    snapline.ok("materialize", "delays")
    return snapline
