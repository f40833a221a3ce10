"""The kernel bench compares like with like, and says what it could not measure; how long things take is for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_model
import torch

from snapline.cli.bench import kernel as command
from snapline.cli.benchmarks import capture, kernels
from snapline.contracts.kernels import reference as plain


def test_the_separate_operations_compute_the_same_measures() -> None:
    z, served, tokens = kernels.pair(4, 500)
    expected = plain.divergence(z, served, tokens)
    for name, value in kernels.chain(z.double(), served.double(), tokens).items():
        torch.testing.assert_close(value, getattr(expected, name), rtol=1e-9, atol=1e-12, msg=name)


def test_tokens_are_drawn_from_the_serving_engine() -> None:
    z, served, tokens = kernels.pair(3000, 4, distance=3.0)
    other = {name: figure for name, figure in kernels.per_token(served, z, tokens).items() if name == "k1"}
    assert kernels.per_token(z, served, tokens)["k1"] > 0 > other["k1"]


def test_what_trainers_log_is_worked_out_by_their_formulas() -> None:
    z, served = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    z[0, 0] = torch.tensor(3.0).log()  # p = 3/4 and q = 1/2 of the token that was drawn
    told = kernels.per_token(z, served, torch.tensor([0]))
    expected = {"k1": -0.4054651, "k3": 0.5 - 0.4054651, "|p - q|": 0.25, "|log p - log q|": 0.4054651}
    assert told == pytest.approx(expected, abs=1e-6)


def test_every_ratio_is_to_the_separate_operations_and_what_is_missing_is_told() -> None:
    rows = kernels.measure(2, 64, compiled=False)
    speeds = [row for row in rows if row.unit == "GB/s"]
    assert speeds[0].what == speeds[0].against == "torch, separate operations"
    assert speeds[0].ratio == 1.0
    assert [row.target for row in speeds if row.met is not None] == ["at least 15x"]
    missing = [row.what for row in rows if row.unit == "not run"]
    assert any("llama.cpp" in what for what in missing)
    assert any("Triton" in what for what in missing) is not torch.cuda.is_available()
    assert not any("torch.compile" in row.what for row in rows)


def test_a_fault_on_one_row_moves_the_measures_of_whole_rows() -> None:
    told = {row.what: row.value for row in kernels.measure(2, 64, compiled=False) if row.subject == "told"}
    assert told["one row wrong: mean KL(Q || P) (Snapline)"] > 10 * told["honest: mean KL(Q || P) (Snapline)"]
    assert "honest: k3 (verl)" in told


def test_the_kernel_keeps_the_digits_of_a_tiny_half_span_that_other_sums_lose() -> None:
    summed, chained, ours = (row.value for row in kernels._tiny(20_000))
    assert summed > 0.5
    assert 0.5 > chained > 1e-6 > ours


def test_without_a_model_the_capture_is_not_run() -> None:
    (row,) = capture.measure(None)
    assert row.unit == "not run"


def test_the_command_tells_what_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(model=None, rows=2, vocabulary=64, out=tmp_path / "rows.json", as_json=True)
    told = json.loads(capsys.readouterr().out)["results"]
    assert told == json.loads((tmp_path / "rows.json").read_text())["results"]
    assert {row["subject"] for row in told} == {"kernel", "told", "exact", "capture"}


@pytest.mark.engine
def test_every_way_out_of_vllm_gives_every_position(tmp_path: Path) -> None:
    rows = capture.measure(tiny_model.write_tiny_model(tmp_path))
    speeds = [row.what for row in rows if row.unit == "rows/s"]
    assert speeds == [capture.CAPTURED, capture.CAPTURED, capture.DICTS, capture.FLAT]
    assert [row.target for row in rows if row.met is not None] == ["over 4x", "over 1x", "under 1.1x"]
    assert [row.value for row in rows if row.unit == "of 1"] == [1.0]
    (off,) = (row.value for row in rows if row.subject == "exact")
    assert off < 1e-9
