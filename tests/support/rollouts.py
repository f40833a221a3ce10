"""A rollout on the workbench: a real ledger and contract, logs made to measure, and a reference that replays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from serving_logs import FIRST, requests, write_jsonl
from workbench import TARGET, Home

from snapline.contracts.engines.protocol import Batching, Cache, EngineIdentity, EngineSpec
from snapline.contracts.engines.protocol import Path as Kernels
from snapline.contracts.engines.replay import ReplayEngine
from snapline.contracts.gate import GateDecision, basis_of
from snapline.contracts.rollout import stages
from snapline.contracts.rollout.look import Bench, Look, observe
from snapline.contracts.rollout.stages import Advance, Course, Desk, course
from snapline.lineage.events import Attested
from snapline.lineage.invalidation import Why
from snapline.lineage.model import ModelVersion

CONTRACT = """\
apiVersion: snapline/v1
kind: KernelContract
name: tiny
probes: chats
reference: {engine: transformers, dtype: float32}
serving: {engine: transformers, version: ">=5", dtype: [bfloat16, float16]}
temperature: "2"
confidence: "0.95"
paths: [prefill, decode-sampled]
slices:
  - {name: all, min_prompts: 20}
  - {name: german, where: "language = 'de'", min_prompts: 20}
statistical: {tv_answer: "0.2"}
observability: {log: [sampled_logprob, margin], max_age: 1d}
escalation:
  - {when: refuted, do: [log, alert, {route_slice: reference}, demote, block], cool_down: 1h}
  - {when: undecided, do: [hold, remeasure], cool_down: 10m}
stages:
  shadow: {traffic: "0.5", min_requests: 40}
  canary: {traffic: "0.05", min_requests: 40}
  full: {monitor: "0.5"}
"""
KERNEL = "blake3-object-v1:" + "7" * 64
TARGET_DIGEST = "sha256-target-v1:" + "8" * 64
MINUTE = timedelta(minutes=1)


@dataclass
class Reference:
    """A reference that replays logits by request id, and counts how often it was started."""

    logits: Mapping[str, torch.Tensor] = field(default_factory=dict)
    started: list[EngineSpec] = field(default_factory=list)

    @contextmanager
    def start(self, spec: EngineSpec, *_: Any) -> Iterator[ReplayEngine]:
        self.started.append(spec)
        identity = EngineIdentity(spec.engine, "1", spec.dtype, spec.device, "replay", 16, "cpu")
        yield ReplayEngine(identity, {(Kernels.PREFILL, Batching.BATCHED, Cache.COLD): self.logits})


class Rolling:
    """A rollout named `r` of a registered version; time is what the test says."""

    def __init__(self, root: Path, contract: str = CONTRACT) -> None:
        self.home = Home(root)
        self.home.contract.write_text(contract)
        self.model = self.home.register(bound=False)
        self.now = FIRST
        self.reference = Reference()
        self.folder = root
        kernel = Attested(at=FIRST, model=self.model.key, predicate_type="urn:test", envelope=KERNEL, seconds=9)
        self.home.ledger.commit(lambda _state: [kernel])

    def desk(self, now: datetime | None = None) -> Desk:
        return Desk(self.home.state, self.home.ledger, self.home.objects, now or self.now)

    def start(self, name: str = "r", model: ModelVersion | None = None) -> None:
        stages.start(name, model or self.model, "production", self.home.record(), self.desk())

    def course(self) -> Course:
        return course("r", self.home.state, self.home.objects)

    def gate(self, why: Why | None = None) -> GateDecision:
        version = self.home.state.models[self.model.key.name][self.model.key.version - 1]
        return GateDecision(version, "production", (), (), why, KERNEL, basis_of(version, self.home.state))

    def advance(self, why: Why | None = None) -> Advance:
        return stages.advance(self.course(), self.gate(why), TARGET_DIGEST, self.home.key, self.desk())

    def observe(self, rows: list[dict[str, Any]], served: int | None = None) -> Look:
        """Look at requests once the last of them was answered."""
        self.now = max([self.now, *(datetime.fromisoformat(row["at"]) for row in rows)])
        log = write_jsonl(self.folder / "log.jsonl", rows)
        return self.observe_file(log, served=len(rows) if served is None else served)

    def observe_file(self, log: Path, found: Course | None = None, served: int | None = None) -> Look:
        bench = Bench(self.desk(), self.home.inspector(), TARGET, self.reference, lambda *_: None)
        return observe(found or self.course(), log, served, bench)

    def at(self, stage: str) -> Rolling:
        """Go on to a stage, with honest requests where a stage has to be left by them."""
        self.start()
        self.advance()
        if stage == "canary":
            self.observe(requests([0.0] * 400, route="shadow"))
            self.now += MINUTE
            assert self.advance().entered == "canary"
        return self
