"""An engine that leaves something behind unless it is closed, and that can be kept busy."""

import time
from pathlib import Path
from typing import Any

from snapline.contracts.engines.protocol import EngineIdentity, Generation

ENVIRONMENT: dict[str, str] = {}
INSTALL = ""


class Shared:
    """Shares a file with other processes for as long as it lives."""

    identity = EngineIdentity("shared", "1", "float32", "cpu", "none", 2, "cpu")

    def __init__(self, file: Path, report: Any) -> None:
        self._file, self._report = file, report
        file.write_text("shared")

    def generate(self, _: Any, max_tokens: int) -> Generation:
        self._report("at it")
        time.sleep(max_tokens)
        return Generation((), "", ())

    def close(self) -> None:
        self._file.unlink()


def load(spec: Any, model: Path, report: Any) -> Shared:
    return Shared(model / "shared", report)
