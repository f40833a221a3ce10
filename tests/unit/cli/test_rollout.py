"""What a person is told of a rollout, and where alerts go."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from histories import key
from rollouts import KERNEL, MINUTE, Rolling
from serving_logs import drift_of, requests

from snapline.cli.history import _about
from snapline.cli.observe import _alert, _document, _require_webhook, _text
from snapline.cli.output import Exit, Output
from snapline.cli.rollout import _advanced, _status, _status_document, verdict_code
from snapline.contracts.rollout import stages
from snapline.contracts.verdict import Verdict
from snapline.lineage.errors import DefinitionError
from snapline.lineage.events import Escalated, LineageEvent, Observed, StageEntered

AT = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "blake3-object-v1:" + "a" * 64
COPIES = {"route": "shadow"}
FAULTY = requests([drift_of(0.8)] * 80, 500, tags={"language": "de"})


@pytest.fixture
def rolling(tmp_path: Path) -> Rolling:
    return Rolling(tmp_path)


@contextmanager
def webhook(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that keeps what is posted to it."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/secret", posted
        finally:
            server.shutdown()
            thread.join()


def test_status_tells_the_stage_the_figures_and_what_is_missing(rolling: Rolling) -> None:
    rolling.at("shadow")
    rolling.observe(requests([0.0] * 30, **COPIES))
    told = "\n".join(_status(rolling.course(), {"shadow": KERNEL}, rolling.now))
    assert "rollout r  in shadow since 2026-11-30T12:00:00+00:00" in told
    assert "assistant/1 for production under tiny; stages offline, shadow, canary, full" in told
    assert "a share of 0.5 of the requests are copied to the serving engine" in told
    assert "30 requests monitored; logs read in this stage: 1" in told
    assert "UNDECIDED tv_answer on all, decode-sampled" in told
    assert "10 short of min_requests 40" in told
    assert "tv_answer on german UNDECIDED: hold, remeasure; not again before" in told
    assert f"let into shadow by {KERNEL}" in told
    document = _status_document(rolling.course(), {}, rolling.now)
    assert (document["stage"], document["verdict"], document["requests"]) == ("shadow", "UNDECIDED", 30)
    assert {finding["slice"] for finding in document["findings"]} >= {"all", "german", "log.margin", "sampling"}
    json.dumps(document)


@pytest.mark.parametrize(
    ("stage", "said"),
    [("offline", "the reference answers everything"), ("canary", "the serving engine answers a share of 0.05")],
)
def test_status_tells_who_answers(rolling: Rolling, stage: str, said: str) -> None:
    if stage == "offline":
        rolling.start()
    else:
        rolling.at(stage)
    assert said in "\n".join(_status(rolling.course(), {}, rolling.now))


def test_a_stage_that_is_not_left_says_what_is_missing_and_until_when_it_is_held(rolling: Rolling) -> None:
    rolling.at("shadow")
    rolling.observe(requests([0.0] * 5, **COPIES))
    told = "\n".join(_advanced("r", rolling.advance()))
    assert told.startswith("UNDECIDED  rollout r stays in shadow")
    assert "35 short of min_requests 40" in told
    assert "an escalation holds it until 2026-11-30T12:10:04" in told
    rolling.observe(requests([0.0] * 400, **COPIES))
    rolling.now += 10 * MINUTE
    told = "\n".join(_advanced("r", rolling.advance()))
    assert told.startswith("rollout r left shadow and is in canary")
    assert "let in by blake3-object-v1:" in told


def test_a_look_tells_what_was_counted_and_what_was_set_off(rolling: Rolling) -> None:
    rolling.at("canary")
    found = rolling.course()
    look = rolling.observe([*FAULTY, *requests([0.0], 600, route="reference")])
    told = _text(found, look)
    assert told.startswith("REFUTED  rollout r in canary")
    assert "81 requests logged, 80 counted" in told
    assert "1 passed over: answered by the reference" in told
    assert "tv_answer on german REFUTED: log, alert, route_slice, demote, block" in told
    assert told.endswith("went back to shadow")
    document = _document(found, look, [])
    assert (document["stage"], document["stage_now"], document["verdict"]) == ("canary", "shadow", "REFUTED")
    json.dumps(document)
    told = "\n".join(_status(rolling.course(), {}, rolling.now))
    assert "the version's gate is shut by it" in told


def test_alerts_are_posted_one_for_each_violation(rolling: Rolling, capsys: pytest.CaptureFixture[str]) -> None:
    rolling.at("canary")
    found = rolling.course()
    look = rolling.observe(FAULTY)
    with webhook() as (url, posted):
        sent = _alert(found, look, url, Output(True))
    assert [one["slice"] for one in posted] == [one["slice"] for one in sent] == ["all", "german"]
    assert all(one["posted"] for one in sent)
    assert (posted[0]["rollout"], posted[0]["stage"], posted[0]["verdict"]) == ("r", "canary", "REFUTED")
    assert capsys.readouterr().err == ""


def test_an_alert_that_does_not_arrive_is_told_without_the_secret_and_loses_nothing(
    rolling: Rolling, capsys: pytest.CaptureFixture[str]
) -> None:
    rolling.at("canary")
    found = rolling.course()
    look = rolling.observe(FAULTY)
    with webhook(500) as (url, posted):
        refused = _alert(found, look, url, Output(True))
    gone = _alert(found, look, url, Output(True))
    none = _alert(found, look, None, Output(True))
    told = capsys.readouterr().err
    assert len(posted) == 2
    assert not any(one["posted"] for one in (*refused, *gone, *none))
    assert "127.0.0.1 did not take it" in told
    assert "there is no webhook" in told
    assert "secret" not in told + json.dumps([refused, gone])
    assert len([e for e in rolling.home.state.rollouts["r"].escalations if "alert" in e.acts]) == 2


@pytest.mark.parametrize("url", ["file:///etc/hosts", "ftp://host/x", "https://", "nonsense-secret"])
def test_a_webhook_is_a_web_address(url: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        _require_webhook(url)
    assert "secret" not in raised.value.message
    _require_webhook("https://hooks.example/secret")
    _require_webhook(None)


def test_every_verdict_has_its_exit_code() -> None:
    codes = {verdict: verdict_code(verdict) for verdict in Verdict}
    assert codes == {
        Verdict.CERTIFIED: Exit.DONE,
        Verdict.REFUTED: Exit.NO,
        Verdict.UNDECIDED: Exit.CANNOT_SAY,
    }


def test_the_end_is_told_with_its_reason(rolling: Rolling) -> None:
    rolling.at("shadow")
    stages.abort("r", "a better one is ready", rolling.desk())
    assert _status(rolling.course(), {}, rolling.now)[0].endswith("(a better one is ready)")


def entered(stage: str | None, **said: Any) -> StageEntered:
    return StageEntered(
        at=AT, rollout="r", model=key("model"), target="production", contract="tiny", stage=stage, **said
    )


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (entered("canary"), "r of model/1 is in canary for production"),
        (entered(None, reason="enough"), "r of model/1 ended  enough"),
        (
            Observed(at=AT, rollout="r", stage="shadow", monitor=DIGEST, log=DIGEST, requests=7),
            "r in shadow  7 new requests",
        ),
        (
            Escalated(
                at=AT,
                rollout="r",
                clause="tv_answer",
                slice="all",
                verdict="REFUTED",
                acts=("alert", "block"),
                until=AT + timedelta(hours=1),
            ),
            "r  tv_answer on all REFUTED: alert, block",
        ),
    ],
)
def test_the_log_tells_what_each_event_is_about(event: LineageEvent, said: str) -> None:
    assert _about(event) == said
