"""What starting Snapline costs, beside bare Python and MLflow."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from snapline.cli.benchmarks.measuring import Row, median_seconds

REPEATS = 5


def measure(model: str | None, home: Path | None) -> list[Row]:
    """Return whole-process times; each ratio is to bare Python's own start."""
    snapline = [sys.executable, "-m", "snapline.cli"]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "snapline --help": [*snapline, "--help"],
        "mlflow --help": [sys.executable, "-m", "mlflow", "--help"],
    }
    if model is not None:
        commands["snapline gate"] = [*snapline, "gate", model, *(["--home", str(home)] if home else [])]
    run = partial(subprocess.run, capture_output=True, check=False)
    times = {name: median_seconds(partial(run, argv), REPEATS) for name, argv in commands.items()}
    bare = times["python -c pass"]
    return [Row("start", name, seconds, "s", seconds / bare, "python -c pass") for name, seconds in times.items()]
