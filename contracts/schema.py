"""The JSON Schema of a contract, for editors: what pydantic knows of the models, in the spellings people write.

Snapline itself reads contracts with the models, which check more than a schema can. It is published as
`kernel-contract.schema.json` beside this module.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from pydantic import BaseModel

from snapline.contracts.clauses import DIAGNOSTICS
from snapline.contracts.contract import KernelContract, Serving

FILE: Final = "kernel-contract.schema.json"
IDENTIFIER: Final = "urn:snapline:schema:kernel-contract:v1"
_DECIMAL: Final = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
_DURATION: Final = r"^\d+[smhdw]$"
_LIMITS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_ATTRIBUTE: Final = re.compile(r"^    (?P<names>\w+(?:, \w+)*): (?P<text>.*(?:\n {8}.*)*)", re.MULTILINE)


def contract_schema() -> dict[str, Any]:
    """Return the schema of a contract document."""
    schema = KernelContract.model_json_schema(mode="validation")
    for model in _models(KernelContract):
        definition = schema if model is KernelContract else schema["$defs"][model.__name__]
        _describe(definition, model)
    dtype = schema["$defs"][Serving.__name__]["properties"]["dtype"]
    schema["$defs"][Serving.__name__]["properties"]["dtype"] = {"anyOf": [dtype["items"], dtype]}
    schema["properties"]["diagnostics"]["items"] = {"enum": list(DIAGNOSTICS)}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": IDENTIFIER, "title": "Kernel contract"}
    written: dict[str, Any] = _as_written(schema)
    return head | {name: value for name, value in written.items() if name != "title"}


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield a model and every model its fields may hold, each once."""
    seen: dict[type[BaseModel], None] = {}
    waiting: list[Any] = [model]
    while waiting:
        found = waiting.pop()
        if isinstance(found, type) and issubclass(found, BaseModel) and found not in seen:
            seen[found] = None
            waiting += [field.annotation for field in found.model_fields.values()]
        waiting += getattr(found, "__args__", ())
    yield from seen


def _describe(definition: dict[str, Any], model: type[BaseModel]) -> None:
    """Put the first paragraph of a model's docstring on it, and what is said of each attribute on its property.

    What a model says of an attribute counts before what the models it extends say.
    """
    definition["description"] = " ".join(inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0].split())
    spelt_out = next((one for one in definition.get("anyOf", ()) if "properties" in one), definition)
    spelt_out["description"] = definition["description"]
    long: dict[str, Any] = spelt_out.get("properties", {})
    for ancestor in reversed(model.__mro__):
        if ancestor is BaseModel or not issubclass(ancestor, BaseModel):
            continue
        _, _, attributes = inspect.cleandoc(ancestor.__doc__ or "").partition("Attributes:\n")
        for found in _ATTRIBUTE.finditer(attributes):
            for name in long.keys() & set(found["names"].split(", ")):
                long[name]["description"] = " ".join(textwrap.dedent(found["text"]).split())


def _as_written(node: Any) -> Any:
    """Return a schema with decimals, durations and limits as JSON Schema has them, and without made-up titles."""
    if isinstance(node, list):
        return [_as_written(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "properties" in node:
        node = node | {"properties": {name: _untitled(value) for name, value in node["properties"].items()}}
    node = {name: _as_written(value) for name, value in node.items()}
    if node.get("format") == "duration":
        node = {name: value for name, value in node.items() if name not in ("format", *_LIMITS)}
        node |= {"pattern": _DURATION}
        if "default" in node:
            node["default"] = _short_duration(node["default"])
    if {"type": "number"} in node.get("anyOf", ()):
        limits = {_LIMITS[name]: _number(node[name]) for name in _LIMITS if name in node}
        node = {name: value for name, value in node.items() if name not in (*_LIMITS, "max_digits")}
        node["anyOf"] = [{"type": "number"} | limits, {"type": "string", "pattern": _DECIMAL}]
    return node


def _untitled(node: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name != "title"}


def _number(limit: Any) -> int | float:
    value = Decimal(str(limit))
    return int(value) if value == value.to_integral_value() else float(value)


def _short_duration(text: str) -> str:
    """Return an ISO 8601 duration of one unit, such as PT1H, the way contracts spell it."""
    return text.lstrip("PT").lower()
