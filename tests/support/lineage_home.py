"""Lineage without a command line: a real ledger in memory, real objects, a real Parquet source and real weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from snapline.lineage.definitions import define_and_record
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.events import Recorded
from snapline.lineage.ledger import Ledger
from snapline.lineage.materialize import Tools, Workshop, materialize
from snapline.lineage.model import ModelVersion, Weights
from snapline.lineage.objects import ObjectStore
from snapline.lineage.observe import Depth, Lens, Observation, observe
from snapline.lineage.register import Origin, Registration, measure, register
from snapline.lineage.series import CutOptions, Desk, SeriesOptions, take_and_record
from snapline.lineage.signing import SigningKey, TrustedKeys
from snapline.lineage.snapshot import Snapshot
from snapline.lineage.state import State
from snapline.lineage.stores.memory import MemoryStore
from snapline.lineage.view import View

DAY = timedelta(days=1)
START = datetime(2013, 1, 1, tzinfo=UTC)
NOW = datetime(2013, 6, 1, 12, tzinfo=UTC)
WINDOW = CutOptions(since="2013-01-01", until="2013-01-04")
AS_LAST, EXTERNAL, QUICK = CutOptions(), Origin(), Depth()
SCHEMA = pa.schema(
    [("at", pa.timestamp("us", "UTC")), ("seen", pa.timestamp("us", "UTC")), ("id", pa.int64()), ("delay", pa.int64())]
)
TRAINER = """
import hashlib, json, os, pathlib, struct
print("training", flush=True)
content = hashlib.sha256(pathlib.Path(os.environ["SNAPLINE_TRAINING_DATA"]).read_bytes()).digest()[:8]
header = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
output = pathlib.Path(os.environ["SNAPLINE_OUTPUT"]) / "model.safetensors"
output.write_bytes(struct.pack("<Q", len(header)) + header + content)
"""
VIEW = """
apiVersion: snapline/v1
kind: View
name: delays
inputs: {trips: trips}
query: SELECT * FROM trips
trainer: {argv: [python, train.py], code: [train.py], seed: 7}
refresh: {max_age: 36500d}
"""


class LineageHome:
    """Everything lineage works with, in one folder, at one instant."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = ObjectStore(folder / "objects", BulkAlgorithm.BLAKE3)
        self.store = MemoryStore()
        self.key = SigningKey.create(folder / "signing.key")
        self.ledger = self.open(self.store)
        self.source = folder / "trips.parquet"
        self.rows: list[dict[str, Any]] = [
            {"at": START + n * DAY / 2, "seen": START + n * DAY / 2 + DAY / 24, "id": n, "delay": n} for n in range(8)
        ]
        self.write()
        self.heard: list[str] = []

    def open(self, store: MemoryStore) -> Ledger:
        trusted = TrustedKeys({self.key.key_id: self.key.public})
        return Ledger(store, self.key, trusted, self.folder / "head.json")

    @property
    def state(self) -> State:
        return self.ledger.state()

    def write(self) -> None:
        """Write the rows as they are now: six in the window, two a day, and two after it."""
        pq.write_table(pa.Table.from_pylist(self.rows, schema=SCHEMA), self.source)

    def options(self, **said: str | None) -> SeriesOptions:
        return SeriesOptions(**({"source": str(self.source), "time": "at", "known": "seen", "key": "id"} | said))

    def take(
        self, name: str = "trips", series: SeriesOptions | None = None, cut: CutOptions = WINDOW, now: datetime = NOW
    ) -> Snapshot:
        series = self.options() if series is None and name not in self.state.series else series or SeriesOptions()
        return take_and_record(name, series, cut, self.ledger, Desk(self.objects, now))

    def define(self, text: str = VIEW, trainer: str = TRAINER) -> View:
        (self.folder / "train.py").write_text(trainer)
        file = self.folder / "view.yaml"
        file.write_text(text)
        return define_and_record(file, self.ledger, self.objects, NOW)

    def weights(self, content: int, place: str = "") -> Weights:
        folder = self.folder / (place or f"weights{content}")
        folder.mkdir(exist_ok=True)
        save_file({"w": np.full(4, content, np.float32)}, folder / "model.safetensors")
        return measure(folder, self.objects, None, False, lambda *_: None)

    def register(
        self, name: str, content: int, origin: Origin = EXTERNAL, contract: Recorded | None = None
    ) -> ModelVersion:
        return register(Registration(name, self.weights(content), origin, contract), self.ledger, NOW)

    def materialize(
        self,
        *,
        cut: CutOptions = AS_LAST,
        on_output: Callable[[str], None] | None = None,
        on_progress: Callable[[str, int, int], None] = lambda *_: None,
    ) -> ModelVersion:
        workshop = Workshop(self.folder, sys.executable, {}, on_output or self.heard.append, on_progress)
        return materialize("delays", cut, None, self.ledger, workshop, Tools(self.objects, None, NOW))

    def observe(self, model: ModelVersion, depth: Depth = QUICK, now: datetime = NOW) -> Observation:
        return observe(model, self.state, Lens(self.objects, None, now), depth)

    def damage(self, address: str) -> None:
        path = self.objects.path(address)
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-1] + b"!")
