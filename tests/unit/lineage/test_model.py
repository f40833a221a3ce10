"""Model references and version keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from snapline.lineage.errors import DefinitionError
from snapline.lineage.model import Reference, VersionKey, parse_reference


@pytest.mark.parametrize("prefix", ["", "models:/"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("delay-assistant", Reference(name="delay-assistant")),
        ("delay-assistant/3", Reference(name="delay-assistant", version=3)),
        ("delay-assistant@champion", Reference(name="delay-assistant", alias="champion")),
    ],
)
def test_every_spelling_is_understood(prefix: str, text: str, expected: Reference) -> None:
    assert parse_reference(prefix + text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "@",
        "a/",
        "a@",
        "a/b",
        "a/-1",
        "a/1.0",
        "a/1@b",
        "a@b/1",
        "a b",
        " a",
        "a\n/1",
        "models:/",
        "models:/a/b",
        "runs:/a/1",
        "a@b@c",
        "../a",
    ],
)
def test_anything_else_is_refused_with_the_spellings(text: str) -> None:
    with pytest.raises(DefinitionError, match="expected a model") as caught:
        parse_reference(text)
    assert "name@champion" in caught.value.hint


@given(st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True), st.integers(1, 10**9))
def test_a_version_key_reads_back(name: str, version: int) -> None:
    found = parse_reference(str(VersionKey(name=name, version=version)))
    assert (found.name, found.version, found.alias) == (name, version, None)


def test_versions_begin_at_one() -> None:
    with pytest.raises(ValidationError):
        VersionKey(name="a", version=0)
