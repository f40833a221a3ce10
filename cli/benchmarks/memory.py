"""How much memory digesting takes at its peak, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from snapline.cli.benchmarks.measuring import Row

GIB = 1 << 30
ORDERED, SCATTERED = "ordered", "scattered"


def measure(rows: int, streamed: int) -> list[Row]:
    """Return peak resident memory in GiB, and how fast rows went through."""
    found = []
    for order, count, limit in ((SCATTERED, rows, 1.5), (ORDERED, streamed, 2.0)):
        peak, seconds = _child(order, count)
        name = f"Snapline, {count:,} rows streamed, {order}"
        found += [
            Row("memory", name, peak, "GiB", target=f"under {limit} GiB", met=peak < limit),
            Row("memory", f"{name}: with making the rows", count / seconds / 1e6, "Mrows/s"),
        ]
    return found


def _child(order: str, rows: int) -> tuple[float, float]:
    """Return the peak memory in GiB and the seconds that streaming a table took."""
    argv = [sys.executable, "-m", "snapline.cli.benchmarks.memory", order, str(rows)]
    answer = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    return answer["peak_bytes"] / GIB, answer["seconds"]


def _stream(order: str, rows: int) -> None:
    import tempfile
    import time

    from snapline.cli.benchmarks import tables
    from snapline.lineage.cut import Bucket
    from snapline.lineage.digest import BulkAlgorithm
    from snapline.lineage.rows.encoding import plain
    from snapline.lineage.rows.streaming import Layout, fingerprint_stream

    make = tables.ordered if order == ORDERED else tables.scattered
    layout = Layout(plain(tables.SCHEMA.empty_table()).schema, "time", "key", Bucket.DAY)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        fingerprint_stream(make(rows), layout, BulkAlgorithm.BLAKE3, Path(scratch))
    sys.stdout.write(json.dumps({"peak_bytes": _peak_bytes(), "seconds": time.monotonic() - started}))


def _peak_bytes() -> int:
    """Return this program's peak resident memory; `ru_maxrss` would count what the parent had before the start."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    _stream(sys.argv[1], int(sys.argv[2]))
