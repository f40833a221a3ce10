"""Probes: the prompts and answers that stand for the traffic.

A probe table has a unique `id`, exactly one of `messages`, `text` and `token_ids`, exactly one of `answer` and
`answer_ids`, and any further columns to slice by.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
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


def check_probes(table: pa.Table, *, source: str = "probes", lines: Sequence[int] | None = None) -> pa.Table:
    """Return the table with ids as strings and no schema metadata, if it is a probe table.

    Args:
        source: What messages call the table.
        lines: The line each row was read from; without it messages count rows from 1.

    Raises:
        DefinitionError: It is not one.
    """
    names = table.column_names
    if len(set(names)) < len(names) or "id" not in names:
        raise DefinitionError(f"{source}: expected a column id and no name twice, found {', '.join(names)}", hint=_HINT)
    prompt, answer = _only(PROMPTS, names, source), _only(ANSWERS, names, source)
    if taken := [name for name in COMPUTED if name in names]:
        raise DefinitionError(f"{source}: column {taken[0]!r} is computed when slicing", hint="Rename the column.")
    if not table.num_rows:
        raise DefinitionError(f"{source}: expected at least one probe, found none", hint=_HINT)
    places = [f"{source}:{line}" for line in lines] if lines else [f"{source}: row {n + 1}" for n in range(len(table))]
    ids = _checked_ids(table["id"], places)
    for name in (prompt, answer):
        expected, fits = _SHAPES[name]
        for place, value in zip(places, table[name].to_pylist(), strict=True):
            if not fits(value):
                raise DefinitionError(f"{place}: {name}: expected {expected}, found {_shown(value)}", hint=_HINT)
    return table.set_column(names.index("id"), "id", pa.array(ids, pa.string())).replace_schema_metadata(None)


def probes_digest(table: pa.Table, algorithm: BulkAlgorithm) -> str:
    """Return the digest of a checked probe table's content, independent of the order of its rows and columns.

    The hashed bytes are JSON lines in the order of `id`: keys sorted, UTF-8, no spaces, floats by their shortest
    decimal that reads back, and what JSON has no kind for as an object of its kind and text. So column names, nulls and
    the kind of every value count; file layout and integer widths do not.
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


def tokenize_requests(table: pa.Table) -> list[dict[str, Any]]:
    """Return what a tokenizer needs of each probe: its id, its one prompt column and its one answer column."""
    wanted = [name for name in table.column_names if name in ("id", *PROMPTS, *ANSWERS)]
    rows: list[dict[str, Any]] = table.select(wanted).to_pylist()
    return rows


def _read_jsonl(path: Path) -> pa.Table:
    rows, lines = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DefinitionError(f"{path}:{number}: not JSON: {error}", hint=_HINT) from error
        if not isinstance(row, dict):
            raise DefinitionError(f"{path}:{number}: expected an object, found {_shown(row)}", hint=_HINT)
        rows.append(row)
        lines.append(number)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _column([row.get(name) for row in rows], f"{path}: column {name!r}") for name in names}
    return check_probes(pa.table(columns), source=str(path), lines=lines)


def _column(values: list[Any], source: str) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise DefinitionError(f"{source} mixes kinds of values: {error}", hint="Write one kind of value.") from error


def _read_parquet(path: Path) -> pa.Table:
    return check_probes(pq.read_table(path), source=str(path))


def _only(choices: Sequence[str], names: Sequence[str], source: str) -> str:
    found = [name for name in choices if name in names]
    if len(found) != 1:
        wanted, there = " or ".join(choices), " and ".join(found) or "none of them"
        raise DefinitionError(f"{source}: expected exactly one column of {wanted}, found {there}", hint=_HINT)
    return found[0]


def _checked_ids(column: pa.ChunkedArray, places: Sequence[str]) -> list[str]:
    ids = []
    for place, value in zip(places, column.to_pylist(), strict=True):
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
    return isinstance(value, list) and bool(value) and all(isinstance(item, int) and item >= 0 for item in value)


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_message(item) for item in value)


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"role", "content"}
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
    return {type(value).__name__: str(value)}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
