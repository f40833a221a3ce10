"""`snapline snapshot`: take a cut of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output

app = typer.Typer(help="Time-bounded snapshots of tables.", no_args_is_help=True)


@app.callback()
def snapshots() -> None:
    """Time-bounded snapshots of tables."""


@app.command("take")
def take(
    name: Annotated[str, typer.Argument(help="Name of the series.")],
    source: Annotated[Path | None, typer.Option(help="A Parquet file or a folder of them.")] = None,
    time: Annotated[str | None, typer.Option(help="Column with each row's event time.")] = None,
    known: Annotated[str | None, typer.Option(help="Column with the time each row became known.")] = None,
    key: Annotated[str | None, typer.Option(help="Column that orders rows.")] = None,
    since: Annotated[str | None, typer.Option("--from", help="First instant of the window.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="First instant after the window.")] = None,
    as_of: Annotated[str | None, typer.Option(help="Rows known later are left out; default now.")] = None,
    bucket: Annotated[str | None, typer.Option(help="hour, day, week, month or year; default day.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Digest every row inside a half-open window and record the snapshot.

    The first take of a name fixes source, columns and bucket; later takes move only the window.
    """
    from snapline.cli.wiring import Home, now
    from snapline.lineage.series import CutOptions, SeriesOptions, take_and_record

    opened = Home.open(home)
    state = opened.state()
    series = SeriesOptions(
        source=str(source.resolve()) if source else None, time=time, known=known, key=key, bucket=bucket
    )
    taken = take_and_record(
        name,
        series,
        CutOptions(since=since, until=until, as_of=as_of),
        opened.ledger,
        opened.objects(state.algorithm),
        now(),
    )
    document = {
        "name": name,
        "id": taken.id,
        "digest": taken.digest,
        "rows": taken.rows,
        "buckets": taken.buckets,
        "from": taken.cut.since.isoformat(),
        "until": taken.cut.until.isoformat(),
        "as_of": taken.cut.as_of.isoformat() if taken.cut.as_of else None,
    }
    text = f"{name}@{taken.id[:12]}  {taken.rows} rows in {taken.buckets} buckets\n{taken.digest}"
    Output(as_json).answer(document, text)
