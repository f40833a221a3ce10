"""`snapline probes`: the prompts a certificate is measured on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output

app = typer.Typer(help="Probe sets: prompts and answers to measure on.", no_args_is_help=True)


@app.callback()
def probe_sets() -> None:
    """Probe sets: prompts and answers to measure on."""


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Name of the probe set.")],
    file: Annotated[Path | None, typer.Option("--from", help="A .jsonl or .parquet file.")] = None,
    query: Annotated[str | None, typer.Option(help="SQL over snapshots by name, instead of a file.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record a probe set: columns id, one of messages|text|token_ids, answer|answer_ids; anything else slices."""
    from snapline.cli.wiring import Home, now
    from snapline.contracts.probe import check_probes, read_probes
    from snapline.contracts.records import record_probes
    from snapline.lineage.errors import DefinitionError
    from snapline.lineage.series import Desk, select

    opened = Home.open(home)
    state = opened.state()
    desk = Desk(opened.objects(state.algorithm), now())
    if (file is None) == (query is None):
        raise DefinitionError("expected one of --from and --query", hint="Give exactly one.")
    table = read_probes(file) if file else check_probes(select(query or "", state, desk), source="the query")
    record = record_probes(name, table, opened.ledger, desk.objects, desk.now)
    document = {"name": name, "digest": record.digest, "prompts": record.count}
    Output(as_json).answer(document, f"probes {name}: {record.count} prompts\n{record.digest}")
