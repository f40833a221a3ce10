"""Read the YAML or JSON documents people write, and point at the line when one is wrong.

Scalars are read as text and given their types by the document's pydantic model. So `limit: 0.10` and `limit: "0.10"`
mean the same decimal, no float is ever made on the way to a digest, and `no` stays the word somebody wrote.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from snapline.lineage.errors import DefinitionError, NotFoundError

Document = TypeVar("Document", bound=BaseModel)


class Value(BaseModel):
    """A frozen value that knows no field it was not declared with."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Received(BaseModel):
    """A frozen value from a document we received; fields it does not know are left where they are."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def load(path: Path, model: type[Document]) -> Document:
    """Return the document at `path` as a `model`.

    Raises:
        NotFoundError: There is no such file.
        DefinitionError: It is not YAML or does not fit the model; the message names file, line and field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"no file {path}", hint="Check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{path}: cannot be read as text: {error}", hint="Write it as UTF-8 text.") from error
    return parse(text, model, name=str(path))


def parse(text: str, model: type[Document], *, name: str) -> Document:
    """Return `text` as a `model`; `name` is what messages call it.

    Raises:
        DefinitionError: It is not YAML or does not fit the model.
    """
    try:
        root = yaml.compose(text, Loader=yaml.CBaseLoader)
        _refuse_surprises(root, name, set())
        content = yaml.load(text, Loader=yaml.CBaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise DefinitionError(
            f"{name}{line}: not YAML: {getattr(error, 'problem', error)}", hint="Correct the line and run it again."
        ) from error
    if not isinstance(content, dict):
        raise DefinitionError(
            f"{name}:1: expected a mapping of fields, found {type(content).__name__}",
            hint="Write it as FIELD: VALUE lines.",
        )
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise DefinitionError(
            _explain(error, root, model, name), hint="Fix the named field and run it again."
        ) from None


def _refuse_surprises(node: yaml.Node | None, name: str, seen: set[int]) -> None:
    """Raise where YAML offers more than a tree of named fields: a key twice, a key that is no word, an alias."""
    if node is None:
        return
    if id(node) in seen:
        raise DefinitionError(f"{name}:{node.start_mark.line + 1}: an alias repeats this", hint="Write it out twice.")
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise DefinitionError(
                    f"{name}:{line}: expected the name of a field, found a {key.id}",
                    hint="Write a word before the colon.",
                )
            if key.value in keys:
                raise DefinitionError(f"{name}:{line}: {key.value!r} is written twice", hint="Keep one of the two.")
            keys.add(key.value)
            _refuse_surprises(value, name, seen)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_surprises(item, name, seen)


def _explain(error: ValidationError, root: yaml.Node | None, model: type[BaseModel], name: str) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        line, written = _locate(root, problem["loc"])
        field = ".".join(str(part) for part in written) or "(document)"
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = "no such field" + _nearest(str(written[-1]), model)
        elif problem["type"] != "value_error" and not isinstance(problem["input"], (dict, list)):
            message += f", found {problem['input']!r}"
        lines.append(f"{name}:{line}: {field}: {message}")
    return "\n".join(lines)


def _locate(node: yaml.Node | None, location: tuple[int | str, ...]) -> tuple[int, list[int | str]]:
    """Return the line of the deepest part of `location` the text really has, and that path (union tags left out)."""
    line, written = (node.start_mark.line + 1 if node else 1), []
    for position, part in enumerate(location):
        found: tuple[yaml.Node, int] | None = None
        if isinstance(node, yaml.MappingNode):
            found = next(((value, key.start_mark.line + 1) for key, value in node.value if key.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = (node.value[part], node.value[part].start_mark.line + 1)
        if found:
            node, line = found
            written.append(part)
        elif position == len(location) - 1:
            written.append(part)
    return line, written


def _nearest(word: str, model: type[BaseModel]) -> str:
    known = set(model.model_fields) | {field for nested in _nested(model) for field in nested.model_fields}
    match = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {match[0]!r}?" if match else ""


def _nested(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        children = [_nested(field.annotation) for field in annotation.model_fields.values()]
        return [annotation, *(model for found in children for model in found)]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _nested(argument)]
