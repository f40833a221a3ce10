"""How answers leave the process: stdout carries the answer, stderr everything else, the exit code the meaning."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

    from snapline.lineage.errors import SnaplineError


SECONDS_BETWEEN_LINES = 5.0


class Exit(IntEnum):
    """What a pipeline can rely on. Only DONE opens a gate."""

    DONE = 0
    NO = 1
    ASKED_WRONGLY = 2
    CANNOT_SAY = 3
    NOT_THERE = 4
    DO_NOT_TRUST = 5
    COULD_NOT_MEASURE = 6
    OUR_BUG = 70


def exit_code(error: SnaplineError) -> Exit:
    """Return the exit code that an error means."""
    from snapline.contracts import errors as measuring
    from snapline.lineage import errors
    from snapline.lineage.registries.protocol import MirrorError

    meanings: tuple[tuple[type[SnaplineError], Exit], ...] = (
        (errors.RequirementError, Exit.NO),
        (errors.DefinitionError, Exit.ASKED_WRONGLY),
        (errors.NotFoundError, Exit.NOT_THERE),
        (errors.ConflictError, Exit.NOT_THERE),
        (MirrorError, Exit.NOT_THERE),
        (errors.IntegrityError, Exit.DO_NOT_TRUST),
        (errors.TrainerError, Exit.COULD_NOT_MEASURE),
        (measuring.EngineError, Exit.COULD_NOT_MEASURE),
        (measuring.IncomparableError, Exit.COULD_NOT_MEASURE),
    )
    return next((code for kind, code in meanings if isinstance(error, kind)), Exit.OUR_BUG)


class Output:
    """Writes one answer, as a document or for people.

    Args:
        as_json: Whether stdout carries one JSON document instead of text.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def answer(self, document: Mapping[str, Any], text: str | Callable[[Console], None]) -> None:
        """Write the answer: the document when JSON was asked for, otherwise the text (or what the callable prints)."""
        if self.as_json:
            sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n")
        elif callable(text):
            text(_console(sys.stdout))
        else:
            sys.stdout.write(text.rstrip("\n") + "\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Tell the person something that is not the answer."""
        sys.stderr.write(text.rstrip("\n") + "\n")
        sys.stderr.flush()

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[str, int, int], None]]:
        """Show long work on stderr; call the yielded function with (what, done, total)."""
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        console = _console(sys.stderr)
        if not console.is_terminal:
            yield self._plain_progress()
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bars:
            task = bars.add_task(title, total=None)

            def update(what: str, done: int, total: int) -> None:
                bars.update(task, description=f"{title}: {what}", completed=done, total=total or None)

            yield update

    def _plain_progress(self) -> Callable[[str, int, int], None]:
        """Return a reporter for logs: a line for each stage, and where counts move one every few seconds."""
        told = 0.0

        def update(what: str, done: int, total: int) -> None:
            nonlocal told
            counting = total > 0 or any(character.isdigit() for character in what.rpartition(":")[2])
            if counting and time.monotonic() - told < SECONDS_BETWEEN_LINES:
                return
            told = time.monotonic()
            self.note(f"  {what}" + (f": {100 * done // total}%" if total else ""))

        return update


def _console(stream: Any) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False, soft_wrap=not stream.isatty(), width=None if stream.isatty() else 160)


def fail(error: SnaplineError, as_json: bool) -> NoReturn:
    """Report an error and leave with its exit code."""
    name = type(error).__name__
    if as_json:
        document: dict[str, Any] = {"error": name, "message": error.message, "hint": error.hint}
        if reasons := getattr(error, "reasons", ()):
            document["reasons"] = list(reasons)
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
    for reason in getattr(error, "reasons", ()):
        sys.stderr.write(f"  - {reason}\n")
    raise SystemExit(int(exit_code(error)))


def crash(error: BaseException, as_json: bool) -> NoReturn:
    """Report a bug of ours and leave with 70."""
    if as_json:
        document = {
            "error": "InternalError",
            "message": str(error),
            "hint": "This is a bug in Snapline; please report it.",
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    traceback.print_exception(error)
    sys.stderr.write("error: this is a bug in Snapline; please report it with the lines above\n")
    raise SystemExit(int(Exit.OUR_BUG))
