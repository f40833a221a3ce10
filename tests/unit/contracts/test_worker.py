"""A worker process that fails is a clear error, and never outlives whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapline.contracts.engines import worker
from snapline.contracts.engines.client import WorkerEngine
from snapline.contracts.engines.protocol import EngineSpec
from snapline.contracts.errors import EngineFailedError, EngineUnavailableError

SUPPORT = Path(__file__).parents[2] / "support"
ENVIRONMENT = {"PYTHONPATH": str(SUPPORT), "PATH": os.environ["PATH"]}


def start(engine: str, folder: Path, *, timeout_seconds: float = 60, **specified: Any) -> WorkerEngine:
    return WorkerEngine(
        EngineSpec(engine, "float32", **specified),
        folder,
        workdir=folder / "work",
        timeout_seconds=timeout_seconds,
        report=lambda _: None,
        environment=ENVIRONMENT,
    )


def wait_until(true: Callable[[], bool], *, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    return true()


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_crash_carries_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(EngineFailedError, match=r"ended while asked to load.*exit status") as caught:
        start("broken_engines.crash", tmp_path)
    assert "cannot allocate memory" in caught.value.message
    assert "crash.log" in caught.value.hint


def test_silence_is_a_failure_and_takes_the_whole_process_group_along(tmp_path: Path) -> None:
    with pytest.raises(EngineFailedError, match="was silent for 3 s while asked to load"):
        start("broken_engines.hang", tmp_path, timeout_seconds=3)
    assert wait_until(lambda: not is_running(int((tmp_path / "child").read_text())))


def test_garbage_on_the_answers_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(EngineFailedError, match=r"answered 'loaded 100%\\n' when asked to load") as caught:
        start("broken_engines.garbage", tmp_path)
    assert "this goes to the log" in caught.value.message


def test_a_missing_library_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailableError, match="a_library_nobody_has") as caught:
        start("broken_engines.missing", tmp_path)
    assert caught.value.hint == "pip install a-library"


def test_an_unknown_engine_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailableError, match="no engine 'tensorlight'"):
        start("tensorlight", tmp_path)


def test_a_missing_interpreter_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailableError, match="/nowhere/python") as caught:
        start("transformers", tmp_path, interpreter="/nowhere/python")
    assert "interpreter" in caught.value.hint


def test_an_interpreter_without_packages_can_run_the_worker(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(EngineUnavailableError, match="No module named 'torch'") as caught:
        start("transformers", tmp_path, interpreter=str(bare))
    assert "pip install" in caught.value.hint


def test_an_idle_engine_of_several_processes_frees_what_they_share(tmp_path: Path) -> None:
    engine = start("broken_engines.shared", tmp_path, tensor_parallel=2)
    assert engine.generate([1], 0).tokens == ()
    assert (tmp_path / "shared").exists()
    engine.close()
    assert not (tmp_path / "shared").exists()
    engine.close()


def test_a_busy_one_is_ended_at_once(tmp_path: Path) -> None:
    engine = start("broken_engines.shared", tmp_path, tensor_parallel=2, timeout_seconds=2)
    with pytest.raises(EngineFailedError, match="was silent for 2 s while asked to generate"):
        engine.generate([1], 600)
    assert (tmp_path / "shared").exists()
    with pytest.raises(EngineFailedError, match="after it ended"):
        engine.generate([1], 0)


def test_a_killed_parent_leaves_no_worker_behind(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import pathlib, sys
        sys.path[:0] = {[entry for entry in sys.path if entry]!r}
        from snapline.contracts.engines.client import WorkerEngine
        from snapline.contracts.engines.protocol import EngineSpec
        folder = pathlib.Path({str(tmp_path)!r})
        spec = EngineSpec("broken_engines.hang", "float32")
        report = lambda what: (folder / "started").write_text(what)
        WorkerEngine(spec, folder, workdir=folder, timeout_seconds=600, report=report, environment={ENVIRONMENT!r})
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    assert wait_until((tmp_path / "started").exists)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    left = [*map(int, children), int((tmp_path / "child").read_text())]
    assert len(left) == 2
    assert all(map(is_running, left))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: not any(map(is_running, left)))


def test_the_folder_of_engines_does_not_hide_the_libraries() -> None:
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(Path(worker.__file__).parent)!r}); "
        f"module = runpy.run_path({worker.__file__!r}, run_name='worker'); module['_make_importable'](); "
        "import importlib.util; print(importlib.util.find_spec('transformers').origin)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "site-packages" in done.stdout
