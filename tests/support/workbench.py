"""A whole home on a bench: real keys, ledger, objects, weights and a cut; only the engines replay logits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from journeys import flights
from safetensors.numpy import save_file

from snapline.contracts.certify import Bench, Issued, Request, certify
from snapline.contracts.engines.protocol import Batching, Cache, EngineIdentity, EngineSpec
from snapline.contracts.engines.protocol import Path as Kernels
from snapline.contracts.engines.replay import ReplayEngine
from snapline.contracts.inspection import Inspector
from snapline.contracts.logits import LogitsKeeper
from snapline.contracts.probe import check_probes
from snapline.contracts.records import contract_record, record_probes
from snapline.contracts.targets import Target, identify
from snapline.lineage.cut import parse_instant
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.documents import parse
from snapline.lineage.events import ViewDefined
from snapline.lineage.ledger import Ledger
from snapline.lineage.model import ModelVersion
from snapline.lineage.objects import ObjectStore
from snapline.lineage.observe import Depth, Lens
from snapline.lineage.register import Origin, Registration, measure, register
from snapline.lineage.series import CutOptions, Desk, SeriesOptions, take_and_record
from snapline.lineage.signing import SigningKey, TrustedKeys
from snapline.lineage.stat_cache import CLOCK_GRANULARITY_NS, StatCache
from snapline.lineage.state import State
from snapline.lineage.stores.memory import MemoryStore
from snapline.lineage.view import View, ViewDefinition

VOCABULARY, ANSWER, PROMPTS = 16, 3, 60
NOW = parse_instant("2026-11-30T12:00:00Z")
TARGET = Target(engine="transformers", dtype="bfloat16")
REFERENCE_DTYPE = "float32"
CONTRACT = """\
apiVersion: snapline/v1
kind: KernelContract
name: tiny
probes: chats
reference: {engine: transformers, dtype: float32}
serving: {engine: transformers, version: ">=5", dtype: [bfloat16, float16]}
confidence: "0.95"
paths: [prefill, decode-forced]
slices:
  - {name: all, min_prompts: 60}
numerical: {half_span: {quantile: "0.8", limit: "0.01"}}
statistical: {tv_token: "0.2", greedy_flip_rate: "0.2"}
runtime: {batch_invariance: {half_span: "0.001", at_most: "0.2"}}
"""
VIEW = """\
apiVersion: snapline/v1
kind: View
name: delays
inputs: {flights: flights}
query: SELECT * FROM flights
trainer: {argv: [python], code: [], seed: 7}
refresh: {max_delta_rows: 5000}
"""
Logits = dict[str, torch.Tensor]


def chats(count: int = PROMPTS) -> pa.Table:
    rows = [{"id": f"p{n}", "token_ids": [n % VOCABULARY, 3], "answer_ids": [1, 2, n % 5]} for n in range(count)]
    return check_probes(pa.Table.from_pylist(rows))


def reference_logits() -> Logits:
    generator = torch.Generator().manual_seed(11)
    return {f"p{n}": 4 * torch.randn(ANSWER, VOCABULARY, generator=generator) for n in range(2 * PROMPTS)}


def nearly(logits: Logits, by: float = 1e-4) -> Logits:
    """Logits of an honest engine: the reference's with a little noise."""
    generator = torch.Generator().manual_seed(12)
    return {name: rows + by * (torch.rand(rows.shape, generator=generator) - 0.5) for name, rows in logits.items()}


@dataclass
class Replayed:
    """Engines that replay: the reference's logits for its dtype, any other's for the rest.

    Attributes:
        meanwhile: What happens after both started, while they measure.
        runs: What the serving engine says of itself where that is not what was asked.
    """

    reference: Logits = field(default_factory=reference_logits)
    serving: Logits | None = None
    batched: Logits | None = None
    meanwhile: Callable[[], object] = lambda: None
    runs: Mapping[str, Any] = field(default_factory=dict)
    started: list[EngineSpec] = field(default_factory=list)

    @contextmanager
    def start(self, spec: EngineSpec, *_: object) -> Iterator[ReplayEngine]:
        self.started.append(spec)
        asked = {
            "engine": spec.engine,
            "version": identify(TARGET).version,
            "dtype": spec.dtype,
            "device": spec.device,
            "device_name": "replay",
            "vocabulary": VOCABULARY,
            "evidence_class": "cpu",
        }
        if spec.dtype == REFERENCE_DTYPE:
            yield self._replay(EngineIdentity(**asked), self.reference, self.reference)
        else:
            alone = nearly(self.reference) if self.serving is None else self.serving
            self.meanwhile()
            batched = alone if self.batched is None else self.batched
            yield self._replay(EngineIdentity(**(asked | self.runs)), alone, batched)

    def _replay(self, identity: EngineIdentity, alone: Logits, batched: Logits) -> ReplayEngine:
        ways = {Batching.ALONE: alone, Batching.BATCHED: batched}
        return ReplayEngine(identity, {(path, way, Cache.COLD): ways[way] for path in Kernels for way in Batching})


class NoEngines:
    """Engines that nobody may start."""

    def start(self, spec: EngineSpec, *_: object) -> Any:
        raise AssertionError(f"nothing needed to be measured, but {spec.engine} was started")


class Home:
    """A registered model with a cut, its contract's file, and a probe set."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "trusted").mkdir(parents=True)
        self.key = SigningKey.create(root / "signing.key")
        self.trusted = TrustedKeys({self.key.key_id: self.key.public})
        self.objects = ObjectStore(root / "objects", BulkAlgorithm.BLAKE3)
        self.ledger = Ledger(MemoryStore(), self.key, self.trusted, root / "head.json")
        self.contract = root / "contract.yaml"
        self.contract.write_text(CONTRACT)
        self.source = root / "flights.parquet"
        pq.write_table(flights(100), self.source)
        self.weights = self.write_weights("weights", 1)
        time.sleep(2 * CLOCK_GRANULARITY_NS / 1e9)
        self.probes(chats())
        self._cut_and_define()

    def write_weights(self, name: str, content: int) -> Path:
        folder = self.root / name
        folder.mkdir()
        save_file({"weights": np.full(8, content, dtype=np.float32)}, folder / "model.safetensors")
        return folder

    def _cut_and_define(self) -> None:
        columns = SeriesOptions(str(self.source), "dep_time", "arr_known", None, "flight_id", "day")
        window = CutOptions("2013-01-01", "2013-01-05")
        take_and_record("flights", columns, window, self.ledger, Desk(self.objects, NOW))
        self.define(VIEW)

    def define(self, text: str) -> None:
        view = View(definition=parse(text, ViewDefinition, name="view.yaml"), code=(), environment=None)
        self.ledger.commit(lambda _state: [ViewDefined(at=NOW, view=view)])

    def probes(self, table: pa.Table, name: str = "chats") -> None:
        record_probes(name, table, self.ledger, self.objects, NOW)

    def register(self, folder: Path | None = None, *, name: str = "assistant", bound: bool = True) -> ModelVersion:
        weights = measure(folder or self.weights, self.objects, self.cache, False, lambda *_: None)
        contract = self.record() if bound else None
        registration = Registration(name, weights, Origin("delays", ("flights",)), contract)
        return register(registration, self.ledger, NOW)

    def record(self, text: str | None = None) -> Any:
        return contract_record(text or str(self.contract), self.state, self.objects, NOW)

    @property
    def state(self) -> State:
        return self.ledger.state()

    @property
    def cache(self) -> StatCache:
        return StatCache(self.root / "cache.db", now_ns=time.time_ns())

    def inspector(self, depth: Depth | None = None, *, at: datetime = NOW) -> Inspector:
        return Inspector(self.state, Lens(self.objects, self.cache, at), self.trusted, depth or Depth())

    def certify(self, model: ModelVersion, engines: Any, keeper: LogitsKeeper | None = None, **wanted: Any) -> Issued:
        request = {"target_name": "production", "target": TARGET, "contract": None, "probes": None} | wanted
        request["contract"] = request["contract"] or self.record()
        at = NOW + timedelta(seconds=len(self.ledger.entries()))
        bench = Bench(self.inspector(at=at), self.ledger, engines, self.key, at, lambda *_: None, keeper)
        return certify(Request(model=model, **request), bench)

    def edit(self, *replacements: tuple[str, str]) -> None:
        """Edit the contract's file."""
        text = self.contract.read_text()
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        self.contract.write_text(text)


def kinds(causes: Sequence[Any]) -> list[str]:
    return [cause.change.name for cause in causes]
