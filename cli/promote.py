"""`snapline promote` and `snapline rollback`: move an alias, while the gate is open."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.options import HomeOption, JsonOption, ModelArgument, TargetOption, TargetsOption
from snapline.cli.output import Output

RESERVED = re.compile(r"v\d+", re.IGNORECASE)

if TYPE_CHECKING:
    from snapline.cli.wiring import Home
    from snapline.contracts.gate import GateDecision


def promote(
    model: ModelArgument,
    to: Annotated[str, typer.Option("--to", help="The alias to move.")],
    target: TargetOption = None,
    targets: TargetsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move an alias onto a version. Refused unless the version's gate is open."""
    from snapline.cli.gate import decide_now
    from snapline.cli.wiring import Home
    from snapline.lineage.errors import DefinitionError

    if to == "latest" or RESERVED.fullmatch(to):
        raise DefinitionError(
            f"{to!r} means a version number to MLflow, not an alias", hint="Choose a name such as champion."
        )
    output, opened = Output(as_json), Home.open(home)
    _move(opened, output, decide_now(opened, model, target, targets), to, rollback=False)


def rollback(
    alias: Annotated[str, typer.Argument(help="name@alias")],
    target: TargetOption = None,
    targets: TargetsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move an alias back to the version that held it before, if that version's gate still opens."""
    from snapline.cli.gate import decide_now
    from snapline.cli.wiring import Home
    from snapline.lineage.errors import DefinitionError, NotFoundError
    from snapline.lineage.model import parse_reference

    output, opened = Output(as_json), Home.open(home)
    reference = parse_reference(alias)
    if reference.alias is None:
        raise DefinitionError(f"expected name@alias, found {alias!r}", hint="For example delay-assistant@champion.")
    state = opened.state()
    state.resolve(reference)
    stack = state.holders[(reference.name, reference.alias)]
    if len(stack) < 2:
        raise NotFoundError(
            f"no version held {alias} before {stack[-1].model}", hint="Promote another version instead."
        )
    decision = decide_now(opened, str(stack[-2].model), target or stack[-2].target, targets)
    _move(opened, output, decision, reference.alias, rollback=True)


def _move(home: Home, output: Output, decision: GateDecision, alias: str, *, rollback: bool) -> None:
    from pydantic import ValidationError

    from snapline.cli.mirror import mirror_alias
    from snapline.cli.wiring import now
    from snapline.contracts.gate import GateOpen
    from snapline.lineage.errors import ConflictError, DefinitionError
    from snapline.lineage.events import LineageEvent, Promoted
    from snapline.lineage.state import State

    key = decision.model.key

    def decide(state: State) -> list[LineageEvent]:
        stack = state.holders.get((key.name, alias), ())
        if rollback and [held.model for held in stack[-2:-1]] != [key]:
            raise ConflictError(
                f"somebody moved {key.name}@{alias} meanwhile", hint="Look at snapline log and run this again."
            )
        wanted = (key, decision.envelope, decision.target)
        if not rollback and stack and (stack[-1].model, stack[-1].envelope, stack[-1].target) == wanted:
            return []
        try:
            return [
                Promoted(
                    at=now(),
                    model=key,
                    alias=alias,
                    target=decision.target,
                    envelope=decision.envelope,
                    rollback=rollback,
                )
            ]
        except ValidationError as error:
            raise DefinitionError(
                f"alias {alias!r}: {error.errors()[0]['msg']}", hint="Write letters, digits, '.', '_' and '-'."
            ) from error

    home.ledger.commit(decide, requires=(GateOpen(decision),))
    mirror_alias(home, output, key, alias)
    document = {
        "model": key.name,
        "version": key.version,
        "alias": alias,
        "target": decision.target,
        "rollback": rollback,
    }
    output.answer(document, f"{key.name}@{alias} is now {key}" + (" (rolled back)" if rollback else ""))
