"""Run the command line as a person does, and the small flights table the journeys are made on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


GENERATOR = """
import os, pathlib
import pyarrow.parquet as pq
from tiny_model import write_tiny_model
print("writing a model about", pq.read_table(os.environ["SNAPLINE_TRAINING_DATA"]).num_rows, "rows")
write_tiny_model(pathlib.Path(os.environ["SNAPLINE_OUTPUT"]))
"""
CONTRACT = """
# What a float32 engine on this model can honestly promise.
apiVersion: snapline/v1
kind: KernelContract
name: tiny
probes: chats
reference: {engine: transformers, dtype: float32}
serving: {engine: vllm, version: ">=0.30,<0.34", dtype: [float32, bfloat16]}
confidence: "0.95"
paths: [prefill, decode-forced]
slices:
  - {name: all, min_prompts: 60}
numerical: {half_span: {quantile: "0.8", limit: "0.001"}}
statistical: {tv_token: "0.2", greedy_flip_rate: "0.2"}
runtime: {batch_invariance: {half_span: "0.001", at_most: "0.2"}}
"""
TARGETS = "production: {engine: vllm, dtype: float32}\n"


def token_probes(count: int = 60) -> list[dict[str, Any]]:
    """Probes as token ids of the tiny model's vocabulary: eight to fifteen tokens asked, four answered."""
    return [
        {
            "id": f"p{n}",
            "token_ids": [0, *((7 * n + 11 * k) % 990 + 5 for k in range(8 + n % 8))],
            "answer_ids": [(13 * n + 17 * k) % 990 + 5 for k in range(4)],
            "long": n % 8 >= 4,
        }
        for n in range(count)
    ]


@contextmanager
def flipped(path: Path, place: int = -3) -> Iterator[None]:
    """Flip one bit of a file in place for a while, with its times put back as a careful forger would."""

    def flip() -> None:
        stat = path.stat()
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    flip()
    try:
        yield
    finally:
        flip()


@contextmanager
def replaced(path: Path, text: str) -> Iterator[None]:
    """Write another text into a file for a while."""
    kept = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(kept)
