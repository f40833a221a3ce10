"""What every test shares: golden files, and markers for what a machine may lack."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

# A shared machine is slow now and then; a property is about values, not time.
settings.register_profile("snapline", deadline=None)
settings.load_profile("snapline")

NEEDS = {
    "browser": ("chromium", "chromedriver"),
    "postgres": ("initdb", "pg_ctl"),
    "gpu": ("nvidia-smi",),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the golden files anew instead of comparing")


def _installed(program: str) -> bool:
    return shutil.which(program) is not None or any(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests whose programs are not here, unless SNAPLINE_REQUIRE says they must be."""
    required = set(filter(None, os.environ.get("SNAPLINE_REQUIRE", "").split(",")))
    missing = {
        marker: [program for program in programs if not _installed(program)] for marker, programs in NEEDS.items()
    }
    absent = {marker for marker, programs in missing.items() if programs}
    if absent & required:
        raise pytest.UsageError(
            f"required but not installed: {', '.join(p for m in absent & required for p in missing[m])}"
        )
    left_out = [item for item in items if any(item.get_closest_marker(marker) for marker in absent)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
        config.stash[_LEFT_OUT] = {
            marker: sum(1 for item in left_out if item.get_closest_marker(marker)) for marker in sorted(absent)
        }


_LEFT_OUT: pytest.StashKey[dict[str, int]] = pytest.StashKey()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for marker, count in config.stash.get(_LEFT_OUT, {}).items():
        terminalreporter.write_line(f"not run: {count} tests that need {' and '.join(NEEDS[marker])}", yellow=True)
