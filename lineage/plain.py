"""Answers of SQL as JSON and CSV: every Arrow value as the plainest thing that says the same."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa


def plain(value: Any) -> Any:  # noqa: PLR0911 - one return per kind of value
    """Return a value as JSON has it.

    Instants are ISO 8601, decimals numbers when whole and text otherwise, bytes hex digits. A float that is not finite
    is NULL, for JSON has no such number.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return int(value) if value == value.to_integral_value() else str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case bytes():
            return value.hex()
        case dict():
            return {str(name): plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return str(value)


def text_of(value: Any) -> str:
    """Return a value as one cell of text; NULL is empty, and what is nested is JSON."""
    found = plain(value)
    if found is None:
        return "" if value is None else str(value)
    if isinstance(found, bool):
        return "true" if found else "false"
    return json.dumps(found, ensure_ascii=False) if isinstance(found, list | dict) else str(found)


def as_json(table: pa.Table) -> str:
    """Return a table as one JSON document: `columns`, with their Arrow types, and `rows`, each by column name."""
    columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
    rows = [{name: plain(value) for name, value in row.items()} for row in table.to_pylist()]
    return json.dumps({"columns": columns, "rows": rows}, indent=2, ensure_ascii=False) + "\n"


def as_csv(table: pa.Table) -> str:
    """Return a table as CSV with a header; NULL is an empty cell."""
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows(
        [text_of(value) for value in row] for row in zip(*(c.to_pylist() for c in table.columns), strict=True)
    )
    return sink.getvalue()
