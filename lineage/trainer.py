"""Run a view's trainer: a program somebody else wrote, in its own process, on files whose bytes are known.

The trainer starts in an empty folder holding only its code and environment file. It is told where everything is through
five variables and nothing else of Snapline's, and everything it started in its process group is ended when it ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from snapline.lineage.digest import BulkAlgorithm, hex_part
from snapline.lineage.errors import DefinitionError, NotFoundError, SnaplineError, TrainerError
from snapline.lineage.objects import ObjectStore
from snapline.lineage.view import StoredFile, Trainer, View, ViewDefinition
from snapline.lineage.weights import measure_weights

_TAIL_LINES = 20
_OWN_PREFIX = "SNAPLINE_"


class Surroundings(Protocol):
    """What a trainer finds around it."""

    @property
    def python(self) -> str:
        """The interpreter that `python` in a trainer's argv means."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables it inherits; those that begin with `SNAPLINE_` are withheld."""

    @property
    def on_output(self) -> Callable[[str], None]:
        """Receives each line it prints, on either stream, without the line's end."""


def store_code(definition: ViewDefinition, folder: Path, objects: ObjectStore) -> View:
    """Copy a view's code and environment into the object store, and return the view that names the copies.

    Args:
        definition: The document.
        folder: The folder of the view file, which the document's paths are relative to.
        objects: Where the copies go.

    Raises:
        NotFoundError: A file is not there.
        DefinitionError: A path leads out of the folder or to no regular file.
    """

    def store(path: str) -> StoredFile:
        return StoredFile(path=path, object=objects.put_file(_regular_file(folder, path)))

    trainer = definition.trainer
    return View(
        definition=definition,
        code=tuple(store(path) for path in trainer.code),
        environment=store(trainer.environment) if trainer.environment is not None else None,
    )


def restore_code(view: View, objects: ObjectStore, folder: Path) -> None:
    """Write a view's code and environment into `folder`, each file verified.

    Raises:
        IntegrityError: An object is missing or holds other bytes.
    """
    for file in (*view.code, *([view.environment] if view.environment else [])):
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(objects.read(file.object))


def run_trainer(
    view: View,
    objects: ObjectStore,
    training_data: Path,
    base_model: Path | None,
    workdir: Path,
    surroundings: Surroundings,
) -> Path:
    """Run a view's trainer to its end and return the folder it wrote weights to.

    Args:
        view: The view; its code is restored from `objects`.
        objects: The object store.
        training_data: The Parquet file of the view's rows.
        base_model: The folder of the verified base weights, if the view has a base model.
        workdir: A folder to work in, kept by the caller. The weights lie under it, so it should share a file system
            with the place they will be kept.
        surroundings: Interpreter, inherited variables, and who hears the output.

    Raises:
        TrainerError: It could not be started, ended with another status than 0, or left no folder of files.
        IntegrityError: Its code is missing from the object store or was changed there.
    """
    place, output = workdir.absolute() / "code", workdir.absolute() / "output"
    for folder in (place, output):
        folder.mkdir(parents=True)
    restore_code(view, objects, place)
    trainer = view.definition.trainer
    environment = {name: value for name, value in surroundings.environment.items() if not name.startswith(_OWN_PREFIX)}
    environment |= _variables(trainer, training_data, base_model, output)
    program, *arguments = trainer.argv
    argv = [surroundings.python if program == "python" else program, *arguments]
    _run(argv, place, environment, surroundings.on_output)
    if output.is_symlink() or not output.is_dir():
        raise TrainerError("the trainer replaced the folder SNAPLINE_OUTPUT", hint="Write the weights into the folder.")
    if not any(output.iterdir()):
        raise TrainerError(
            "the trainer ended well but wrote nothing to SNAPLINE_OUTPUT", hint="Save the weights in that folder."
        )
    return output


def adopt_output(output: Path, weights_root: Path, digest: str) -> Path:
    """Move a folder of weights to its place under `weights_root`, named by its digest, and return that place.

    A folder that is already there stays if its bytes still have the digest, and is replaced if not. The move is a
    rename, after every file was synced: a crash leaves the old or the new, never a part.

    Args:
        output: The folder, on the file system of `weights_root`; gone afterwards.
        weights_root: Where weights are kept; made when missing.
        digest: The folder's weights digest.
    """
    weights_root.mkdir(parents=True, exist_ok=True)
    root = weights_root.resolve()
    target, aside = root / hex_part(digest), root / f".{uuid.uuid4().hex}.replaced"
    for parent, _, names in os.walk(output):
        for path in (*(Path(parent, name) for name in names), Path(parent)):
            _sync(path)
    try:
        output.rename(target)
    except OSError:
        if not os.path.lexists(target):
            raise
        if _has_digest(target, digest):
            shutil.rmtree(output)
            return target
        target.rename(aside)
        output.rename(target)
        shutil.rmtree(aside, ignore_errors=True)
    _sync(root)
    return target


def _regular_file(folder: Path, path: str) -> Path:
    try:
        real = (folder / path).resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"no file {folder / path}", hint="The view names it; paths are relative to it.") from error
    except (OSError, RuntimeError) as error:  # a loop of links
        raise DefinitionError(f"{folder / path} cannot be followed: {error}", hint="Copy the file there.") from error
    if not real.is_relative_to(folder.resolve()):
        raise DefinitionError(f"{folder / path} leads out of the view's folder, to {real}", hint="Copy the file there.")
    if not real.is_file():
        raise DefinitionError(f"{folder / path} is not a regular file", hint="List each file of the trainer's code.")
    return real


def _variables(trainer: Trainer, training_data: Path, base_model: Path | None, output: Path) -> dict[str, str]:
    variables = {
        "PYTHONUNBUFFERED": "1",  # or a Python trainer's progress would arrive when it ends
        "SNAPLINE_TRAINING_DATA": str(training_data.absolute()),
        "SNAPLINE_OUTPUT": str(output),
        "SNAPLINE_PARAMETERS": json.dumps(trainer.parameters, sort_keys=True),
        "SNAPLINE_SEED": str(trainer.seed),
    }
    return variables | ({"SNAPLINE_BASE_MODEL": str(base_model.absolute())} if base_model else {})


def _run(argv: list[str], place: Path, environment: Mapping[str, str], on_output: Callable[[str], None]) -> None:
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    try:
        process = subprocess.Popen(
            argv,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            process_group=0,
        )
    except (OSError, ValueError) as error:
        raise TrainerError(
            f"the trainer {argv[0]!r} could not be started: {error}", hint="Check the view's argv and code."
        ) from error
    with process:
        guard = threading.Thread(target=_end_with_leader, args=(process.pid,))
        guard.start()
        try:
            for line in process.stdout or ():
                tail.append(line.rstrip("\n"))
                on_output(tail[-1])
            guard.join()  # before the leader is reaped, see there
        except BaseException:
            _kill_group(process.pid)
            guard.join()
            raise
    if process.returncode != 0:
        status = process.returncode
        how = f"exit status {status}" if status > 0 else f"signal {-status}"
        last = "\n".join(tail) or "(it printed nothing)"
        raise TrainerError(f"the trainer ended with {how}; its last lines:\n{last}", hint="Nothing was registered.")


def _end_with_leader(leader: int) -> None:
    """Kill whatever a trainer left running once the trainer itself has ended, so that nothing writes to its weights."""
    # WNOWAIT leaves the leader unreaped, so its group's number cannot belong to anybody else yet.
    os.waitid(os.P_PID, leader, os.WEXITED | os.WNOWAIT)
    _kill_group(leader)


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _has_digest(folder: Path, digest: str) -> bool:
    algorithm = BulkAlgorithm(digest.partition("-")[0])
    try:
        return measure_weights(folder, algorithm, allow_pickle=True).digest == digest
    except SnaplineError:
        return False
