"""The trainer run: what the program is told, what of it is believed, and what becomes of its output."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError, IntegrityError, NotFoundError, TrainerError
from snapline.lineage.objects import ObjectStore
from snapline.lineage.trainer import adopt_output, restore_code, run_trainer, store_code
from snapline.lineage.view import View, ViewDefinition
from snapline.lineage.weights import measure_weights

EMPTY = (2).to_bytes(8, "little") + b"{}"
SAVE = f"""
import os, pathlib
out = pathlib.Path(os.environ["SNAPLINE_OUTPUT"])
(out / "model.safetensors").write_bytes({EMPTY!r})
"""


@dataclass
class Surroundings:
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": os.defpath})
    lines: list[str] = field(default_factory=list)

    @property
    def on_output(self) -> Callable[[str], None]:
        return self.lines.append


class Bench:
    """A view's folder, an object store and a place to work."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "views"
        self.folder.mkdir()
        self.objects = ObjectStore(root / "objects", BulkAlgorithm.BLAKE3)
        self.surroundings = Surroundings()
        self.data = root / "data.parquet"
        self.data.write_bytes(b"PAR1")

    def view(self, script: str, **trainer: object) -> View:
        (self.folder / "train.py").write_text(script)
        return store_code(definition(**trainer), self.folder, self.objects)

    def run(self, view: View, base: Path | None = None) -> Path:
        return run_trainer(view, self.objects, self.data, base, self.root / "work", self.surroundings)


def definition(**trainer: object) -> ViewDefinition:
    return ViewDefinition.model_validate(
        {
            "apiVersion": "snapline/v1",
            "kind": "View",
            "name": "v",
            "inputs": {"t": "t"},
            "query": "SELECT 1",
            "trainer": {"argv": ("python", "train.py"), "code": ("train.py",), "seed": 7, **trainer},
        }
    )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


REPORT = (
    SAVE
    + """
import json, sys
print(json.dumps({
    "own": {k: v for k, v in os.environ.items() if k.startswith("SNAPLINE_")},
    "inherited": os.environ.get("COLOUR"), "argv": sys.argv, "python": sys.executable,
    "here": sorted(str(p) for p in pathlib.Path().rglob("*") if p.is_file()),
    "output": sorted(p.name for p in out.iterdir()), "stdin": sys.stdin.read(),
}))
"""
)


def test_the_trainer_is_told_everything_and_nothing_else(bench: Bench) -> None:
    (bench.folder / "lib").mkdir()
    (bench.folder / "lib" / "model.py").write_text("x = 1")
    (bench.folder / "requirements.lock").write_text("torch==1")
    (bench.folder / "secret.txt").write_text("not listed")
    view = bench.view(
        REPORT,
        argv=("python", "train.py", "--fast"),
        code=("train.py", "lib/model.py"),
        parameters={"steps": "40", "naïve": "✓"},
        environment="requirements.lock",
    )
    inherited = {"COLOUR": "blue", "SNAPLINE_HOME": "/home", "SNAPLINE_BASE_MODEL": "/stale", "SNAPLINE_SEED": "1"}
    bench.surroundings.environment = {**bench.surroundings.environment, **inherited}
    output = bench.run(view)
    told = json.loads(bench.surroundings.lines[-1])
    assert json.loads(told["own"].pop("SNAPLINE_PARAMETERS")) == {"steps": "40", "naïve": "✓"}
    assert told["own"] == {
        "SNAPLINE_TRAINING_DATA": str(bench.data),
        "SNAPLINE_OUTPUT": str(output),
        "SNAPLINE_SEED": "7",
    }
    assert told["inherited"] == "blue"
    assert told["argv"] == ["train.py", "--fast"]
    assert told["python"] == sys.executable
    assert told["here"] == ["lib/model.py", "requirements.lock", "train.py"]
    assert told["output"] == ["model.safetensors"]
    assert told["stdin"] == ""


def test_a_base_model_is_named(bench: Bench) -> None:
    bench.run(bench.view(REPORT), base=bench.root / "base")
    assert json.loads(bench.surroundings.lines[-1])["own"]["SNAPLINE_BASE_MODEL"] == str(bench.root / "base")


def test_both_streams_arrive_line_by_line_while_it_runs(bench: Bench) -> None:
    script = """
import sys, time
print("one"); print("two", file=sys.stderr); print("10%\\r20%\\r", end="")
sys.stdout.buffer.write(b"\\xff\\n")
time.sleep(1)
print("last")
"""
    instants: list[float] = []
    view = bench.view(script + SAVE)

    class Timed(Surroundings):
        @property
        def on_output(self) -> Callable[[str], None]:
            return lambda line: (instants.append(time.monotonic()), self.lines.append(line))[1]

    bench.surroundings = Timed()
    bench.run(view)
    assert bench.surroundings.lines == ["one", "two", "10%", "20%", "\ufffd", "last"]
    assert instants[-1] - instants[0] > 0.5


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("print('boom'); raise SystemExit(3)", "exit status 3; its last lines:\nboom"),
        ("raise SystemExit(1)", "(it printed nothing)"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
        (SAVE + "raise ValueError('after saving')", "ValueError: after saving"),
        ("pass", "wrote nothing to SNAPLINE_OUTPUT"),
        ("open('model.safetensors', 'w').write('here')", "wrote nothing to SNAPLINE_OUTPUT"),
        ("import os; o = os.environ['SNAPLINE_OUTPUT']; os.rmdir(o); os.symlink('/tmp', o)", "replaced the folder"),
        ("import os; o = os.environ['SNAPLINE_OUTPUT']; os.rmdir(o)", "replaced the folder"),
        ("import os; o = os.environ['SNAPLINE_OUTPUT']; os.rmdir(o); open(o, 'w')", "replaced the folder"),
    ],
)
def test_a_failed_trainer_is_an_error_that_says_how(bench: Bench, script: str, found: str) -> None:
    with pytest.raises(TrainerError) as caught:
        bench.run(bench.view(script))
    assert found in caught.value.message


def test_only_the_last_lines_are_kept(bench: Bench) -> None:
    with pytest.raises(TrainerError) as caught:
        bench.run(bench.view("for i in range(1000): print('line', i)\nraise SystemExit(1)"))
    assert caught.value.message.endswith("line 999")
    assert "line 979\n" not in caught.value.message
    assert len(bench.surroundings.lines) == 1000


@pytest.mark.parametrize("argv", [("no-such-program",), ("./train.py",), ("a\0b",)])
def test_a_program_that_cannot_be_started_is_an_error(bench: Bench, argv: tuple[str, ...]) -> None:
    with pytest.raises(TrainerError, match="could not be started"):
        bench.run(bench.view("", argv=argv))


def test_weights_that_lead_outside_are_refused_when_measured(bench: Bench) -> None:
    (bench.root / "elsewhere.safetensors").write_bytes(EMPTY)
    output = bench.run(bench.view(f"import os; os.symlink({str(bench.root / 'elsewhere.safetensors')!r}, "
                                  "os.environ['SNAPLINE_OUTPUT'] + '/model.safetensors')"))  # fmt: skip
    with pytest.raises(DefinitionError, match="symbolic link"):
        measure_weights(output, BulkAlgorithm.BLAKE3)


def _alive(process: int) -> bool:
    """Whether a process still runs; a zombie that nobody reaps does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _gone(process: int) -> bool:
    deadline = time.monotonic() + 10
    while _alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not _alive(process)


def test_nothing_the_trainer_started_outlives_it(bench: Bench) -> None:
    script = (
        SAVE
        + """
import subprocess, sys
for stream in (None, subprocess.DEVNULL):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=stream, stderr=stream)
    print(child.pid)
"""
    )
    started = time.monotonic()
    bench.run(bench.view(script))
    assert time.monotonic() - started < 60
    assert all(_gone(int(line)) for line in bench.surroundings.lines)


@pytest.mark.parametrize("silent", [False, True])
def test_an_interrupt_ends_the_trainer_and_what_it_started(bench: Bench, silent: bool) -> None:
    script = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, os.getpid())
"""
    script += "sys.stdout.flush(); os.close(1); os.close(2)\n" if silent else ""
    view = bench.view(script + "time.sleep(600)")
    # What was started in the background inherits that interrupts are ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            bench.run(view)
    finally:
        signal.signal(signal.SIGINT, before)
    assert all(_gone(int(process)) for process in bench.surroundings.lines[0].split())


def test_a_changed_object_is_never_run(bench: Bench) -> None:
    view = bench.view("open('/tmp/never', 'w')")
    stored = bench.objects.path(view.code[0].object)
    stored.chmod(0o644)
    stored.write_text("print('other code')")
    with pytest.raises(IntegrityError, match="other bytes"):
        bench.run(view)
    assert bench.surroundings.lines == []


def test_code_is_stored_and_restored_byte_for_byte(bench: Bench) -> None:
    (bench.folder / "deep" / "er").mkdir(parents=True)
    (bench.folder / "deep" / "er" / "a.bin").write_bytes(bytes(range(256)))
    (bench.folder / "link.py").symlink_to("deep/er/a.bin")
    view = store_code(definition(code=("deep/er/a.bin", "link.py")), bench.folder, bench.objects)
    restore_code(view, bench.objects, bench.root / "restored")
    for path in ("deep/er/a.bin", "link.py"):
        assert (bench.root / "restored" / path).read_bytes() == bytes(range(256))
        assert not (bench.root / "restored" / path).is_symlink()


def test_an_edit_of_the_code_is_another_view(bench: Bench) -> None:
    assert bench.view("a").digest == bench.view("a").digest
    assert bench.view("a").digest != bench.view("b").digest


def test_code_must_be_regular_files_of_the_folder(bench: Bench) -> None:
    (bench.root / "outside.py").write_text("")
    (bench.folder / "link.py").symlink_to("../outside.py")
    (bench.folder / "loop.py").symlink_to("loop.py")
    (bench.folder / "folder").mkdir()
    os.mkfifo(bench.folder / "pipe")
    for path, error, complaint in [
        ("absent.py", NotFoundError, "absent.py"),
        ("link.py", DefinitionError, "leads out of"),
        ("loop.py", DefinitionError, "cannot be followed"),
        ("folder", DefinitionError, "not a regular file"),
        ("pipe", DefinitionError, "not a regular file"),
    ]:
        with pytest.raises(error, match=complaint):
            store_code(definition(code=(path,)), bench.folder, bench.objects)
        with pytest.raises(error, match=complaint):
            store_code(definition(code=(), environment=path), bench.folder, bench.objects)


def output(root: Path, name: str = "output") -> tuple[Path, str]:
    folder = root / name
    (folder / "inner").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(EMPTY)
    (folder / "inner" / "config.json").write_text("{}")
    return folder, measure_weights(folder, BulkAlgorithm.BLAKE3).digest


def test_output_is_kept_under_its_digest(tmp_path: Path) -> None:
    folder, digest = output(tmp_path)
    kept = adopt_output(folder, tmp_path / "home" / "weights", digest)
    assert kept == tmp_path / "home" / "weights" / digest.partition(":")[2]
    assert not folder.exists()
    assert measure_weights(kept, BulkAlgorithm.BLAKE3).digest == digest


def test_the_same_output_again_leaves_the_first_in_place(tmp_path: Path) -> None:
    folder, digest = output(tmp_path)
    kept = adopt_output(folder, tmp_path / "weights", digest)
    inode = (kept / "model.safetensors").stat().st_ino
    again, _ = output(tmp_path)
    assert adopt_output(again, tmp_path / "weights", digest) == kept
    assert (kept / "model.safetensors").stat().st_ino == inode
    assert not again.exists()
    assert [path.name for path in (tmp_path / "weights").iterdir()] == [kept.name]


@pytest.mark.parametrize("damage", ["tampered", "link", "empty"])
def test_a_damaged_folder_in_its_place_is_replaced(tmp_path: Path, damage: str) -> None:
    folder, digest = output(tmp_path)
    kept = adopt_output(folder, tmp_path / "weights", digest)
    if damage == "tampered":
        (kept / "inner" / "config.json").write_text("[]")
    else:
        moved = kept.rename(tmp_path / "moved")
        kept.symlink_to(moved) if damage == "link" else kept.mkdir()
    again, _ = output(tmp_path)
    assert adopt_output(again, tmp_path / "weights", digest) == kept
    assert not kept.is_symlink()
    assert measure_weights(kept, BulkAlgorithm.BLAKE3).digest == digest
