"""MLflow is a mirror: when it fails nothing is lost, and it can be written again."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from journeys import Snapline

pytestmark = pytest.mark.mlflow


def test_a_mirror_that_fails_is_a_warning_and_catches_up(
    snapline: Snapline, weights: Callable[[str, int], Path]
) -> None:
    snapline.ok("init")
    blocked = snapline.home / "artifacts"
    blocked.write_text("a file where the mirror wants a folder")
    answer = snapline("register", "base", "--weights", weights("a", 1), "--json")
    assert answer.code == 0
    assert answer.json["version"] == 1
    assert "warning: not mirrored to MLflow" in answer.err
    assert not (snapline.home / "mlflow.db").exists()

    blocked.unlink()
    snapline.ok("register", "base", "--weights", weights("b", 2))
    assert snapline.ok("mirror", "--rebuild") == {"versions": 2, "aliases": 0}
    with serving(snapline) as url:
        found = post(f"{url}/api/2.0/mlflow/registered-models/get-latest-versions", {"name": "base"})
    tags = {tag["key"]: tag["value"] for tag in found["model_versions"][0]["tags"]}
    assert found["model_versions"][0]["version"] == "2"
    assert tags["snapline.version"] == "base/2"
    assert tags["snapline.verdict"] == "UNDECIDED"


HIDE_MLFLOW = """
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec


def without_mlflow(name, path=None, target=None):
    return None if name.partition(".")[0] == "mlflow" else find_spec(name, path, target)


PathFinder.find_spec = without_mlflow
"""


def test_without_mlflow_everything_is_recorded_and_nothing_is_mirrored(
    snapline: Snapline, weights: Callable[[str, int], Path]
) -> None:
    (snapline.folder / "sitecustomize.py").write_text(HIDE_MLFLOW)
    path = f"{snapline.folder}{os.pathsep}{snapline.environment['PYTHONPATH']}"
    without = replace(snapline, environment={**snapline.environment, "PYTHONPATH": path})
    without.ok("init")
    answer = without("register", "base", "--weights", weights("a", 1), "--json")
    assert (answer.code, answer.json["version"]) == (0, 1)
    assert "MLflow is not installed" in answer.err
    assert without("mirror", "--rebuild").code == 4
    assert without("server").code == 4
    assert without("verify", "base").code == 0
    assert not (snapline.home / "mlflow.db").exists()
    assert snapline.ok("mirror", "--rebuild") == {"versions": 1, "aliases": 0}


@contextmanager
def serving(snapline: Snapline) -> Iterator[str]:
    """Run `snapline server` on a free port until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = snapline.start("server", "--port", str(port))
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    try:
        while not answers(f"{url}/health"):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the server never answered"
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)


def answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(url, timeout=5).read())
    except (urllib.error.URLError, ConnectionError):
        return False


def post(url: str, body: dict[str, str]) -> dict[str, list[dict[str, object]]]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(request, timeout=30).read())
