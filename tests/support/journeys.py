"""Run the command line as a person does, and the small flights table the journeys are made on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

ROOT = Path(__file__).parents[2]
TRAINER = """
import json, os, pathlib
import numpy, pyarrow.parquet as pq
from safetensors.numpy import save_file
rows = pq.read_table(os.environ["SNAPLINE_TRAINING_DATA"])
parameters = json.loads(os.environ["SNAPLINE_PARAMETERS"])
seed = int(os.environ["SNAPLINE_SEED"])
print("training on", rows.num_rows, "rows")
delays = rows["dep_delay"].to_numpy()
weights = numpy.array([delays.mean(), rows.num_rows, seed, float(parameters["scale"])], dtype=numpy.float32)
save_file({"weights": weights}, pathlib.Path(os.environ["SNAPLINE_OUTPUT"]) / "model.safetensors")
"""
VIEW = """
apiVersion: snapline/v1
kind: View
name: delays
inputs: {flights: flights}
query: SELECT * FROM flights WHERE dep_delay IS NOT NULL
trainer: {argv: [python, train.py], code: [train.py], parameters: {scale: "2"}, seed: 7}
refresh: {max_age: 36500d, max_delta_rows: 5000, on_restatement: block, on_erasure: block}
"""


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Snapline:
    """Runs `snapline` in a folder; every call is a process of its own."""

    folder: Path
    environment: Mapping[str, str]

    def __call__(self, *arguments: str | Path, timeout: float = 600) -> Answer:
        done = self.start(*arguments)
        out, err = done.communicate(timeout=timeout)
        return Answer(done.returncode, out, err)

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "snapline.cli", *map(str, arguments)]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=dict(self.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ok(self, *arguments: str | Path) -> Any:
        """Run with --json, insist on exit 0, and return the document."""
        answer = self(*arguments, "--json")
        assert answer.code == 0, f"{arguments} exited {answer.code}\n{answer.out}\n{answer.err}"
        return answer.json

    @property
    def home(self) -> Path:
        return self.folder / ".snapline"


def flights(rows: int = 2000) -> pa.Table:
    """A small table of the example's shape: ten rows an hour, each known two hours after its event."""
    start = 1_356_998_400_000_000  # 2013-01-01T00:00:00Z in microseconds
    events = [start + index * 360_000_000 for index in range(rows)]
    return pa.table(
        {
            "flight_id": pa.array(range(1, rows + 1), pa.int64()),
            "dep_time": pa.array(events, pa.timestamp("us", "UTC")),
            "arr_known": pa.array([event + 7_200_000_000 for event in events], pa.timestamp("us", "UTC")),
            "dep_delay": pa.array([None if index % 50 == 0 else float(index % 37) for index in range(rows)]),
        }
    )
