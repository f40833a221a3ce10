"""The Triton kernel where there is no GPU: run by its interpreter, and compiled for a GPU that is elsewhere.

Triton lies in a folder of its own, `.triton`, for the CPU build of vLLM must not find one. `make test` fills it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TRITON = ROOT / ".triton"

COMPILE = """
import sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from snapline.contracts.kernels import triton_kernel

logits = sys.argv[1]
rows, shape = (logits, logits, "i32", "i32", "i32"), {"pieces": 19, "padded": 32}
work, schedule = ("*fp64", "*fp64", "*fp64", "*i32"), ("i32", "i32")
names = dict.fromkeys(shape, "constexpr")
sweep = {"rows": rows, "work": work, "schedule": schedule, **names, "width": "constexpr"}
out = {"given": ("*i64", "*fp64"), "work": ("*fp64", "*fp64"), "out": ("*fp64", "*i64", "*i1", "i32")}
for kernel, signature, constants in (
    (triton_kernel._sweep, sweep, shape | {"width": 4}),
    (triton_kernel._finish, {"rows": rows, **out, **names}, shape),
):
    options = {"num_warps": triton_kernel.WARPS}
    built = compile(ASTSource(kernel, signature, constants), GPUTarget("cuda", 90, 32), options)
    print(kernel.__name__, built.asm["ptx"].count("ex2.approx.ftz"), len(built.asm["cubin"]) > 0)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if not (TRITON / "triton").is_dir():
        if "triton" in os.environ.get("SNAPLINE_REQUIRE", "").split(","):
            pytest.fail("required but not installed: triton, in .triton")
        pytest.skip("there is no triton in .triton; make test installs it")
    path = [str(TRITON), str(ROOT / ".namespace")]
    cache = str(tmp_path_factory.mktemp("triton"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "TRITON_CACHE_DIR": cache}


def test_the_interpreter_finds_what_the_plain_kernel_finds(environment: dict[str, str]) -> None:
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu/test_triton_kernel.py"]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 40, done.stdout


@pytest.mark.parametrize("logits", ["*fp32", "*bf16", "*fp16"])
def test_the_kernel_compiles_for_a_gpu(environment: dict[str, str], tmp_path: Path, logits: str) -> None:
    script = tmp_path / "compile_kernel.py"
    script.write_text(COMPILE)
    argv = [sys.executable, str(script), logits]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    (sweep, exponentials, built), finish = (line.split() for line in done.stdout.splitlines())
    assert (sweep, built, finish[0], finish[2]) == ("_sweep", "True", "_finish", "True")
    assert int(exponentials) > 0
