"""`snapline gate`: may it ship?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption, ModelArgument, TargetOption, TargetsOption
from snapline.cli.output import Exit, Output

if TYPE_CHECKING:
    from snapline.cli.wiring import Home
    from snapline.contracts.gate import GateDecision


def gate(
    model: ModelArgument,
    target: TargetOption = None,
    full: Annotated[bool, typer.Option("--full", help="Re-read every byte and row, whatever the stamps say.")] = False,
    targets: TargetsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Open only on a clear yes: exit 0. Otherwise say why and exit with the strongest reason's code."""
    from snapline.cli.wiring import Home

    decision = decide_now(Home.open(home), model, target, targets, full)
    Output(as_json).answer(document(decision), text(decision))
    raise typer.Exit(int(code(decision)))


def decide_now(home: Home, model: str, target: str | None, targets: Path | None, full: bool = False) -> GateDecision:
    """Return the gate's decision on what is there now. The reference is resolved once."""
    from snapline.contracts.inspection import Inspector, target_now
    from snapline.contracts.targets import choose
    from snapline.lineage.observe import Depth

    state = home.state()
    version = home.resolve(model, state)
    name, chosen = choose(home.targets(targets), target)
    inspector = Inspector(state, home.lens(state), home.trusted, Depth(rows=full, full=full))
    decision, _ = inspector.inspect(version, target_now(name, chosen), inspector.observe(version))
    return decision


def code(decision: GateDecision) -> Exit:
    """Return the exit code of a decision: 5 before 4 before 1 before 3."""
    from snapline.lineage.invalidation import Why

    if decision.open:
        return Exit.DONE
    meanings = {Why.TAMPERED: Exit.DO_NOT_TRUST, Why.MISSING: Exit.NOT_THERE, Why.NO: Exit.NO}
    return meanings.get(decision.why, Exit.CANNOT_SAY) if decision.why else Exit.CANNOT_SAY


def document(decision: GateDecision) -> dict[str, Any]:
    """Return a decision as one JSON document; the model is pinned, never an alias."""
    return {
        "open": decision.open,
        "model": decision.model.key.name,
        "version": decision.model.key.version,
        "target": decision.target,
        "weights_digest": decision.model.weights.digest,
        "weights": decision.model.weights.path,
        "certificate": decision.envelope,
        "reasons": list(decision.reasons),
        "notes": [f"{note.subject}: {note.message}" for note in decision.notes],
    }


def text(decision: GateDecision) -> str:
    """Return a decision for people."""
    key = decision.model.key
    lines = [f"{'OPEN' if decision.open else 'SHUT'}  {key} for {decision.target}"]
    if decision.open:
        lines += [f"  weights {decision.model.weights.digest}", f"  certificate {decision.envelope}"]
    lines += [*(f"  - {reason}" for reason in decision.reasons)]
    lines += [f"  note: {note.subject}: {note.message}" for note in decision.notes]
    return "\n".join(lines)
