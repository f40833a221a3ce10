"""`snapline view`: define what makes a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output

app = typer.Typer(help="View definitions: query, trainer and refresh policy.", no_args_is_help=True)


@app.callback()
def views() -> None:
    """View definitions: query, trainer and refresh policy."""


@app.command("define")
def define(
    file: Annotated[Path, typer.Argument(help="The view document.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record a view, with a copy of its code and environment."""
    from snapline.cli.wiring import Home, now
    from snapline.lineage.definitions import define_and_record

    opened = Home.open(home)
    view = define_and_record(file, opened.ledger, opened.objects(opened.state().algorithm), now())
    document = {"name": view.definition.name, "digest": view.digest, "code": [stored.path for stored in view.code]}
    Output(as_json).answer(document, f"view {view.definition.name}\n{view.digest}")
