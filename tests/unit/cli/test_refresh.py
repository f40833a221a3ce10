"""What a refresh plan says, as a document and to people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from snapline.cli.refresh import duration, plan
from snapline.lineage.errors import DefinitionError, NotFoundError

HOT = "{name: hot, weight: 1, change_rate: 10}"
WARM = "{name: warm, weight: 1, change_rate: 0.1}"
COLD = "{name: 'cold [eu]', weight: 1, change_rate: 0.05}"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def policy(*segments: str, budget: str = "0.3") -> Path:
    path = Path("policy.yaml")
    head = f"apiVersion: snapline/v1\nkind: RefreshPolicy\nbudget: {budget}\nsegments:\n"
    path.write_text(head + "".join(f"- {segment}\n" for segment in segments))
    return path


def document(capsys: pytest.CaptureFixture[str], *segments: str, budget: str = "0.3") -> dict[str, Any]:
    plan(policy(*segments, budget=budget), as_json=True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def text(capsys: pytest.CaptureFixture[str], *segments: str, budget: str = "0.3") -> str:
    plan(policy(*segments, budget=budget))
    return capsys.readouterr().out


def test_a_plan_needs_no_home_and_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, HOT, WARM, COLD)
    assert found["segments"][0] == {"name": "hot", "rate": 0, "interval": None, "exposure": 1}
    assert [row["name"] for row in found["segments"]] == ["hot", "warm", "cold [eu]"]
    assert found["segments"][1]["interval"] == pytest.approx(1 / 0.171150, rel=1e-5)
    assert found["exposure"] == pytest.approx(1.413855, abs=5e-7)
    assert found["exposure"] == pytest.approx(sum(row["exposure"] for row in found["segments"]))
    assert found["saving"] == pytest.approx(1 - found["exposure"] / found["exposure_uniform"])
    assert found["saving_square_root"] == pytest.approx(1 - found["exposure"] / found["exposure_square_root"])
    assert (found["equivalent_timer"], found["unit"], found["budget"]) == (None, "day", 0.3)


def test_people_are_told_what_is_not_worth_it_and_what_is_saved(capsys: pytest.CaptureFixture[str]) -> None:
    told = text(
        capsys, HOT, WARM, COLD, "{name: old, weight: 1, change_rate: 0}", "{name: x, weight: 0, change_rate: 1}"
    )
    rows = {line.split()[0]: line for line in told.splitlines() if line.strip()}
    assert "not worth refreshing at this budget" in rows["hot"]
    assert "5.843 days" in rows["warm"]
    assert "cold [eu]" in rows["cold"]
    assert "never: it does not change" in rows["old"]
    assert "never: it has no weight" in rows["x"]
    assert "stale exposure 1.41386 at a budget of 0.3 a day" in told
    assert "the square-root law gives 2.38385; this saves 40.7% of it" in told
    assert "timer" not in told


def test_one_segment_is_a_timer(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "{name: all, weight: 3, change_rate: 10, cost: 2}", budget="4")
    assert found["equivalent_timer"] == pytest.approx(0.5)
    assert (found["saving"], found["saving_square_root"]) == (pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-12))
    assert "equivalent to a timer of 12 hours" in text(capsys, HOT, budget="2")


def test_segments_that_all_want_one_interval_are_a_timer(capsys: pytest.CaptureFixture[str]) -> None:
    alike = [f"{{name: s{n}, weight: 2, change_rate: 0.1}}" for n in range(3)]
    assert document(capsys, *alike)["equivalent_timer"] == pytest.approx(10)
    assert document(capsys, *alike, WARM)["equivalent_timer"] is None


def test_where_nothing_changes_there_is_nothing_to_save_and_no_timer(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "{name: still, weight: 1, change_rate: 0}")
    assert found["segments"] == [{"name": "still", "rate": 0, "interval": None, "exposure": 0}]
    assert (found["saving"], found["exposure_uniform"], found["equivalent_timer"]) == (0, 0, None)


def test_history_takes_a_home_and_a_wrong_document_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotFoundError, match="no Snapline home"):
        plan(policy("{name: a, weight: 1, snapshot: trips}"))
    with pytest.raises(DefinitionError, match=r"policy.yaml:5: segments.0.weight: "):
        plan(policy("{name: a, weight: -1, snapshot: trips}"))
    with pytest.raises(NotFoundError, match="no file"):
        plan(Path("nothing.yaml"))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("days", "told"),
    [(400, "400 days"), (1, "1 days"), (0.5, "12 hours"), (1 / 96, "15 minutes"), (1e-6, "0.0864 seconds")],
)
def test_a_length_of_time_is_told_in_its_largest_unit(days: float, told: str) -> None:
    assert duration(days) == told
