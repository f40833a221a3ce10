"""The wheel ships one namespace, and what it ships runs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_everything_lies_under_the_namespace(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    outside = [name for name in names if not name.startswith(("snapline/", "snapline-"))]
    assert outside == []
    assert "snapline/__init__.py" not in names
    for package in ("lineage", "contracts", "cli"):
        assert f"snapline/{package}/py.typed" in names
    assert not any("/tests/" in name or "/examples/" in name for name in names)


def test_the_shipped_command_line_runs(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    command = [sys.executable, "-m", "snapline.cli"]
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"}
    where = "import snapline.cli.app as a; print(a.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith(str(tmp_path / "site"))
    subprocess.run([*command, "init"], env=environment, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / ".snapline" / "ledger.db").exists()
