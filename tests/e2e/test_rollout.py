"""A version goes from its certificate through shadow into a canary, where a faulty engine sends it back.

Every answer in the logs was drawn by a real vLLM: one that serves the certified weights, and one that serves them with
a layer scaled wrongly.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from journeys import ROOT, TARGETS, TRAINER, VIEW, Snapline, flights, token_probes
from serving_logs import write_jsonl, write_parquet
from tiny_model import write_tiny_model

from snapline.contracts.engines.client import WorkerEngine
from snapline.contracts.engines.protocol import Batching, EngineSpec, ProbeItem, Sampled, Sampling

pytestmark = [pytest.mark.engine, pytest.mark.mlflow]

TOKENS, SCALE = 6, 4
CONTRACT = f"""
apiVersion: snapline/v1
kind: KernelContract
name: staged
probes: chats
reference: {{engine: transformers, dtype: float32}}
serving: {{engine: vllm, version: ">=0.30,<0.34", dtype: float32}}
confidence: "0.9"
paths: [decode-sampled]
slices:
  - {{name: all, min_prompts: 60}}
  - {{name: long, where: "long", min_prompts: 30}}
statistical: {{tv_answer: {{horizon: {TOKENS}, limit: "0.3"}}}}
observability: {{log: [sampled_logprob, cache_hit], max_age: 1d}}
escalation:
  - {{when: refuted, do: [alert, {{route_slice: reference}}, demote, block]}}
stages: {{shadow: {{traffic: "0.5", min_requests: 40}}, canary: {{traffic: "0.1", min_requests: 40}}}}
"""


@dataclass
class Traffic:
    """Answers that engines drew, not yet logged, and how many were."""

    honest: list[tuple[ProbeItem, Sampled]]
    faulty: list[tuple[ProbeItem, Sampled]]
    logged: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def log(self, answers: Sequence[tuple[ProbeItem, Sampled]], route: str, **tags: str) -> list[dict[str, Any]]:
        """Log answers as given just now."""
        rows = []
        for item, answer in answers:
            self.logged += 1
            log_q = answer.logits.double().log_softmax(dim=-1)
            rows.append(
                {
                    "id": f"q{self.logged}",
                    "at": datetime.now(UTC).isoformat(),
                    "route": route,
                    "prompt_ids": list(item.prompt),
                    "token_ids": list(answer.tokens),
                    "sampled_logprob": [
                        min(0.0, float(row[token])) for row, token in zip(log_q, answer.tokens, strict=True)
                    ],
                    "cache_hit": False,
                    "tags": tags,
                }
            )
        return rows


def drawn(folder: Path, workdir: Path, count: int, seeds: Sequence[int]) -> list[tuple[ProbeItem, Sampled]]:
    """Return the answers that vLLM draws with the weights in a folder, `count` for each seed."""
    items = [ProbeItem(one["id"], tuple(one["token_ids"]), (1,)) for one in token_probes(count)]
    spec = EngineSpec(engine="vllm", dtype="float32")
    environment = {"OMP_NUM_THREADS": "2", **os.environ}
    with WorkerEngine(
        spec, folder, workdir=workdir, timeout_seconds=600, report=lambda _: None, environment=environment
    ) as engine:
        answers = [
            (item, sampled[item.id])
            for seed in seeds
            for sampled in [engine.sample(items, Sampling(TOKENS, 1.0, seed), Batching.BATCHED)]
            for item in items
        ]
        return [(item, Sampled(answer.tokens, answer.logits.clone())) for item, answer in answers]


def scaled(folder: Path, to: Path) -> Path:
    """Copy a model with one layer scaled, as by a wrong scale of quantization."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"] *= SCALE
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
    return to


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Snapline:
    """A home whose one version is certified on vLLM under a contract with stages."""
    folder = tmp_path_factory.mktemp("rollout")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SNAPLINE_")}
    snapline = Snapline(folder, kept | {"PYTHONPATH": str(ROOT / ".namespace")})
    write_tiny_model(folder / "model")
    pq.write_table(flights(200), folder / "flights.parquet")
    (folder / "contract.yaml").write_text(CONTRACT)
    write_jsonl(folder / "chats.jsonl", token_probes(120))
    snapline.ok("init")
    (snapline.home / "targets.yaml").write_text(TARGETS)
    columns = ["--time", "dep_time", "--known", "arr_known", "--key", "flight_id"]
    window = ["--from", "2013-01-01", "--until", "2013-01-05"]
    snapline.ok("snapshot", "take", "flights", "--source", "flights.parquet", *columns, *window)
    snapline.ok("probes", "add", "chats", "--from", "chats.jsonl")
    (folder / "train.py").write_text(TRAINER)
    (folder / "view.yaml").write_text(VIEW)
    snapline.ok("view", "define", "view.yaml")
    made = ["--weights", "model", "--view", "delays", "--snapshot", "flights", "--contract", "contract.yaml"]
    snapline.ok("register", "assistant", *made)
    assert snapline.ok("certify", "assistant")["verdict"] == "CERTIFIED"
    return snapline


@pytest.fixture(scope="module")
def traffic(home: Snapline) -> Traffic:
    faulty = scaled(home.folder / "model", home.folder / "faulty")
    return Traffic(
        drawn(home.folder / "model", home.folder / "honest-work", 60, (1, 2)),
        drawn(faulty, home.folder / "faulty-work", 60, (3,)),
    )


@contextmanager
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that keeps what is posted to it."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", posted
        finally:
            server.shutdown()
            thread.join()


def test_a_rollout_goes_as_far_as_its_evidence_and_comes_back(home: Snapline, traffic: Traffic) -> None:
    into_shadow(home)
    shadow_to_canary(home, traffic)
    with webhook() as (url, posted):
        canary_and_back(home, traffic, url)
    assert {alert["slice"] for alert in posted} >= {"long"}
    assert all(alert["verdict"] == "REFUTED" and alert["rollout"] == "spring" for alert in posted)
    what_is_left(home)


def into_shadow(home: Snapline) -> None:
    assert home("rollout", "advance", "spring").code == 4, "nobody started it"
    started = home.ok("rollout", "start", "spring", "--model", "assistant")
    assert (started["stage"], started["target"], started["contract"]) == ("offline", "production", "staged")
    assert home("rollout", "start", "spring", "--model", "assistant").code == 4, "it goes on"
    entered = home.ok("rollout", "advance", "spring")
    assert (entered["stage"], entered["certificate"]) == ("shadow", home.ok("gate", "assistant")["certificate"])


def shadow_to_canary(home: Snapline, traffic: Traffic) -> None:
    answer = home("rollout", "advance", "spring", "--json")
    assert answer.code == 3, "nobody looked yet"
    assert "40 short of min_requests 40" in answer.out
    copies = traffic.log(traffic.honest[:60], "shadow", long="false")
    copies += traffic.log(traffic.honest[60:], "shadow", long="true")
    few = home("observe", "spring", "--log", write_jsonl(home.folder / "few.jsonl", copies[:20]), "--json")
    assert few.code == 3, few.out + few.err
    assert (few.json["counted"], few.json["rescored"]) == (20, 20)
    log = write_jsonl(home.folder / "shadow.jsonl", copies)
    look = home.ok("observe", "spring", "--log", log, "--served", str(len(copies)))
    assert (look["verdict"], look["counted"], look["logged"]) == ("CERTIFIED", 100, 120)
    assert home.ok("observe", "spring", "--log", log, "--served", str(len(copies)))["counted"] == 0
    worst = max(float(finding["estimate"]) for finding in look["findings"] if finding["clause"] == "tv_answer")
    assert worst < 1e-3, "two engines in float32 draw from the same distribution"
    entered = home.ok("rollout", "advance", "spring")
    assert (entered["stage"], entered["left"], entered["verdict"]) == ("canary", "shadow", "CERTIFIED")
    assert home.ok("rollout", "status", "spring")["certificates"]["canary"] == entered["certificate"]


def canary_and_back(home: Snapline, traffic: Traffic, url: str) -> None:
    served = traffic.log(traffic.honest[:60], "serving", long="false")
    served += traffic.log(traffic.faulty, "serving", long="true")
    log = write_parquet(home.folder / "canary.parquet", served)
    look = home("observe", "spring", "--log", log, "--served", str(len(served)), "--webhook", url, "--json")
    assert look.code == 1, look.out + look.err
    verdicts = {finding["slice"]: finding["verdict"] for finding in look.json["findings"]}
    assert verdicts["long"] == "REFUTED"
    assert (look.json["stage"], look.json["stage_now"]) == ("canary", "shadow")
    acts = {event["slice"]: event["acts"] for event in look.json["escalations"]}
    assert acts["long"] == ["alert", "route_slice", "demote", "block"]
    assert all(alert["posted"] for alert in look.json["alerts"])


def what_is_left(home: Snapline) -> None:
    status = home.ok("rollout", "status", "spring")
    assert (status["stage"], status["blocked"], status["requests"]) == ("shadow", True, 0)
    assert "long" in status["reference_slices"]
    gate = home("gate", "assistant", "--json")
    assert gate.code == 1
    assert any("rollout spring" in reason and "tv_answer on long" in reason for reason in gate.json["reasons"])
    assert home("promote", "assistant", "--to", "champion").code == 1
    rows = json.loads(home("query", "SELECT stage, blocked FROM rollouts", "--json").out)["rows"]
    assert rows == [{"stage": "shadow", "blocked": True}]
    told = home("log")
    assert "spring  tv_answer on long REFUTED: alert, route_slice, demote, block" in told.out
    home.ok("rollout", "abort", "spring", "--reason", "a layer is scaled wrongly")
    assert home("gate", "assistant").code == 1, "a block outlives the end"
    home.ok("rollout", "start", "spring", "--model", "assistant")
    assert home("gate", "assistant").code == 0
