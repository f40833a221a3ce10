"""`snapline bench`: what waiting for Snapline costs, beside what one would run instead, as ratios in one run."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output

if TYPE_CHECKING:
    import pyarrow as pa

REPEATS = 5
ROWS = 200_000


def bench(
    model: Annotated[str | None, typer.Argument(help="A registered model to time the gate on; default none.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time start-up, the gate and the content digest against bare Python, MLflow and DuckDB."""
    output = Output(as_json)
    with output.progress("bench") as on_progress:
        on_progress("starting programs", 0, 2)
        rows = _programs(model, home)
        on_progress("digesting rows", 1, 2)
        rows += _digests()
    lines = [f"{row['what']:<44} {row['seconds']:8.3f} s   {row['ratio']:6.2f}x {row['against']}" for row in rows]
    output.answer({"repeats": REPEATS, "results": rows}, "\n".join(lines))


def _programs(model: str | None, home: Path | None) -> list[dict[str, Any]]:
    """Return whole-process times; each ratio is to bare Python's own start."""
    snapline = [sys.executable, "-m", "snapline.cli"]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "snapline --help": [*snapline, "--help"],
        "mlflow --help": [sys.executable, "-m", "mlflow", "--help"],
    }
    if model is not None:
        commands["snapline gate"] = [*snapline, "gate", model, *(["--home", str(home)] if home else [])]
    run = partial(subprocess.run, capture_output=True, check=False)
    times = {name: _median(partial(run, argv)) for name, argv in commands.items()}
    return [_row(name, seconds, times["python -c pass"], "python -c pass") for name, seconds in times.items()]


def _digests() -> list[dict[str, Any]]:
    """Return the time to digest a table's full content; each ratio is to DuckDB's md5 over JSON rows."""
    from snapline.lineage.cut import Bucket
    from snapline.lineage.digest import BulkAlgorithm
    from snapline.lineage.fingerprint import fingerprint
    from snapline.lineage.query import run_view

    table = _table()
    md5 = "SELECT sum((md5_number(to_json(t)) % 9223372036854775783)::HUGEINT) AS digest FROM t"
    times = {
        f"DuckDB md5 of JSON rows, one thread, {ROWS} rows": _median(lambda: run_view(md5, {"t": table}, [])),
        f"snapline digest, one thread, {ROWS} rows": _median(
            lambda: fingerprint(table, time="time", key="key", bucket=Bucket.DAY, algorithm=BulkAlgorithm.BLAKE3)
        ),
    }
    baseline = next(iter(times.values()))
    return [_row(name, seconds, baseline, "DuckDB md5") for name, seconds in times.items()]


def _table() -> pa.Table:
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(0)
    return pa.table(
        {
            "key": random.permutation(ROWS),
            "time": pa.array(random.integers(0, 90 * 86_400, ROWS) * 1_000_000, pa.timestamp("us", "UTC")),
            **{f"f{n}": random.normal(size=ROWS) for n in range(4)},
            "text": [f"row {n % 977}" for n in range(ROWS)],
        }
    )


def _median(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _row(what: str, seconds: float, baseline: float, against: str) -> dict[str, Any]:
    return {"what": what, "seconds": seconds, "ratio": seconds / baseline, "against": against}
