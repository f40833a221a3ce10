"""The normalized content of a row: what two rows must share to count as near-duplicates.

A row's content is the MD5 of its chosen columns, each normalized, marked when null, and written after its own length:

    text      Unicode NFKC and full case folding; punctuation and format characters dropped; runs of white space and
              control characters made one space, and none left at the ends
    numbers   integers, decimals and floats alike, rounded to six decimal places; -0.0 is 0, and every NaN is one NaN
    others    booleans, dates, times, instants, durations and bytes, exactly

MD5 only finds equals here; nothing is trusted because of it. A row whose chosen columns are all null or empty has no
content, and is no duplicate of anything.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import pyarrow as pa
from pyarrow import types

DIGITS = 6
_PIECE = 65_536
_TEXT = "text"
_INTEGER = "integer"
_NUMBERS = {_INTEGER, "decimal", "float"}


def kind(arrow: pa.DataType) -> str:
    """Return how a plain column (see `encoding.plain`) is normalized; nothing for nested ones, which are not."""
    if types.is_large_string(arrow):
        return _TEXT
    if types.is_nested(arrow) or isinstance(arrow, pa.BaseExtensionType):
        return ""
    if types.is_timestamp(arrow):
        return "naive instant" if arrow.tz is None else "instant"
    return next((name for name in sorted(_NUMBERS) if _is_number(arrow, name)), str(arrow))


def _is_number(arrow: pa.DataType, name: str) -> bool:
    checks = {_INTEGER: types.is_integer, "decimal": types.is_decimal, "float": types.is_floating}
    return bool(checks[name](arrow))


def comparable(one: str, other: str) -> bool:
    """Return whether equal values of two kinds are normalized to equal bytes."""
    return one == other or {one, other} <= _NUMBERS


def folded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text in NFKC, case-folded, and in NFKC again, as folding may undo it; nulls stay null."""
    pieces = [column.slice(start, _PIECE) for start in range(0, len(column), _PIECE)]
    return pa.chunked_array([_folded(piece) for piece in pieces], pa.large_string())


def _folded(texts: pa.ChunkedArray) -> pa.Array:
    """Fold many rows as one text: a line break composes with nothing, so between rows it keeps them apart."""
    import pyarrow.compute as pc

    lines = pc.replace_substring(texts.fill_null(""), "\n", " ").to_pylist()
    text = unicodedata.normalize("NFKC", "\n".join(lines)).casefold()
    found = pa.array(unicodedata.normalize("NFKC", text).split("\n"), pa.large_string())
    return pc.if_else(pc.is_valid(texts).combine_chunks(), found, pa.scalar(None, pa.large_string()))


def content_sql(columns: Sequence[tuple[str, str]]) -> str:
    """Return the SQL of a row's content, NULL where it has none.

    Args:
        columns: Each column's SQL name and `kind`; text must be `folded`.
    """
    values = [_normalized(name, kind) for name, kind in columns]
    empty = " AND ".join(f"coalesce({value}, '') = ''" for value in values)
    parts = " || ".join(f"coalesce(length({value}) || ':' || {value}, '-')" for value in values)
    return f"CASE WHEN {empty} THEN NULL ELSE md5({parts}) END"


def _normalized(name: str, kind: str) -> str:
    match kind:
        case "text":
            kept = rf"regexp_replace({name}, '[\p{{P}}\p{{Cf}}]', '', 'g')"
            return rf"trim(regexp_replace({kept}, '[\s\p{{Z}}\p{{Cc}}]+', ' ', 'g'))"
        case "integer":
            return f"CAST({name} AS VARCHAR) || '.{'0' * DIGITS}'"
        case "decimal":
            exact = f"TRY_CAST({name} AS DECIMAL(38, {DIGITS}))"
            return f"coalesce(CAST({exact} AS VARCHAR), CAST({name} AS VARCHAR))"
        case "float":
            # Adding 0.0 turns -0.0 into 0.0.
            return f"format('{{:.{DIGITS}f}}', round(CAST({name} AS DOUBLE), {DIGITS}) + 0.0)"
        case _:
            return f"CAST({name} AS VARCHAR)"
