"""Killing Snapline at any moment leaves a whole ledger, no worker behind, and a rerun that completes."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from journeys import TARGETS, Snapline, replaced, token_probes

pytestmark = [pytest.mark.engine, pytest.mark.mlflow]

KILLED_AT_SECONDS = (0.3, 0.6, 1.0, 1.5, 2.5, 4.0, 6.0, 8.0, 11.0, 14.0)


def children_of(parent: int) -> list[int]:
    """Return the processes that a process started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def test_certify_killed_at_ten_points(certified: Snapline) -> None:
    with replaced(certified.home / "targets.yaml", TARGETS.replace("float32", "bfloat16")):
        kill_and_rerun(certified, ("certify", "delays/1"), KILLED_AT_SECONDS)
    assert certified("gate", "delays/1").code == 0


def test_apply_killed_on_the_way(certified: Snapline) -> None:
    original = certified.folder / "chats.jsonl"
    longer = certified.folder / "longer.jsonl"
    longer.write_text("".join(json.dumps(probe) + "\n" for probe in token_probes(61)))
    certified.ok("probes", "add", "chats", "--from", longer)
    kill_and_rerun(certified, ("apply", "delays/1"), KILLED_AT_SECONDS[2::3])
    assert certified("gate", "delays/1").code == 0
    certified.ok("probes", "add", "chats", "--from", original)
    assert certified("gate", "delays/1").code == 0, "the probes are back, and the certificate on them still holds"


def kill_and_rerun(snapline: Snapline, command: tuple[str, ...], moments: tuple[float, ...]) -> None:
    before = snapline.ok("log")["length"]
    for moment in moments:
        process = snapline.start(*command)
        time.sleep(moment)
        workers = children_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert snapline("verify").code == 0
        assert_gone(workers)
    answer = snapline(*command)
    assert answer.code in {0, 1, 3}, answer.err
    assert snapline.ok("log")["length"] > before


def assert_gone(pids: list[int], patience_seconds: float = 20) -> None:
    deadline = time.monotonic() + patience_seconds
    left = pids
    while left and time.monotonic() < deadline:
        left = [
            pid for pid in left if Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text()
        ]
        time.sleep(0.2)
    assert not left, f"left behind: {left}"
