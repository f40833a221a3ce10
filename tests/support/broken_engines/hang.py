"""An engine that starts a process of its own and then never answers."""

import subprocess
import time
from pathlib import Path
from typing import Any

ENVIRONMENT: dict[str, str] = {}
INSTALL = ""


def load(spec: Any, model: Path, report: Any) -> Any:
    child = subprocess.Popen(["/bin/sleep", "600"])
    (model / "child").write_text(str(child.pid))
    report(f"loading in process {child.pid}")
    time.sleep(600)
