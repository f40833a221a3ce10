"""`snapline bench`: what Snapline costs, beside what one would run instead, as ratios in one run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output

if TYPE_CHECKING:
    from snapline.cli.benchmarks.measuring import Row

OutOption = Annotated[Path | None, typer.Option("--out", help="Also write the results into this JSON file.")]

app = typer.Typer(help="What Snapline costs, beside what one would run instead.", invoke_without_command=True)


@app.callback()
def programs(
    context: typer.Context,
    model: Annotated[str | None, typer.Option("--gate", help="A registered model to time the gate on.")] = None,
    home: HomeOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time start-up and the gate against bare Python and MLflow."""
    if context.invoked_subcommand is not None:
        return
    from snapline.cli.benchmarks.programs import measure

    output = Output(as_json)
    with output.progress("bench") as on_progress:
        on_progress("starting programs", 0, 1)
        rows = measure(model, home)
    _answer(output, rows, out)


@app.command("lineage")
def lineage(
    rows: Annotated[int, typer.Option(min=1000, help="Rows of the table that is digested.")] = 10_000_000,
    streamed: Annotated[
        int, typer.Option(min=1000, help="Rows of the table that is streamed through, never held whole.")
    ] = 100_000_000,
    models: Annotated[int, typer.Option(min=100, help="Models of the graph that impact is asked of.")] = 100_000,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time digests, re-verifying and impact queries, and measure the memory they peak at."""
    from snapline.cli.benchmarks.digests import measure as measure_digests
    from snapline.cli.benchmarks.impact import measure as measure_impact
    from snapline.cli.benchmarks.memory import measure as measure_memory
    from snapline.cli.benchmarks.reverify import measure as measure_reverifying

    output = Output(as_json)
    work: dict[str, Callable[[], list[Row]]] = {
        "digesting rows": lambda: measure_digests(rows),
        "peak memory": lambda: measure_memory(rows, streamed),
        "re-verifying": lambda: measure_reverifying(rows),
        "impact": lambda: measure_impact(models, 10 * models),
    }
    found: list[Row] = []
    with output.progress("bench lineage") as on_progress:
        for done, (what, measure) in enumerate(work.items()):
            on_progress(what, done, len(work))
            found += measure()
    _answer(output, found, out)


@app.command("soundness")
def soundness(
    contracts: Annotated[
        int, typer.Option(min=10, help="Simulated contracts for each estimator and kind of traffic.")
    ] = 10_000,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate how often each estimator certifies a violated clause, and how many prompts it needs."""
    from snapline.cli.benchmarks.soundness import measure

    output = Output(as_json)
    with output.progress("bench soundness") as on_progress:
        rows = measure(contracts, on_progress)
    _answer(output, rows, out)


@app.command("kernel")
def kernel(
    model: Annotated[
        Path | None,
        typer.Option("--model", help="A checkpoint folder to take full-vocabulary logits out of vLLM with."),
    ] = None,
    rows: Annotated[int, typer.Option(min=2, help="Pairs of rows of logits that are compared.")] = 64,
    vocabulary: Annotated[int, typer.Option(min=8, help="Logits in a row.")] = 151_936,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time comparing rows of logits and getting them out of vLLM, beside what one would write instead."""
    from snapline.cli.benchmarks.capture import measure as measure_capture
    from snapline.cli.benchmarks.kernels import measure as measure_kernels

    output = Output(as_json)
    with output.progress("bench kernel") as on_progress:
        on_progress("comparing rows", 0, 2)
        found = measure_kernels(rows, vocabulary)
        on_progress("vLLM", 1, 2)
        found += measure_capture(model)
    _answer(output, found, out)


def _answer(output: Output, rows: list[Row], out: Path | None) -> None:
    document = {"results": [row.document() for row in rows]}
    if out:
        out.write_text(json.dumps(document, indent=2) + "\n")
    output.answer(document, "\n".join(row.line() for row in rows))
