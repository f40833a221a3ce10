"""Files and functions stay small enough to read, and nothing names a machine."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    p for folder in ("lineage", "contracts", "cli", "examples", "tests") for p in (ROOT / folder).rglob("*.py")
)
FORBIDDEN_NAMES = {"utils", "common", "base", "helpers", "manager"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_size(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400
    assert path.stem not in FORBIDDEN_NAMES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 50, f"{path.name}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_exception_ends_in_error(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            bases = {getattr(base, "id", "") for base in node.bases}
            if any(base.endswith("Error") or base == "Exception" for base in bases):
                assert node.name.endswith("Error"), f"{path.name}:{node.lineno} {node.name}"
