"""What `snapline route` refuses before it listens, and the rules it reads."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from snapline.cli.route import reader, route
from snapline.cli.wiring import Home, initialise
from snapline.contracts.records import contract_record
from snapline.contracts.rollout.documents import LogField, StageName
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.events import Escalated, StageEntered
from snapline.lineage.model import VersionKey

NOW = datetime(2026, 11, 30, tzinfo=UTC)
CONTRACT = """
apiVersion: snapline/v1
kind: KernelContract
name: tiny
probes: chats
reference: {engine: transformers, dtype: float32}
serving: {engine: vllm, dtype: float32}
confidence: "0.95"
paths: [prefill]
slices:
  - {name: all, min_prompts: 60}
  - {name: german, where: "language = 'de'", min_prompts: 60}
statistical: {tv_token: "0.2"}
observability: {log: [margin]}
stages: {canary: {traffic: "0.05"}}
"""


def entered(stage: str | None, contract: str = "tiny") -> StageEntered:
    key = VersionKey(name="tiny", version=1)
    return StageEntered(at=NOW, rollout="r", model=key, target="production", contract=contract, stage=stage)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    root = tmp_path / ".snapline"
    initialise(root, BulkAlgorithm.BLAKE3, "sqlite:///{home}/ledger.db")
    return Home(root)


def record(home: Home, text: str = CONTRACT) -> None:
    file = home.root / "contract.yaml"
    file.write_text(text)
    found = contract_record(str(file), home.state(), home.objects(BulkAlgorithm.BLAKE3), NOW)
    home.ledger.commit(lambda _state: [found])


def run(home: Home, log: str = "serving.jsonl", **said: Any) -> None:
    urls = {"serving": "http://127.0.0.1:1", "reference": "http://127.0.0.1:2"}
    options = {**urls, "log": home.root / log, "host": "127.0.0.1", "port": 0, "patience": 1.0, **said}
    route("r", home=home.root, as_json=True, **options)


def test_the_rules_are_the_ledgers_and_the_contracts(home: Home) -> None:
    record(home)
    home.ledger.commit(lambda _state: [entered("canary")])
    read = reader(home, "r")
    assert (read().stage, str(read().traffic), read().log) == (StageName.CANARY, "0.05", (LogField.MARGIN,))
    away = Escalated(
        at=NOW,
        rollout="r",
        clause="tv_token",
        slice="german",
        verdict="REFUTED",
        acts=("route_slice",),
        until=NOW,
        reference_slices=("german",),
    )
    home.ledger.commit(lambda _state: [away])
    assert read().reference_slices == {"german": "language = 'de'"}
    home.ledger.commit(lambda _state: [entered(None)])
    assert read().stage is None


def test_a_rollout_that_is_not_there_is_named_beside_those_that_are(home: Home) -> None:
    with pytest.raises(NotFoundError, match="no rollout 'r'; there are: none yet"):
        run(home)


def test_a_rollout_whose_contract_is_not_recorded_cannot_be_routed(home: Home) -> None:
    home.ledger.commit(lambda _state: [entered("full", contract="gone")])
    with pytest.raises(NotFoundError, match="'gone', which is not recorded"):
        run(home)


def test_log_probabilities_at_another_temperature_cannot_be_logged(home: Home) -> None:
    record(home, CONTRACT + 'temperature: "0.7"\n')
    home.ledger.commit(lambda _state: [entered("full")])
    with pytest.raises(DefinitionError, match=r"at temperature 0\.7"):
        run(home)


@pytest.mark.parametrize(
    ("said", "error", "says"),
    [
        ({"serving": "127.0.0.1:8000"}, DefinitionError, "--serving: expected the URL"),
        ({"reference": "ftp://host"}, DefinitionError, "--reference: expected the URL"),
        ({"reference": "http://host:99999"}, DefinitionError, "--reference: expected the URL"),
        ({"log": "serving.log"}, DefinitionError, r"expected a file named \.jsonl"),
        ({"log": "gone/serving.jsonl"}, NotFoundError, "cannot be written"),
        ({"host": "no such host"}, ConflictError, "cannot listen on no such host:0"),
    ],
)
def test_what_is_asked_wrongly_is_refused_before_anybody_is_served(
    home: Home, said: dict[str, str], error: type[Exception], says: str
) -> None:
    record(home)
    home.ledger.commit(lambda _state: [entered("full")])
    with pytest.raises(error, match=says):
        run(home, **said)


def test_a_port_that_is_taken_is_said_to_be(home: Home) -> None:
    record(home)
    home.ledger.commit(lambda _state: [entered("full")])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConflictError, match=f"127.0.0.1:{port}"):
            run(home, port=port)
