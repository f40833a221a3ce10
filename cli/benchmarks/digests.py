"""What the content digest costs, beside what one would do instead on the same rows and the same cores."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from snapline.cli.benchmarks import tables
from snapline.cli.benchmarks.measuring import Row, median_seconds
from snapline.lineage.cut import Bucket
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.rows.fingerprint import fingerprint

if TYPE_CHECKING:
    import pandas

THREADS = 2
MD5 = "SELECT sum((md5_number(to_json(t)) >> 64)::HUGEINT) FROM t"
TWO_SEEDS = "SELECT sum(hash(t)), sum(hash(t, 1)) FROM t"
ORDERED, SHUFFLED = "rows in key order", "rows shuffled"


def measure(rows: int) -> list[Row]:
    """Return the rate of each digest, in million rows a second, and its ratio to DuckDB's md5 of JSON rows."""
    table = pa.concat_tables(tables.ordered(rows)).combine_chunks()
    mixed = tables.shuffled(table).combine_chunks()
    rates = {name: rows / median_seconds(work) / 1e6 for name, work in _contenders(table, mixed).items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        pq.write_table(table, path)
        rates |= {name: rows / median_seconds(work) / 1e6 for name, work in _of_files(path).items()}
    md5, raw = rates["DuckDB sum(md5 of JSON rows)"], rates["BLAKE3 of raw Arrow buffers, not canonical"]
    ours, sorted_ = rates[f"Snapline, {SHUFFLED}"], rates[f"Snapline, {ORDERED}"]
    targets = {
        f"Snapline, {SHUFFLED}": ("at least 2x DuckDB md5", ours >= 2 * md5),
        f"Snapline, {ORDERED}": ("6x DuckDB md5, a third of raw BLAKE3", sorted_ >= 6 * md5 and 3 * sorted_ >= raw),
    }
    return [
        Row("digest", name, rate, "Mrows/s", rate / md5, "DuckDB md5", *targets.get(name, ("", None)))
        for name, rate in rates.items()
    ]


def _contenders(table: pa.Table, mixed: pa.Table) -> dict[str, Callable[[], object]]:
    import duckdb
    import pandas

    database = duckdb.connect(config={"threads": THREADS})
    database.register("arrow", table)
    database.execute("CREATE TABLE t AS SELECT * FROM arrow")  # twice as fast as scanning Arrow
    frame = table.to_pandas()
    return {
        "DuckDB sum(md5 of JSON rows)": lambda: database.execute(MD5).fetchall(),
        "DuckDB sum(hash()) with two seeds, not cryptographic": lambda: database.execute(TWO_SEEDS).fetchall(),
        "BLAKE3 of raw Arrow buffers, not canonical": lambda: _raw(table),
        "pandas hash_pandas_object, one core": lambda: pandas.util.hash_pandas_object(frame, index=False).sum(),
        f"MLflow dataset digest: {_blind_spot(frame)}": lambda: _mlflow(frame),
        f"Snapline, {SHUFFLED}": lambda: _digest(mixed),
        f"Snapline, {ORDERED}": lambda: _digest(table),
    }


def _of_files(path: Path) -> dict[str, Callable[[], object]]:
    return {
        "MD5 of the Parquet file, as DVC keeps it": lambda: hashlib.file_digest(path.open("rb"), "md5").hexdigest(),
        "sha256sum of the Parquet file": lambda: subprocess.run(["sha256sum", path], capture_output=True, check=True),
    }


def _digest(table: pa.Table) -> str:
    return fingerprint(table, time="time", key="key", bucket=Bucket.DAY, algorithm=BulkAlgorithm.BLAKE3).digest


def _raw(table: pa.Table) -> str:
    state = blake3(max_threads=THREADS)
    for column in table.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                if buffer is not None:
                    state.update(memoryview(buffer))
    return state.hexdigest()


def _mlflow(frame: pandas.DataFrame) -> str:
    import mlflow.data

    return str(mlflow.data.from_pandas(frame).digest)


def _blind_spot(frame: pandas.DataFrame) -> str:
    """Return whether MLflow's digest sees that the last row has another count."""
    other = frame.copy()
    other.loc[len(other) - 1, "count"] += 1
    return "an edit of the last row goes unseen" if _mlflow(other) == _mlflow(frame) else "sees the last row"
