"""`snapline snapshot`: take a cut of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.diff import diff
from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output

if TYPE_CHECKING:
    from snapline.lineage.snapshot import Snapshot

SPELLINGS = (
    "PATH or s3://... of Parquet, delta:PATH, iceberg:CATALOG#TABLE, duckdb:FILE#TABLE, attach:sqlite:FILE#TABLE, "
    "attach:postgres:DSN#TABLE or ducklake:FILE#TABLE."
)

app = typer.Typer(help="Time-bounded snapshots of tables.", no_args_is_help=True)
app.command("diff")(diff)


@app.callback()
def snapshots() -> None:
    """Time-bounded snapshots of tables."""


@app.command("take")
def take(
    name: Annotated[str, typer.Argument(help="Name of the series.")],
    source: Annotated[str | None, typer.Option(help=SPELLINGS)] = None,
    time: Annotated[str | None, typer.Option(help="Column with each row's event time.")] = None,
    known: Annotated[str | None, typer.Option(help="Column with the time each row became known.")] = None,
    known_until: Annotated[str | None, typer.Option(help="Column with the time a row stopped being true.")] = None,
    key: Annotated[str | None, typer.Option(help="Column that orders rows.")] = None,
    since: Annotated[str | None, typer.Option("--from", help="First instant of the window.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="First instant after the window.")] = None,
    as_of: Annotated[str | None, typer.Option(help="Rows known later are left out; default now.")] = None,
    version: Annotated[str | None, typer.Option(help="The source's own name of a commit; default the newest.")] = None,
    bucket: Annotated[str | None, typer.Option(help="hour, day, week, month or year; default day.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Digest every row inside a half-open window and record the snapshot.

    The first take of a name fixes source, columns and bucket; later takes move only the window.
    """
    from snapline.cli.wiring import Home, now
    from snapline.lineage.series import CutOptions, Desk, SeriesOptions, take_and_record
    from snapline.lineage.sources.opening import normalise

    output, opened = Output(as_json), Home.open(home)
    objects = opened.objects(opened.state().algorithm)
    place = normalise(source, Path.cwd()) if source else None
    series = SeriesOptions(source=place, time=time, known=known, known_until=known_until, key=key, bucket=bucket)
    cut = CutOptions(since=since, until=until, as_of=as_of, version=version)
    with output.progress(f"take {name}") as on_progress:
        taken = take_and_record(name, series, cut, opened.ledger, Desk(objects, now(), on_progress))
    output.answer(*describe(taken))


def describe(taken: Snapshot) -> tuple[dict[str, Any], str]:
    """Return a snapshot as a document and as text."""
    name = taken.series.name
    document = {
        "name": name,
        "id": taken.id,
        "digest": taken.digest,
        "rows": taken.rows,
        "buckets": taken.buckets,
        "from": taken.cut.since.isoformat(),
        "until": taken.cut.until.isoformat(),
        "as_of": taken.cut.as_of.isoformat() if taken.cut.as_of else None,
        "commit": taken.commit.id,
    }
    return document, f"{name}@{taken.id[:12]}  {taken.rows} rows in {taken.buckets} buckets\n{taken.digest}"
