"""`snapline judge`: stored evidence against a contract, with no engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import typer
from measured_home import CONTRACT, MeasuredHome
from stored_evidence import chat_probes

from snapline.cli.judge import judge
from snapline.cli.output import Exit, exit_code
from snapline.contracts.errors import IncomparableError
from snapline.lineage.errors import DefinitionError, IntegrityError, NotFoundError


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> MeasuredHome:
    return MeasuredHome(tmp_path_factory.mktemp("measured"))


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def judged(capsys: pytest.CaptureFixture[str], evidence: object, contract: object, **options: Any) -> tuple[int, Any]:
    with pytest.raises(typer.Exit) as left:
        judge(str(evidence), contract=str(contract), as_json=True, **options)
    return left.value.exit_code, json.loads(capsys.readouterr().out)


def test_a_file_is_judged_with_files_alone(
    measured: MeasuredHome, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(chat_probes(), alone / "chats.parquet")
    code, found = judged(capsys, measured.file, measured.contract, probes="chats.parquet")
    assert (code, found["verdict"], found["model"]) == (0, "CERTIFIED", None)
    assert [finding["clause"] for finding in found["findings"]] == ["half_span", "tv_token", "batch_invariance"]
    assert found["diagnostics"] == {"prefill": {"kl": "0"}}
    with pytest.raises(typer.Exit):
        judge(str(measured.file), contract=str(measured.contract), probes="chats.parquet")
    captured = capsys.readouterr()
    assert captured.out.startswith(f"CERTIFIED  {measured.file} under contract tiny\n")
    assert "was not checked" in captured.err


def test_an_address_and_a_model_name_the_same_evidence(
    measured: MeasuredHome, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = measured.entries()
    for name in (measured.evidence, "assistant", "assistant/1", measured.file):
        code, found = judged(capsys, name, "tiny", home=measured.root)
        assert (code, found["evidence"], found["model"]) == (0, measured.evidence, "assistant/1")
    assert measured.entries() == entries


def test_a_model_is_judged_on_its_newest_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = MeasuredHome(tmp_path)
    newest = measured.certify({"serving": {f"p{n:03}": {"tv": 0.9, "half_span": 3.5} for n in range(60)}})
    code, found = judged(capsys, "assistant", "tiny", home=measured.root)
    assert (code, found["verdict"], found["evidence"]) == (1, "REFUTED", newest)
    witness = found["findings"][0]["witness"]
    assert (witness["prompt"], witness["figures"]["half_span"]) == ("p000", "3.5")


def test_a_stricter_contract_cannot_say(
    measured: MeasuredHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = tmp_path / "strict.yaml"
    strict.write_text(CONTRACT.replace('"0.90"', '"0.99"').replace("[prefill]", "[prefill, decode-forced]"))
    code, found = judged(capsys, measured.evidence, strict, home=measured.root)
    assert (code, found["verdict"]) == (3, "UNDECIDED")
    assert found["not_measured"] == [
        "serving decode-forced: 0 prompts of the 60 it asks for",
        "batching decode-forced: 0 prompts of the 60 it asks for",
    ]


def test_other_probes_are_not_to_be_trusted(measured: MeasuredHome, tmp_path: Path) -> None:
    pq.write_table(chat_probes(answer="another"), tmp_path / "other.parquet")
    with pytest.raises(IntegrityError) as caught:
        judge(measured.evidence, contract="tiny", probes=str(tmp_path / "other.parquet"), home=measured.root)
    assert measured.probes.digest in caught.value.message
    assert exit_code(caught.value) is Exit.DO_NOT_TRUST


@pytest.mark.parametrize(
    ("old", "new"),
    [("confidence:", 'temperature: "0.7"\nconfidence:'), ("dtype: bfloat16", "dtype: float16")],
)
def test_another_temperature_or_engine_cannot_be_compared(
    measured: MeasuredHome, tmp_path: Path, old: str, new: str
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(CONTRACT.replace(old, new))
    with pytest.raises(IncomparableError) as caught:
        judge(measured.evidence, contract=str(other), home=measured.root)
    assert exit_code(caught.value) is Exit.COULD_NOT_MEASURE


def test_what_is_not_there_or_not_evidence(measured: MeasuredHome, alone: Path) -> None:
    missing = "blake3-object-v1:" + "0" * 64
    for evidence, error in (
        ("nobody", NotFoundError),
        ("gone.parquet", NotFoundError),
        (missing, IntegrityError),
        ("not a model", DefinitionError),
    ):
        with pytest.raises(error):
            judge(evidence, contract="tiny", home=measured.root)
    (alone / "text.parquet").write_text("no Parquet")
    with pytest.raises(IntegrityError, match="not readable as Parquet"):
        judge("text.parquet", contract=str(measured.contract), home=measured.root)
    with pytest.raises(NotFoundError, match="no probe set 'chats'"):
        judge(str(measured.file), contract=str(measured.contract))


def test_damaged_evidence_is_not_judged(tmp_path: Path) -> None:
    measured = MeasuredHome(tmp_path)
    path = measured.objects.path(measured.evidence)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))
    for name in (measured.evidence, "assistant"):
        with pytest.raises(IntegrityError, match="holds other bytes"):
            judge(name, contract="tiny", home=measured.root)
