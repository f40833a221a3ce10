"""`snapline init`."""

from __future__ import annotations

from typing import Annotated

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output


def init(
    home: HomeOption = None,
    algorithm: Annotated[str, typer.Option(help="Hash for rows, tensors and files: blake3 or sha256.")] = "blake3",
    ledger: Annotated[
        str, typer.Option(help="SQLAlchemy URL of the ledger; {home} stands for the home's folder.")
    ] = "sqlite:///{home}/ledger.db",
    as_json: JsonOption = False,
) -> None:
    """Make a home: a ledger, an object store and a signing key. Doing it twice changes nothing."""
    from snapline.cli.wiring import initialise, located
    from snapline.lineage.digest import BulkAlgorithm
    from snapline.lineage.errors import DefinitionError

    if algorithm not in set(BulkAlgorithm):
        raise DefinitionError(f"expected blake3 or sha256, found {algorithm!r}", hint="Leave it out for blake3.")
    root = located(home)
    made = initialise(root, BulkAlgorithm(algorithm), ledger)
    text = f"{'made' if made else 'found'} a Snapline home at {root}"
    Output(as_json).answer({"home": str(root), "made": made, "algorithm": algorithm}, text)
