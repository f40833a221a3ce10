"""`snapline query`: SQL over everything the ledger knows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output
from snapline.cli.past import AtEntryOption, AtOption, past

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from snapline.cli.wiring import Home
    from snapline.lineage.past import Past

FORMATS = ("table", "json", "csv", "parquet", "arrow")
BINARY = ("parquet", "arrow")


def query(
    sql: Annotated[str | None, typer.Argument(help="One SELECT in DuckDB's dialect.")] = None,
    form: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",
    to: Annotated[Path | None, typer.Option("--output", help="Write the answer to this file.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Show the tables and their columns instead.")] = False,
    at: AtOption = None,
    at_entry: AtEntryOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask SQL about models, versions, snapshots, buckets, views, certificates, findings, events, edges and evidence.

    The database is made for the question: it can be read, and reaches no file and no network.
    """
    from snapline.cli.files import write
    from snapline.cli.wiring import Home
    from snapline.lineage import query as database
    from snapline.lineage.catalogue import mentioned
    from snapline.lineage.errors import DefinitionError

    if form not in FORMATS:
        raise DefinitionError(
            f"expected the format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, found {form!r}", hint="Name one of them."
        )
    form = "json" if as_json else form
    output = Output(form == "json")
    if schema or sql is None:
        if sql is not None or not schema:
            raise DefinitionError("expected a query or --schema", hint='snapline query "SELECT * FROM versions"')
        output.answer(*_schema())
        return
    if form in BINARY and to is None and sys.stdout.isatty():
        raise DefinitionError(f"{form} is not for a terminal", hint="Name a file with --output, or redirect.")
    opened = Home.open(home)
    makers = _tables(opened, past(opened, at, at_entry, output))
    answer = database.select(sql, {name: makers[name]() for name in mentioned(sql, makers)})
    if to is not None:
        write(to, _encoded(answer, form))
        output.note(f"{answer.num_rows} rows written to {to}")
    elif form == "table":
        output.answer({}, lambda console: _print(console, answer))
    else:
        sys.stdout.buffer.write(_encoded(answer, form))
        sys.stdout.buffer.flush()


def _tables(opened: Home, then: Past) -> Mapping[str, Callable[[], pa.Table]]:
    """Return how to make every table that can be asked, by name."""
    from snapline.cli.impact import manifest_reader
    from snapline.contracts import catalogue as measured
    from snapline.contracts import certificate
    from snapline.lineage import catalogue as recorded
    from snapline.lineage.events import Attested

    state, objects = then.state, opened.objects(then.state.algorithm)

    def read(attested: Attested) -> certificate.Certificate:
        return certificate.read(objects.read(attested.envelope), opened.trusted)

    @cache
    def pairs() -> list[measured.Pair]:
        return measured.certificates_of(state, read)

    facts = recorded.Facts(state, then.records, manifest_reader(opened, state))
    return {**recorded.tables(facts), **measured.tables(pairs, objects)}


def _schema() -> tuple[dict[str, Any], str]:
    """Return the documented schema as a document and as text."""
    from snapline.contracts import catalogue as measured
    from snapline.lineage import catalogue as recorded

    document: dict[str, Any] = {"tables": []}
    lines: list[str] = []
    for table in (*recorded.SCHEMA, *measured.SCHEMA):
        columns = [{"name": c.name, "type": c.type, "meaning": c.meaning} for c in table.columns]
        document["tables"].append({"name": table.name, "meaning": table.meaning, "columns": columns})
        lines += [f"{table.name}: {table.meaning}"]
        lines += [f"  {column.name:<21} {column.type:<25} {column.meaning}" for column in table.columns] + [""]
    return document, "\n".join(lines)


def _encoded(answer: pa.Table, form: str) -> bytes:
    """Return an answer's bytes in a format; what `table` shows is written as CSV."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from snapline.lineage.plain import as_csv, as_json

    if form == "json":
        return as_json(answer).encode()
    if form not in BINARY:
        return as_csv(answer).encode()
    sink = pa.BufferOutputStream()
    if form == "parquet":
        pq.write_table(answer, sink, compression="zstd")
    else:
        with pa.ipc.new_stream(sink, answer.schema) as stream:
            stream.write_table(answer)
    return bytes(sink.getvalue().to_pybytes())


def _print(console: Console, answer: pa.Table) -> None:
    from rich import box
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    from snapline.lineage.plain import text_of

    table = Table(*map(escape, answer.column_names), box=box.SIMPLE_HEAD, pad_edge=False)
    for row in zip(*(column.to_pylist() for column in answer.columns), strict=True):
        table.add_row(*(Text(text_of(value)) for value in row))
    if not console.is_terminal:
        # Whoever reads lines should find a row on each, however wide it is.
        roomy = console.options.update(width=sys.maxsize)
        console.width = max(console.width, Measurement.get(console, roomy, table).maximum)
    console.print(table)
    console.print(f"{answer.num_rows} row{'' if answer.num_rows == 1 else 's'}")
