from __future__ import annotations

from pathlib import Path

import pytest
from histories import fleet, home_of

from snapline.cli.output import Output
from snapline.cli.status_page import draw
from snapline.cli.wiring import Home
from snapline.lineage.errors import DefinitionError


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(home_of(tmp_path / "home", fleet()))


def test_the_page_is_drawn_though_a_manifest_is_gone(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The home was made of bare events: no snapshot has its manifest."""
    draw(tmp_path / "page.html", home, Output(False), ("model",), [("left/1",)])
    page = (tmp_path / "page.html").read_text()
    assert page.count('class="chart"') == 6
    assert "<td>left/1</td>" in page
    told = capsys.readouterr()
    assert told.out == ""
    assert "trips@" in told.err
    assert "is not drawn: object" in told.err
    assert f"drawn into {tmp_path / 'page.html'}" in told.err


def test_a_page_that_cannot_be_written_is_said(home: Home, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="cannot write"):
        draw(tmp_path / "nowhere" / "page.html", home, Output(False), ("model",), [])
