"""`snapline evidence`: what was measured, how two measurements differ, and logits that expire."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from measured_home import MeasuredHome
from stored_evidence import OTHER

from snapline.cli import evidence as commands
from snapline.contracts.logits import LOGITS, LogitsKeeper
from snapline.lineage.errors import NotFoundError


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> MeasuredHome:
    return MeasuredHome(tmp_path_factory.mktemp("measured"))


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_evidence_is_shown_with_what_it_rests_on(measured: MeasuredHome, capsys: pytest.CaptureFixture[str]) -> None:
    commands.show("assistant", home=measured.root, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["evidence"], found["model"]) == (measured.evidence, "assistant/1")
    assert found["provenance"]["probes"] == measured.probes.digest
    assert (found["provenance"]["lengths"], found["provenance"]["sampled"]) == (60, 0)
    assert found["measured"] == [
        {"pair": "serving", "path": "prefill", "prompts": 60, "rows": 180},
        {"pair": "batching", "path": "prefill", "prompts": 60, "rows": 180},
        {"pair": "noise-floor", "path": "prefill", "prompts": 4, "rows": 12},
    ]
    assert found["noise_floor"]["tv"] == "0.000002"
    assert set(found["diagnostics"]) == {"prefill"}
    assert found["diagnostics"]["prefill"]["ess"] == "1"
    assert found["logits"] == []


def test_a_file_is_shown_without_a_home(
    measured: MeasuredHome, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.show(str(measured.file))
    told = capsys.readouterr().out
    assert told.startswith(f"evidence {measured.file}\n  recipe: divergence-v")
    assert "  serving on prefill: 180 positions of 60 prompts\n" in told
    assert "noise floor, the reference alone against itself in a batch: half span" in told
    assert "diagnostics on prefill, without confidence: kl 0" in told


def test_two_measurements_are_compared_prompt_by_prompt(
    measured: MeasuredHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = MeasuredHome(tmp_path)
    address = worse.certify({"serving": {f"p{n:03}": {"tv": 0.25} for n in range(60)}}, serving=OTHER)
    second = tmp_path / "second.parquet"
    second.write_bytes(worse.objects.read(address))
    commands.compare(measured.evidence, str(second), home=measured.root, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["same_bytes"], found["identical"], found["same_serving"]) == (False, False, False)
    serving = next(pair for pair in found["pairs"] if pair["pair"] == "serving")
    tv = next(one for one in serving["differences"] if one["measure"] == "tv")
    assert tv["difference"] == pytest.approx(0.25)
    assert tv["lower"] < 0.25 < tv["upper"]
    commands.compare(measured.evidence, str(second), home=measured.root)
    told = capsys.readouterr().out
    assert "they differ; different things serve" in told
    assert "  serving on prefill: 60 prompts\n    tv: mean 0 and 0.25, difference 0.25, between " in told
    assert "  batching on prefill: 60 prompts, identical\n" in told


def test_the_same_bytes_are_said_to_be(measured: MeasuredHome, capsys: pytest.CaptureFixture[str]) -> None:
    commands.compare("assistant", str(measured.file), home=measured.root)
    assert "byte for byte the same; the same thing serves" in capsys.readouterr().out
    commands.compare("assistant", str(measured.file), home=measured.root, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["same_bytes"] is found["identical"] is True
    floor = next(pair for pair in found["pairs"] if pair["pair"] == "noise-floor")
    # Four prompts have no limit on a median, and JSON no infinity.
    assert floor["differences"][-1]["upper"] is None


def test_logits_are_listed_until_they_expire(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = MeasuredHome(tmp_path)
    now = datetime.now(UTC)
    for name, expires in (("old", now - timedelta(days=1)), ("new", now + timedelta(days=1))):
        keeper = LogitsKeeper(measured.root / LOGITS / name, expires)
        keeper.keep("p000", "serving", "prefill", torch.zeros(3, 5))
        keeper.close(measured.evidence)
    commands.show("assistant", home=measured.root, as_json=True)
    listed = json.loads(capsys.readouterr().out)["logits"]
    assert [Path(one["folder"]).name for one in listed] == ["old", "new"]
    commands.expire(home=measured.root, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [Path(one["folder"]).name for one in found["removed"]] == ["old"]
    assert [Path(one["folder"]).name for one in found["kept"]] == ["new"]
    commands.expire(home=measured.root)
    assert capsys.readouterr().out == "1 kept\n"
    assert not (measured.root / LOGITS / "old").exists()


def test_a_model_without_a_certificate_has_no_evidence(measured: MeasuredHome, alone: Path) -> None:
    with pytest.raises(NotFoundError, match="no model 'nobody'"):
        commands.show("nobody", home=measured.root)
    with pytest.raises(NotFoundError, match="no file gone"):
        commands.show("gone")
