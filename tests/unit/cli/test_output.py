from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator

import pytest

import snapline.contracts
import snapline.lineage
from snapline.cli.output import Exit, Output, crash, exit_code, fail
from snapline.contracts.errors import EngineFailedError, EngineUnavailableError, IncomparableError
from snapline.lineage.errors import (
    ConflictError,
    DefinitionError,
    IntegrityError,
    NotFoundError,
    RequirementError,
    SnaplineError,
    TrainerError,
)

# They run where vLLM or Triton is, and nowhere else.
LEFT_ALONE = ("snapline.contracts.engines.vllm", "snapline.contracts.kernels.triton_kernel")


def every_error() -> list[type[SnaplineError]]:
    """Import all of lineage and contracts, and return every deliberate error there is."""
    for package in (snapline.lineage, snapline.contracts):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(LEFT_ALONE):
                importlib.import_module(module.name)
    return sorted(_below(SnaplineError), key=lambda kind: kind.__name__)


def _below(kind: type[SnaplineError]) -> Iterator[type[SnaplineError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


def test_no_deliberate_error_passes_for_a_bug() -> None:
    found = every_error()
    assert len(found) >= 10
    assert [kind.__name__ for kind in found if exit_code(kind("x")) in {Exit.OUR_BUG, Exit.DONE}] == []
    assert exit_code(SnaplineError("of no kind")) is Exit.OUR_BUG


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (RequirementError, 1),
        (DefinitionError, 2),
        (NotFoundError, 4),
        (ConflictError, 4),
        (IntegrityError, 5),
        (TrainerError, 6),
        (EngineUnavailableError, 6),
        (EngineFailedError, 6),
        (IncomparableError, 6),
    ],
)
def test_the_documented_codes(kind: type[SnaplineError], code: int) -> None:
    assert exit_code(kind("x")) == code


def test_an_error_is_told_in_words_and_with_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        fail(NotFoundError("no model 'x'", hint="Register it."), as_json=False)
    out, err = capsys.readouterr()
    assert (left.value.code, out, err) == (4, "", "error: no model 'x'\nhint: Register it.\n")


def test_an_error_as_json_has_its_three_keys(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        fail(RequirementError("the gate is shut", reasons=("ä: stale",)), as_json=True)
    out, err = capsys.readouterr()
    assert left.value.code == 1
    assert json.loads(out).items() >= {"error": "RequirementError", "message": "the gate is shut", "hint": ""}.items()
    assert "  - ä: stale" in err
    assert "hint:" not in err


@pytest.mark.parametrize("as_json", [True, False])
def test_a_bug_is_70_with_its_traceback(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    with pytest.raises(SystemExit) as left:
        crash(ZeroDivisionError("by nothing"), as_json)
    out, err = capsys.readouterr()
    assert left.value.code == 70
    assert "ZeroDivisionError: by nothing" in err
    assert "report it" in err
    assert (json.loads(out)["error"] == "InternalError") if as_json else (out == "")


def test_an_answer_is_one_document_or_one_text(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).answer({"n": 1, "ä": None}, "text")
    assert json.loads(capsys.readouterr().out) == {"n": 1, "ä": None}
    Output(as_json=False).answer({"n": 1}, "text\n\n")
    assert capsys.readouterr().out == "text\n"
    Output(as_json=False).answer({}, lambda console: console.print("[/] drawn", markup=False))
    assert capsys.readouterr().out == "[/] drawn\n"


def test_notes_and_progress_never_touch_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    output.note("by the way")
    with output.progress("work") as on_progress:
        on_progress("reading", 0, 0)
        on_progress("counting", 5, 10)
        on_progress("counting", 10, 10)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("by the way\n")
    assert "reading" in err
