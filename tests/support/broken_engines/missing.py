"""An engine whose library is not installed."""

from typing import Any

ENVIRONMENT: dict[str, str] = {}
INSTALL = "pip install a-library"


def load(spec: Any, model: Any, report: Any) -> Any:
    import a_library_nobody_has  # noqa: F401
