"""`snapline contract`: linting, showing, explaining and starting contracts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from measured_home import CONTRACT, MeasuredHome

from snapline.cli import contract as commands
from snapline.contracts.contract import KernelContract
from snapline.contracts.records import parse_contract
from snapline.contracts.schema import contract_schema
from snapline.lineage.documents import parse
from snapline.lineage.errors import DefinitionError, NotFoundError


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> MeasuredHome:
    return MeasuredHome(tmp_path_factory.mktemp("measured"))


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a home, to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def linted(capsys: pytest.CaptureFixture[str], contract: object, **options: Any) -> tuple[int, list[dict[str, Any]]]:
    with pytest.raises(typer.Exit) as left:
        commands.lint(str(contract), as_json=True, **options)
    return left.value.exit_code, json.loads(capsys.readouterr().out)["issues"]


def test_a_clean_file_needs_no_home(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (alone / "tiny.yaml").write_text(CONTRACT)
    assert linted(capsys, "tiny.yaml") == (0, [])
    with pytest.raises(typer.Exit):
        commands.lint("tiny.yaml")
    assert capsys.readouterr().out == "tiny.yaml: nothing wrong\n"


def test_an_error_is_a_no_with_its_line(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (alone / "tiny.yaml").write_text(CONTRACT.replace("min_prompts: 60", "min_prompts: 6"))
    code, issues = linted(capsys, "tiny.yaml")
    assert code == 1
    assert {(issue["kind"], issue["line"]) for issue in issues} == {("too-few-prompts", 10)}
    with pytest.raises(typer.Exit):
        commands.lint("tiny.yaml")
    assert capsys.readouterr().out.startswith("tiny.yaml:10: error: slices.all.min_prompts: 6 prompts cannot certify")


def test_a_warning_alone_is_done(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (alone / "tiny.yaml").write_text(CONTRACT.replace('tv_token: "0.10"', 'tv_token: "0.6"'))
    code, issues = linted(capsys, "tiny.yaml")
    assert (code, [issue["kind"] for issue in issues]) == (0, ["vacuous"])


def test_what_cannot_be_read_is_asked_wrongly_and_still_has_issues(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (alone / "tiny.yaml").write_text(CONTRACT.replace("diagnostics: [kl]", 'diagnostics: {kl: "0.1"}'))
    code, issues = linted(capsys, "tiny.yaml")
    assert code == 2
    (issue,) = issues
    assert (issue["kind"], issue["field"], issue["line"]) == ("confidence-on-unbounded-figure", "diagnostics", 14)


def test_a_contract_that_is_nowhere(alone: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no contract 'other\.yaml': no such file, and recorded are: none"):
        commands.lint("other.yaml")
    with pytest.raises(NotFoundError):
        commands.show("other.yaml", home=alone / "nowhere")


def test_slices_are_counted_in_a_probe_file(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (alone / "tiny.yaml").write_text(CONTRACT)
    lines = [json.dumps({"id": n, "text": "a", "answer": "b"}) for n in range(59)]
    (alone / "chats.jsonl").write_text("\n".join(lines))
    code, (issue,) = linted(capsys, "tiny.yaml", probes="chats.jsonl")
    assert (code, issue["message"]) == (1, "the probe set has 59 prompts in this slice, 60 are wanted")


def test_a_home_knows_the_probes_the_lengths_and_the_floor(
    measured: MeasuredHome, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    entries = measured.entries()
    code, issues = linted(capsys, "tiny", home=measured.root)
    below = [("below-noise-floor", field) for field in ("statistical.tv_token", "runtime.batch_invariance")]
    assert (code, [(issue["kind"], issue["field"]) for issue in issues]) == (0, below)
    sliced = tmp_path / "sliced.yaml"
    longer = '60}\n  - {name: longer, where: "prompt_tokens > 2", min_prompts: 60}'
    sliced.write_text(CONTRACT.replace("60}", longer))
    code, issues = linted(capsys, sliced, home=measured.root)
    assert code == 1
    assert ("slice-never-matches", "slices.longer.where") in {(issue["kind"], issue["field"]) for issue in issues}
    assert measured.entries() == entries


def test_a_floor_of_another_reference_or_temperature_says_nothing(
    measured: MeasuredHome, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = tmp_path / "other.yaml"
    for old, new in (("dtype: float32", "dtype: float64"), ("confidence:", 'temperature: "0.5"\nconfidence:')):
        other.write_text(CONTRACT.replace(old, new))
        assert linted(capsys, other, home=measured.root) == (0, [])


def test_what_is_shown_is_the_same_contract_with_its_defaults(
    measured: MeasuredHome, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.show("tiny", home=measured.root)
    text = capsys.readouterr().out
    shown = parse(text, KernelContract, name="shown")
    assert shown.digest == measured.record.digest
    assert f"# digest: {measured.record.digest}\n# cells: 3\n# level: {shown.level}\n" in text
    assert yaml.safe_load(text)["temperature"] == "1"
    commands.show(str(measured.contract), as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert KernelContract.model_validate(document["document"]).digest == document["digest"] == shown.digest


def test_an_edit_of_a_recorded_file_takes_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = MeasuredHome(tmp_path)
    measured.contract.write_text(CONTRACT.replace('"0.95"', '"0.9"'))
    commands.show("tiny", home=measured.root, as_json=True)
    assert json.loads(capsys.readouterr().out)["document"]["confidence"] == "0.9"
    measured.contract.unlink()
    commands.show("tiny", home=measured.root, as_json=True)
    assert json.loads(capsys.readouterr().out)["document"]["confidence"] == "0.95"


def test_explaining_counts_what_is_missing(measured: MeasuredHome, capsys: pytest.CaptureFixture[str]) -> None:
    commands.explain("tiny", home=measured.root, as_json=True)
    document = json.loads(capsys.readouterr().out)
    first = document["promises"][0]
    assert first["field"] == "numerical.half_span"
    assert first["needs"] == [{"slice": "all", "least": 60, "there": 60, "missing": 0}]
    commands.explain("tiny", home=measured.root)
    text = capsys.readouterr().out
    assert "statistical.tv_token" in text
    # The longest answer that was measured has three tokens.
    assert "at each of 3 tokens" in text


def test_explaining_without_probes_says_what_is_not_known(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (alone / "tiny.yaml").write_text(CONTRACT)
    commands.explain("tiny.yaml")
    assert "how many there are is not known before measuring" in capsys.readouterr().out


def test_a_new_contract_is_written_once(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands.init(name="mine", out=alone / "mine.yaml")
    assert capsys.readouterr().out == f"wrote {alone / 'mine.yaml'}\n"
    assert parse_contract((alone / "mine.yaml").read_bytes(), "mine.yaml").name == "mine"
    assert linted(capsys, "mine.yaml") == (0, [])
    before = (alone / "mine.yaml").read_bytes()
    with pytest.raises(DefinitionError, match="there already"):
        commands.init(name="other", out=alone / "mine.yaml")
    assert (alone / "mine.yaml").read_bytes() == before
    commands.init()
    assert parse_contract(capsys.readouterr().out.encode(), "stdout").name == "chat"


@pytest.mark.parametrize("name", ["a b", "", "x\nprobes: others", "x # y"])
def test_a_name_that_cannot_be_one_is_refused(name: str, alone: Path) -> None:
    with pytest.raises(DefinitionError):
        commands.init(name=name, out=alone / "mine.yaml")
    assert not (alone / "mine.yaml").exists()


def test_the_schema_is_printed_or_written(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands.schema()
    assert json.loads(capsys.readouterr().out) == contract_schema()
    commands.schema(out=alone / "schema.json")
    assert json.loads((alone / "schema.json").read_text()) == contract_schema()
