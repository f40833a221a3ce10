"""An engine whose process dies while it loads."""

import os
from typing import Any

ENVIRONMENT = {"BROKEN_ENGINE": "crash"}
INSTALL = ""


def load(spec: Any, model: Any, report: Any) -> Any:
    os.write(2, b"cannot allocate memory\n")
    os._exit(9)
