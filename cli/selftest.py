"""`snapline contract selftest`: do a contract's clauses tell a faulty engine from an honest one?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Exit, Output

if TYPE_CHECKING:
    from rich.console import Console

    from snapline.contracts.selftest import SelfTest

DEFAULT_PROMPTS = 120


def selftest(
    contract: Annotated[
        str | None,
        typer.Argument(help="A contract file, or a recorded name; default a contract with every clause there is."),
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts each engine is measured on.")] = DEFAULT_PROMPTS,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold engines with a known fault to a contract, each against the honest engine of the same tiny model.

    Exit 0 when every fault is refuted by a clause, every clause refutes a fault and the honest engines are refuted by
    none (without CONTRACT: certified by all), else 1. The models are random and run in this process; it takes a minute.
    """
    from snapline.cli.named import contract_named, home_if_any
    from snapline.contracts.selftest import run

    output = Output(as_json)
    given = None if contract is None else contract_named(contract, home_if_any(home)).contract
    with output.progress("self test") as on_progress:
        found = run(given, prompts, on_progress)
    amiss = problems(found, own=given is None)
    output.answer(document(found, amiss), table(found, amiss))
    raise typer.Exit(int(Exit.NO if amiss else Exit.DONE))


def problems(found: SelfTest, *, own: bool) -> list[str]:
    """Return what keeps the self test from passing, one sentence each.

    Args:
        own: Whether it is the self test's own contract, which must certify the honest engines too.
    """
    said = [
        f"{trial.fault.name}: {', '.join(trial.refuted) or 'not every cell'} "
        + ("refutes it, though nothing is wrong" if trial.refuted else "certifies it")
        for trial in found.honest
        if trial.refuted or (own and not trial.certified)
    ]
    said += [f"no clause refutes the fault {name!r}" for name in found.uncaught]
    for name in found.unrefuted:
        why = "whatever the number of prompts" if name in found.vacuous else f"on {found.prompts} prompts"
        said.append(f"{name} refutes no fault {why}")
    return said


def document(found: SelfTest, amiss: list[str]) -> dict[str, Any]:
    """Return the self test as one JSON document."""
    return {
        "contract": found.contract.name,
        "prompts": found.prompts,
        "confidence": str(found.contract.confidence),
        "passed": not amiss,
        "problems": amiss,
        "vacuous": list(found.vacuous),
        "uncaught": list(found.uncaught),
        "engines": [
            {
                "fault": trial.fault.name,
                "says": trial.fault.says,
                "honest": trial in found.honest,
                "refuted_by": list(trial.refuted),
                "verdicts": {f"{one.clause} {one.path}": one.verdict.value for one in trial.findings},
            }
            for trial in (*found.honest, *found.faulty)
        ],
    }


def table(found: SelfTest, amiss: list[str]) -> Callable[[Console], None]:
    """Return what prints the self test for people: each engine with the clauses that refuted it."""

    def show(console: Console) -> None:
        from rich.table import Table

        grid = Table(box=None, pad_edge=False, show_edge=False)
        for column in ("engine", "n", "refuted by"):
            grid.add_column(column, justify="right" if column == "n" else "left", overflow="fold")
        for trial in found.honest:
            verdict = "certified" if trial.certified else ", ".join(trial.refuted) or "not refuted"
            grid.add_row(trial.fault.name, str(found.prompts), verdict)
        for trial in found.faulty:
            grid.add_row(trial.fault.name, str(found.prompts), ", ".join(trial.refuted) or "nothing: it would pass")
        console.print(grid)
        console.print(
            f"{len(found.faulty)} faults, {len(found.contract.clauses)} clauses of contract {found.contract.name}: "
            + ("each fault is refuted and each clause refutes one" if not amiss else "not every fault is told apart")
        )
        for problem in amiss:
            console.print(f"  {problem}")

    return show
