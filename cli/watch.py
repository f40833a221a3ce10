"""`snapline watch`: keep everything that is served fresh, in rounds."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.options import HomeOption, JsonOption, TargetsOption
from snapline.cli.output import Exit, Output
from snapline.cli.plan import BudgetOption, Outcome, carry_out, make, seconds_of

if TYPE_CHECKING:
    from snapline.cli.wiring import Home
    from snapline.lineage.events import SourceCompared

PolicyOption = Annotated[
    Path | None,
    typer.Option("--policy", help="A RefreshPolicy document whose segments are views to materialize when due."),
]
LOCK, HOLDER = "refresh.lock", "refresh.pid"


def watch(
    every: Annotated[str, typer.Option(help="Time between the beginnings of two rounds, such as 5m.")] = "5m",
    rounds: Annotated[int | None, typer.Option(min=1, help="Stop after so many; default never.")] = None,
    budget: BudgetOption = None,
    policy: PolicyOption = None,
    targets: TargetsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at every source, plan, and compute again what is due; then wait and do it again, until interrupted.

    Only one watcher or `refresh run` works in a home at a time. With --json, each round is one document on a line of
    its own. The exit code is the worst of the rounds'; a budget is that of each round.
    """
    from snapline.cli.wiring import Home

    output, opened = Output(as_json), Home.open(home)
    seconds = seconds_of("--every", every)
    if budget is not None:
        seconds_of("--budget", budget)
    worst = Exit.DONE
    with alone(opened.root):
        for number in count(1):
            began = time.monotonic()
            outcome = _round(opened, output, Asked(targets, budget, policy))
            _tell(as_json, number, outcome)
            worst = max(worst, outcome.exit)
            if number == rounds:
                break
            time.sleep(max(0.0, began + seconds - time.monotonic()))
    if worst is not Exit.DONE:
        raise typer.Exit(int(worst))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person asked of a round."""

    targets: Path | None
    budget: str | None
    policy: Path | None


def _round(home: Home, output: Output, asked: Asked) -> Outcome:
    """Look and do once; what is not there now, or moved meanwhile, may be otherwise in the next round."""
    from snapline.lineage.errors import ConflictError, NotFoundError

    try:
        return look_and_do(home, output, asked)
    except (NotFoundError, ConflictError) as error:
        output.note(f"failed: {error.message}")
        return Outcome(failed=[(str(home.root), error)])


def _tell(as_json: bool, number: int, outcome: Outcome) -> None:
    """Write what a round did, on one line of its own in JSON."""
    document = {"round": number} | outcome.document()
    told = json.dumps(document, ensure_ascii=False) if as_json else f"round {number}:\n{outcome.text()}"
    sys.stdout.write(told + "\n")
    sys.stdout.flush()


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold the home's refresh lock; when its holder is killed, the system frees it.

    Raises:
        ConflictError: Another process holds it.
    """
    from filelock import FileLock, Timeout

    from snapline.lineage.errors import ConflictError

    holder = root / HOLDER
    try:
        with FileLock(root / LOCK, timeout=0):
            holder.write_text(f"{os.getpid()}\n")
            try:
                yield
            finally:
                holder.unlink(missing_ok=True)
    except Timeout:
        raise ConflictError(
            f"another watcher or refresh run works in {root}: {_name(holder)}",
            hint="Wait until it is done, or stop it.",
        ) from None


def _name(holder: Path) -> str:
    """Return who holds the lock; it may have begun or ended a moment ago."""
    try:
        return f"process {holder.read_text().strip()}"
    except FileNotFoundError:
        return "a process that has just begun or is just ending"


def look_and_do(home: Home, output: Output, asked: Asked) -> Outcome:
    """Look at every live version's sources, record what was found, and compute again what is due.

    Under a refresh policy, the views whose time has come are materialized first.
    """
    _look(home, output)
    made = _materialize_due(home, output, asked.policy) if asked.policy is not None else []
    outcome = carry_out(home, output, make(home, output, None, asked.targets, asked.budget), asked.targets, go_on=True)
    outcome.done[:0] = [{"step": "materialize", "model": key} for key in made]
    outcome.told[:0] = [f"materialized {key}, for it was due" for key in made]
    return outcome


def _materialize_due(home: Home, output: Output, policy: Path) -> list[str]:
    """Materialize the views whose interval in a policy has passed, and return the new versions."""
    from snapline.cli.materialize import run as materialize
    from snapline.cli.refresh import estimated_in
    from snapline.cli.wiring import now
    from snapline.lineage.documents import load
    from snapline.lineage.refresh.policy import RefreshPolicyDocument, segments_of
    from snapline.lineage.refresh.schedule import appointments
    from snapline.lineage.series import CutOptions

    asked = load(policy, RefreshPolicyDocument)
    segments = segments_of(asked, estimated_in(home, asked))
    events = [record.event for record in home.ledger.entries()]
    state = home.state()
    due = [found.view for found in appointments(asked, segments, state, events) if found.due(now())]
    contracts = {view: versions[-1].contract for view, versions in state.models.items()}
    return [str(materialize(home, output, view, CutOptions(), contracts.get(view)).key) for view in due]


def _look(home: Home, output: Output) -> None:
    """Compare the rows of every live version's sources with its cut, and record what the ledger does not say yet."""
    from snapline.contracts.inspection import Inspector
    from snapline.contracts.plan import live
    from snapline.lineage.observe import Depth

    state = home.state()
    inspector = Inspector(state, home.lens(state), home.trusted, Depth(rows=True))
    compared: dict[str, SourceCompared] = {}
    with output.progress("look") as on_progress:
        for index, version in enumerate(versions := live(state)):
            on_progress(str(version.key), index, len(versions))
            compared |= {event.snapshot: event for event in inspector.observe(version).compared}
    if compared:
        home.ledger.commit(lambda _state: tuple(compared.values()))
