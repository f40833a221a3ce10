"""The floors hold, and the commands people wait for import nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "mlflow", "vllm", "duckdb", "transformers", "pandas")
CODE = """
import sys
sys.argv = ["snapline", *sys.argv[1:]]
from snapline.cli.app import main
try:
    main()
except SystemExit as leave:
    print("exit", leave.code)
print("imported", *[name for name in {heavy!r} if name in sys.modules])
"""


def run(*arguments: str) -> str:
    code = CODE.replace("{heavy!r}", repr(HEAVY))
    environment = {"PYTHONPATH": str(ROOT / ".namespace"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout


@pytest.mark.parametrize("arguments", [("--help",), ("gate", "--help"), ("certify", "--help")])
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).splitlines()[-1] == "imported"


def test_floors() -> None:
    command = [Path(sys.executable).with_name("lint-imports")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
