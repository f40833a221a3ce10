"""Probes: the prompts and answers that stand for the traffic.

A probe table has a unique `id`, exactly one of `messages`, `text` and `token_ids`, exactly one of `answer` and
`answer_ids`, and any further columns to slice by.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from snapline.lineage.digest import BulkAlgorithm, hasher, named
from snapline.lineage.errors import DefinitionError, NotFoundError

PROMPTS = ("messages", "text", "token_ids")
ANSWERS = ("answer", "answer_ids")
COMPUTED = ("prompt_tokens", "answer_tokens")
_HINT = "A probe has id, one of messages, text or token_ids, and one of answer or answer_ids."


def read_probes(path: Path) -> pa.Table:
    """Return the checked probe table in a `.jsonl` or `.parquet` file.

    Raises:
        NotFoundError: There is no such file.
        DefinitionError: It is neither kind of file, or not a probe table; the message names line or row, and column.
    """
    readers = {".jsonl": _read_jsonl, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise DefinitionError(f"{path}: expected a .jsonl or .parquet file of probes")
    try:
        return readers[path.suffix](path)
    except FileNotFoundError as error:
        raise NotFoundError(f"no file {path}", hint="Check the path.") from error
    except (OSError, UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise DefinitionError(f"{path}: cannot be read as probes: {error}", hint=_HINT) from error


def check_probes(table: pa.Table, *, source: str = "probes") -> pa.Table:
    """Return the table with ids as strings and no schema metadata, if it is a probe table.

    Args:
        source: What messages call the table; they count rows from 1.

    Raises:
        DefinitionError: It is not one.
    """
    names = table.column_names
    if len(set(names)) < len(names):
        raise DefinitionError(f"{source}: expected no column twice, found {', '.join(names)}", hint=_HINT)
    checked = {name: table[name].to_pylist() if name in _SHAPES or name == "id" else [] for name in names}
    ids = _checked(checked, source, [f"{source}: row {row}" for row in range(1, table.num_rows + 1)])
    return table.set_column(names.index("id"), "id", pa.array(ids, pa.string())).replace_schema_metadata(None)


def probes_digest(table: pa.Table, algorithm: BulkAlgorithm) -> str:
    """Return the digest of a checked probe table's content, independent of the order of its rows and columns.

    The hashed bytes are JSON lines in the order of `id`: keys sorted, UTF-8, no spaces, floats by the shortest decimal
    that reads back, and what JSON has no kind for, such as an instant, as `{"text": ...}`. So column names and nulls
    count; file layout and integer widths do not.
    """
    state = hasher(algorithm)
    for row in sorted(table.to_pylist(), key=lambda row: str(row["id"])):
        line = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=_tagged)
        state.update(line.encode() + b"\n")
    return named(algorithm, "probes-v1", state.hexdigest())


def probes_to_parquet(table: pa.Table) -> bytes:
    """Return the table as the bytes of a Parquet file."""
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    return stream.getvalue()


def probes_from_parquet(data: bytes) -> pa.Table:
    """Return the table that `probes_to_parquet` wrote."""
    return pq.read_table(io.BytesIO(data))


def _read_parquet(path: Path) -> pa.Table:
    return check_probes(pq.read_table(path), source=str(path))


def _read_jsonl(path: Path) -> pa.Table:
    rows, places = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            rows.append(_parsed(line, f"{path}:{number}"))
            places.append(f"{path}:{number}")
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in names}
    columns["id"] = _checked(columns, str(path), places)
    return pa.table({name: _column(values, f"{path}: column {name!r}") for name, values in columns.items()})


def _parsed(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DefinitionError(f"{place}: not JSON: {error}", hint=_HINT) from error
    if not isinstance(row, dict):
        raise DefinitionError(f"{place}: expected an object, found {_shown(row)}", hint=_HINT)
    return row


def _column(values: list[Any], what: str) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise DefinitionError(f"{what} mixes kinds of values: {error}", hint="Write one kind of value.") from error


def _checked(columns: Mapping[str, Sequence[Any]], source: str, places: Sequence[str]) -> list[str]:
    """Return the ids as strings, if the columns make a probe table; `places` says where each row came from."""
    if not places:
        raise DefinitionError(f"{source}: expected at least one probe, found none", hint=_HINT)
    if taken := [name for name in COMPUTED if name in columns]:
        raise DefinitionError(f"{source}: column {taken[0]!r} is computed when slicing", hint="Rename the column.")
    ids = _checked_ids(columns[_only(("id",), columns, source)], places)
    for name in (_only(PROMPTS, columns, source), _only(ANSWERS, columns, source)):
        expected, fits = _SHAPES[name]
        for place, value in zip(places, columns[name], strict=True):
            if not fits(value):
                raise DefinitionError(f"{place}: {name}: expected {expected}, found {_shown(value)}", hint=_HINT)
    return ids


def _only(choices: Sequence[str], names: Collection[str], source: str) -> str:
    found = [name for name in choices if name in names]
    if len(found) != 1:
        wanted, there = " or ".join(choices), " and ".join(found) or "none of them"
        raise DefinitionError(f"{source}: expected exactly one column {wanted}, found {there}", hint=_HINT)
    return found[0]


def _checked_ids(column: Sequence[Any], places: Sequence[str]) -> list[str]:
    ids = []
    for place, value in zip(places, column, strict=True):
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            raise DefinitionError(f"{place}: id: expected text or an integer, found {_shown(value)}", hint=_HINT)
        ids.append(str(value))
    counted = Counter(ids)
    for place, value in zip(places, ids, strict=True):
        if counted[value] > 1:
            raise DefinitionError(f"{place}: id: {value!r} is given to {counted[value]} probes", hint=_HINT)
    return ids


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_token_id(item) for item in value)


def _is_token_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_message(item) for item in value)


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        # A struct column holds a null for each field another row alone has.
        and {name for name, part in value.items() if part is not None} == {"role", "content"}
        and _is_text(value["role"])
        and isinstance(value["content"], str)
    )


_SHAPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "messages": ("a list of {role, content}, both text", _is_messages),
    "text": ("text that is not empty", _is_text),
    "token_ids": ("a list of token ids that is not empty", _is_token_ids),
    "answer": ("text that is not empty", _is_text),
    "answer_ids": ("a list of token ids that is not empty", _is_token_ids),
}


def _tagged(value: object) -> dict[str, str]:
    return {"text": str(value)}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
