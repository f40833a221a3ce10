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
    """Blank out what differs between machines: digests, and the folder."""
    text = re.sub(r"\b[0-9a-f]{64}\b", "<digest>", text)
    text = re.sub(r"@[0-9a-f]{12}\b", "@<id>", text)
    text = re.sub(r"(?<= )[0-9a-f]{12}\b", "<short>", text)
    return re.sub(r"/\S+?/(?=\.snapline|trips)", "<folder>/", text).rstrip()


@pytest.mark.mlflow
def test_the_tour_runs_as_written(tmp_path: Path) -> None:
    block = README.split("<!-- tour -->")[1].split("```console\n")[1].split("```")[0]
    binaries = Path(sys.executable).parent
    environment = dict(os.environ) | {"PATH": f"{binaries}:{os.environ['PATH']}"}
    environment.pop("SNAPLINE_HOME", None)
    told = list(steps(block))
    assert len(told) >= 10
    for step in told:
        done = subprocess.run(
            ["bash", "-c", step.command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == step.code, f"{step.command}\n{done.stdout}{done.stderr}"
        assert same_for_everybody(done.stdout) == same_for_everybody(step.output), step.command


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
