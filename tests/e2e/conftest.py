"""The command line as a person runs it: real processes, real exit codes, a home of their own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from journeys import CONTRACT, GENERATOR, ROOT, TARGETS, TRAINER, VIEW, Snapline, flights, token_probes
from safetensors.numpy import save_file


def in_folder(folder: Path) -> Snapline:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SNAPLINE_")}
    return Snapline(folder, kept | {"PYTHONPATH": str(ROOT / ".namespace")})


@pytest.fixture
def snapline(tmp_path: Path) -> Snapline:
    return in_folder(tmp_path)


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
    cut_and_define(snapline, source)
    snapline.ok("materialize", "delays")
    return snapline


@pytest.fixture(scope="session")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Snapline:
    """A home whose one version really was certified on vLLM, and holds `champion`.

    Whoever changes anything in it puts it back.
    """
    snapline = in_folder(tmp_path_factory.mktemp("certified"))
    folder = snapline.folder
    pq.write_table(flights(), folder / "flights.parquet")
    (folder / "train.py").write_text(GENERATOR)
    shutil.copy(ROOT / "tests" / "support" / "tiny_model.py", folder)
    (folder / "view.yaml").write_text(VIEW.replace("code: [train.py]", "code: [train.py, tiny_model.py]"))
    (folder / "contract.yaml").write_text(CONTRACT)
    (folder / "chats.jsonl").write_text("".join(json.dumps(probe) + "\n" for probe in token_probes()))
    snapline.ok("init")
    (snapline.home / "targets.yaml").write_text(TARGETS)
    cut_and_define(snapline, folder / "flights.parquet")
    snapline.ok("probes", "add", "chats", "--from", "chats.jsonl")
    snapline.ok("materialize", "delays", "--contract", "contract.yaml")
    assert snapline.ok("certify", "delays")["verdict"] == "CERTIFIED"
    snapline.ok("promote", "delays", "--to", "champion")
    return snapline


def cut_and_define(snapline: Snapline, source: Path) -> None:
    options = ["--time", "dep_time", "--known", "arr_known", "--key", "flight_id"]
    window = ["--from", "2013-01-01", "--until", "2013-01-05", "--bucket", "day"]
    snapline.ok("snapshot", "take", "flights", "--source", source, *options, *window)
    snapline.ok("view", "define", "view.yaml")
