from __future__ import annotations

from pathlib import Path

import pytest
from lineage_home import VIEW, LineageHome

from snapline.lineage.errors import DefinitionError, NotFoundError


@pytest.fixture
def home(tmp_path: Path) -> LineageHome:
    home = LineageHome(tmp_path)
    home.take()
    return home


def test_the_same_definition_twice_records_nothing_new(home: LineageHome) -> None:
    view = home.define()
    length = home.ledger.load().length
    assert home.define() == view
    assert home.define(f"# a comment\n{VIEW}") == view
    assert home.ledger.load().length == length
    assert home.state.views["delays"] == view


def test_code_and_policy_are_recorded_anew_and_only_code_is_another_view(home: LineageHome) -> None:
    first = home.define()
    stricter = home.define(VIEW.replace("36500d", "1d"))
    assert stricter.digest == first.digest
    assert home.state.views["delays"].definition.refresh.max_age == stricter.definition.refresh.max_age
    edited = home.define(trainer="print('other')\n")
    assert edited.digest != first.digest
    assert set(home.state.view_versions) == {first.digest, edited.digest}
    assert home.objects.read(edited.code[0].object) == b"print('other')\n"


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("{trips: trips}", "{trips: nothing}", NotFoundError, "no snapshot 'nothing'; there are: trips"),
        ("max_age: 36500d", "max_lag: 3", DefinitionError, "max_lag: counts source commits"),
        ("seed: 7}", "seed: 7}\nbase_model: nobody/1", NotFoundError, "no model 'nobody'"),
        ("seed: 7}", "seed: 7}\nbase_model: a b", DefinitionError, "expected a model, found 'a b'"),
        ("code: [train.py]", "code: [gone.py]", NotFoundError, "gone.py"),
        ("query:", "qwery:", DefinitionError, "did you mean 'query'"),
        ("max_age: 36500d", "on_erasure: open", DefinitionError, "on_erasure"),
    ],
)
def test_a_view_that_cannot_be_kept_is_not_recorded(
    home: LineageHome, old: str, new: str, error: type[Exception], message: str
) -> None:
    assert old in VIEW
    with pytest.raises(error, match=message):
        home.define(VIEW.replace(old, new))
    assert not home.state.views


def test_a_base_model_must_be_known_in_that_very_version(home: LineageHome) -> None:
    home.register("base", 1)
    text = VIEW.replace("seed: 7}", "seed: 7}\nbase_model: base/2")
    with pytest.raises(NotFoundError, match="has versions 1 to 1, not 2"):
        home.define(text)
    home.register("base", 2)
    assert home.define(text).definition.base_model == "base/2"
