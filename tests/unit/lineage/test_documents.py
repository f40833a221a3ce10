from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import Field

from snapline.lineage.documents import Value, load, parse
from snapline.lineage.errors import DefinitionError, NotFoundError


class Inner(Value):
    limit: Decimal
    share: int = 0


class Outer(Value):
    name: str
    inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    names: dict[str, str] = Field(default_factory=dict)


def refused(text: str) -> str:
    with pytest.raises(DefinitionError) as caught:
        parse(text, Outer, name="doc.yaml")
    return caught.value.message


def test_yaml_and_json_say_the_same() -> None:
    written = parse("name: x\ninner:\n  limit: 0.10\n", Outer, name="a")
    assert written == parse('{"name": "x", "inner": {"limit": "0.10"}}', Outer, name="b")
    assert written.inner is not None
    assert str(written.inner.limit) == "0.10"


@pytest.mark.parametrize("word", ["no", "on", "null", "1e3", "2013-01-01", "~", "0x10", "1_000"])
def test_words_stay_the_words_somebody_wrote(word: str) -> None:
    assert parse(f"name: {word}", Outer, name="doc").name == word


def test_a_misspelt_field_is_named_with_its_line_and_the_likely_word() -> None:
    message = refused("name: x\ninner:\n  limit: 1\n  shaer: 2\n")
    assert message == "doc.yaml:4: inner.shaer: no such field; did you mean 'share'?"


def test_a_wrong_value_is_named_with_its_line_and_itself() -> None:
    message = refused("name: x\nitems:\n- limit: 1\n- share: 2\n  limit: much\n")
    assert message.startswith("doc.yaml:5: items.1.limit: ")
    assert message.endswith("found 'much'")


def test_a_missing_field_is_named_at_what_should_hold_it() -> None:
    assert refused("name: x\ninner:\n  share: 1\n") == "doc.yaml:2: inner.limit: Field required"


def test_every_mistake_is_told_at_once() -> None:
    assert [line.partition(": ")[0] for line in refused("nmae: x\nitems: []\nextra: 1").splitlines()] == [
        "doc.yaml:1",
        "doc.yaml:1",
        "doc.yaml:3",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "doc.yaml:1: expected a mapping of fields, found NoneType"),
        ("- name", "doc.yaml:1: expected a mapping of fields, found list"),
        ("name: x\nname: y", "doc.yaml:2: 'name' is written twice"),
        ("name: x\nnames:\n  a: b\n  a: c", "doc.yaml:4: 'a' is written twice"),
        ("name: x\nitems: [{limit: 1, limit: 2}]", "doc.yaml:2: 'limit' is written twice"),
        ("name: x\n? [a]\n: b", "doc.yaml:2: expected the name of a field, found a sequence"),
        ("name: x\nnames: {? {a: b} : c}", "doc.yaml:2: expected the name of a field, found a mapping"),
        ("name: &n x\nnames: {a: *n}", "doc.yaml:1: an alias repeats this"),
        ("name: x\nitems: &i [*i]", "doc.yaml:2: an alias repeats this"),
        ("name: 'x", "doc.yaml:1: not YAML: found unexpected end of stream"),
        ("name: x\n---\nname: y", "doc.yaml:2: not YAML: but found another document"),
        ("name: *nobody", "doc.yaml:1: not YAML: found undefined alias"),
    ],
)
def test_what_is_no_plain_mapping_is_refused_at_its_line(text: str, message: str) -> None:
    assert refused(text) == message


@pytest.mark.parametrize("text", ["name: \x00", "name: " + "[" * 100_000, "name: {" * 5_000])
def test_hostile_text_is_refused(text: str) -> None:
    assert "not YAML" in refused(text)


def test_no_tag_ever_runs_anything() -> None:
    assert "items" in refused("name: x\nitems: !!python/object/apply:os.system [id]")


def test_a_file_is_read_and_named_in_messages(tmp_path: Path) -> None:
    path = tmp_path / "view.yaml"
    path.write_text("name: é", encoding="utf-8")
    assert load(path, Outer).name == "é"
    path.write_text("nope: 1")
    with pytest.raises(DefinitionError, match=rf"{path}:1: "):
        load(path, Outer)


@pytest.mark.parametrize("place", ["nothing.yaml", "view.yaml/inside"])
def test_a_missing_file_is_not_found(tmp_path: Path, place: str) -> None:
    (tmp_path / "view.yaml").write_text("name: x")
    with pytest.raises(NotFoundError, match="no file"):
        load(tmp_path / place, Outer)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "binary", tmp_path):
        with pytest.raises(DefinitionError, match="cannot be read as text"):
            load(path, Outer)
