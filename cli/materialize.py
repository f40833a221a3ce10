"""`snapline materialize`: make a model from a view and a cut."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output

if TYPE_CHECKING:
    from snapline.cli.wiring import Home
    from snapline.lineage.model import ModelVersion
    from snapline.lineage.series import CutOptions


def materialize(
    view: Annotated[str, typer.Argument(help="Name of the view; the model gets the same name.")],
    since: Annotated[
        str | None, typer.Option("--from", help="First instant of the window; default as last taken.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="First instant after the window.")] = None,
    as_of: Annotated[str | None, typer.Option(help="Rows known later are left out; default now.")] = None,
    contract: Annotated[
        str | None, typer.Option(help="Contract the gate will require: a file or a recorded name.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take the view's snapshots, run its trainer on their rows, and register what it wrote."""
    from snapline.cli.mirror import mirror_version
    from snapline.cli.register import describe
    from snapline.cli.wiring import Home
    from snapline.lineage.series import CutOptions

    output, opened = Output(as_json), Home.open(home)
    model = run(opened, output, view, CutOptions(since, until, as_of), contract)
    mirror_version(opened, output, model.key)
    document, text = describe(model, opened.state())
    output.answer(document, text)


def run(home: Home, output: Output, view: str, cut: CutOptions, contract: str | None) -> ModelVersion:
    """Materialize a view in a home; what `materialize` and `apply` share."""
    from snapline.cli.erase import close_erasures
    from snapline.cli.wiring import environment
    from snapline.contracts.records import contract_record
    from snapline.lineage.materialize import Tools, Workshop
    from snapline.lineage.materialize import materialize as make

    state = home.state()
    lens = home.lens(state)
    record = contract_record(contract, state, lens.objects, lens.now) if contract else None
    with output.progress(f"materialize {view}") as on_progress:
        workshop = Workshop(home.root, sys.executable, environment(), output.note, on_progress)
        model = make(view, cut, record, home.ledger, workshop, Tools(lens.objects, lens.cache, lens.now))
    close_erasures(home, output)
    return model
