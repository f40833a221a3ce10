"""Options that every command takes, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", envvar="SNAPLINE_HOME", help="The folder that holds the ledger; default .snapline here."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON document on stdout.")]
TargetOption = Annotated[
    str | None, typer.Option("--for", help="The deployment target; may be left out if there is one.")
]
TargetsOption = Annotated[
    Path | None, typer.Option("--targets", help="The targets file; default targets.yaml in the home.")
]
ModelArgument = Annotated[str, typer.Argument(help="name, name/3, name@champion or models:/name/3.")]
