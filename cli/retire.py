"""`snapline retire`: say that a version must not be served again."""

from __future__ import annotations

from typing import Annotated

import typer

from snapline.cli.options import HomeOption, JsonOption, ModelArgument
from snapline.cli.output import Output


def retire(
    model: ModelArgument,
    reason: Annotated[str | None, typer.Option(help="Why; it is recorded as it is written.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Shut a version's gate for good. Retiring a version twice records nothing."""
    from snapline.cli.erase import close_erasures
    from snapline.cli.wiring import Home, now
    from snapline.lineage.erasure.requests import retire as record
    from snapline.lineage.series import Desk

    output, opened = Output(as_json), Home.open(home)
    state = opened.state()
    key = opened.resolve(model, state).key
    recorded = record(key, reason, opened.ledger, Desk(opened.objects(state.algorithm), now()))
    close_erasures(opened, output)
    retired = opened.state().retired[key]
    aliases = sorted(
        alias for (name, alias), stack in state.holders.items() if name == key.name and stack and stack[-1].model == key
    )
    document = {
        "model": key.name,
        "version": key.version,
        "retired_at": retired.at.isoformat(),
        "reason": retired.reason,
        "recorded": recorded,
        "aliases": aliases,
    }
    text = f"{key} is retired" + ("" if recorded else f", since {retired.at.isoformat(timespec='seconds')}")
    text += "".join(f"\n  @{alias} still stands on it: promote another version" for alias in aliases)
    output.answer(document, text)
