"""Every error says what to do about it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import snapline.cli.output
import snapline.lineage.errors
from snapline.lineage import errors

NAMES = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
FOLDERS = [Path(module.__file__).parent for module in (snapline.lineage.errors, snapline.cli.output)]
FILES = sorted(path for folder in FOLDERS for path in folder.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_error_that_is_raised_has_a_hint(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    raised = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in NAMES]
    assert [call.lineno for call in raised if not any(word.arg == "hint" for word in call.keywords)] == []
