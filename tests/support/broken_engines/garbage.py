"""An engine with a native library that prints to whatever standard output it can find."""

import os
import stat
from pathlib import Path
from typing import Any

ENVIRONMENT: dict[str, str] = {}
INSTALL = ""


def load(spec: Any, model: Any, report: Any) -> Any:
    print("this goes to the log")  # noqa: T201 - the point of this engine
    opened = sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    pipes = [descriptor for descriptor in opened if descriptor > 2 and _is_pipe(descriptor)]
    os.write(pipes[-1], b"loaded 100%\n")


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False
