"""The README is true: its tour runs as written, it names every command, and its contract can be met."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from journeys import ROOT

README = (ROOT / "README.md").read_text()


@dataclass(frozen=True)
class Step:
    command: str
    output: str
    code: int


def steps(block: str) -> Iterator[Step]:
    """Split a console block into commands, here-documents included, and what the README says they print."""
    lines = iter([*block.splitlines(), "$ "])
    command, output, code = "", [], 0
    for line in lines:
        if line.startswith("$ "):
            if command:
                yield Step(command, "\n".join(output), code)
            command, output, code = line[2:], [], 0
            if found := re.search(r"<<'(\w+)'", command):
                while (more := next(lines)) != found[1]:
                    command += "\n" + more
                command += f"\n{found[1]}\n"
        elif found := re.fullmatch(r"\[exit (\d+)\]", line):
            code = int(found[1])
        else:
            output.append(line)


def same_for_everybody(text: str) -> str:
    """Blank out what differs between machines and days: digests, ages, instants, the folder, and widths of tables."""
    text = re.sub(r"\b[0-9a-f]{64}\b", "<digest>", text)
    text = re.sub(r"@[0-9a-f]{12}\b", "@<id>", text)
    text = re.sub(r"(?<= )[0-9a-f]{12}\b", "<short>", text)
    text = re.sub(r"20(?!13)\d\d-\d\d-\d\d[T ][0-9:.]+(\+00:00|Z)", "<instant>", text)
    text = re.sub(r"\b\d{4,}d\b", "<age>", text)
    text = re.sub(r"\b\d{6,} bytes\b", "<bytes>", text)
    text = re.sub(r"\(about \d+ s last time\)|\(\d+ s, within", "<seconds>", text)
    text = re.sub(r"/\S+?/(?=\.snapline|trips|data/)", "<folder>/", text)
    text = re.sub(r" {2,}", "  ", re.sub(r"─+", "─", text))
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def run_as_written(block: str, folder: Path, least: int) -> None:
    binaries = Path(sys.executable).parent
    examples = {"EXAMPLES": str(ROOT / "examples" / "flights")}
    environment = dict(os.environ) | {"PATH": f"{binaries}:{os.environ['PATH']}"} | examples
    environment.pop("SNAPLINE_HOME", None)
    consoles = [part.split("```")[0] for part in block.split("```console\n")[1:]]
    told = [step for console in consoles for step in steps(console)]
    assert len(told) >= least
    for step in told:
        done = subprocess.run(
            ["bash", "-c", step.command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == step.code, f"{step.command}\n{done.stdout}{done.stderr}"
        assert same_for_everybody(done.stdout) == same_for_everybody(step.output), step.command


@pytest.mark.mlflow
def test_the_tour_runs_as_written(tmp_path: Path) -> None:
    run_as_written(README.split("<!-- tour -->")[1].split("<!-- /tour -->")[0], tmp_path, 10)


@pytest.mark.mlflow
@pytest.mark.engine
def test_the_lineage_tour_runs_as_written_on_every_flight(tmp_path: Path) -> None:
    run_as_written(README.split("<!-- flights -->")[1].split("<!-- /flights -->")[0], tmp_path, 20)


def test_the_contract_commands_run_as_written(tmp_path: Path) -> None:
    run_as_written(README.split("<!-- contracts -->")[1].split("<!-- /contracts -->")[0], tmp_path, 6)


def test_every_clause_has_its_line_in_the_readme() -> None:
    from snapline.contracts.clauses import DIAGNOSTICS, Numerical, Runtime, Statistical

    rows = [line for line in README.splitlines() if line.startswith("| `")]
    words = {word for group in (Numerical, Statistical, Runtime) for word in group.model_fields} - {"at_most"}
    assert {word for word in words if not any(f"`{word}" in row for row in rows)} == set()
    assert {name for name in DIAGNOSTICS if f"`{name}`" not in README} == set()


def commands() -> list[str]:
    from snapline.cli.app import app

    names = [command.name for command in app.registered_commands]
    for group in app.registered_groups:
        names += [f"{group.name} {command.name}" for command in group.typer_instance.registered_commands]
    return names


@pytest.mark.parametrize("command", commands())
def test_every_command_is_in_the_readme(command: str) -> None:
    assert f"`snapline {command}" in README


def test_the_contract_in_the_readme_can_be_met() -> None:
    from snapline.contracts.contract import KernelContract
    from snapline.contracts.lint import lint
    from snapline.lineage.documents import parse

    text = next(block.split("```")[0] for block in README.split("```yaml\n")[1:] if "KernelContract" in block)
    assert lint(parse(text, KernelContract, name="README.md")) == ()


def test_the_target_in_the_readme_is_one(tmp_path: Path) -> None:
    from snapline.contracts.targets import load_targets

    text = next(block.split("```")[0] for block in README.split("```yaml\n")[1:] if block.startswith("production"))
    (tmp_path / "targets.yaml").write_text(text)
    assert set(load_targets(tmp_path / "targets.yaml")) == {"production"}
