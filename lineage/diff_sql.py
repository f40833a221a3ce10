"""The rows of one bucket as a DuckDB script that a person can paste: where they lie, which window, and which keys.

DuckDB loads its extensions for Delta, Iceberg, SQLite, PostgreSQL, DuckLake and S3 when they are first used. Where an
Iceberg catalogue is no SQLite file, only pyiceberg knows it, and the table's metadata file must be named by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from snapline.lineage.cut import bucket_end, parse_instant
from snapline.lineage.snapshot import Commit, Snapshot

_TYPES = {"timestamp[utc]": "TIMESTAMPTZ"}
_SQLITE_URL = "sqlite:///"


def select_rows(
    snapshot: Snapshot, types: Mapping[str, str], label: str, commit: Commit, files: Sequence[str], keys: Sequence[Any]
) -> str:
    """Return a script that selects rows of a bucket.

    Args:
        snapshot: Whose series and window they lie in.
        types: The logical type of each column.
        label: The bucket.
        commit: What to read them at.
        files: Where a Parquet source has rows of the bucket, as `read_parquet` finds them.
        keys: The keys to select; every row of the bucket where there are none, or they have no literal.
    """
    series, cut = snapshot.series, snapshot.cut
    setup, table = _table(series.source, commit, files)
    since = max(parse_instant(label), cut.since)
    until = min(bucket_end(label, series.bucket), cut.until)
    kind = _TYPES.get(types.get(series.time, ""), "TIMESTAMP")
    time, key = _identifier(series.time), _identifier(series.key)
    lines = [*setup, f"SELECT * FROM {table}", f"WHERE {time} >= {_instant(since, kind)}"]
    lines.append(f"  AND {time} < {_instant(until, kind)}")
    literals = [_literal(value) for value in keys]
    if literals and None not in literals:
        lines.append(f"  AND {key} IN ({', '.join(str(literal) for literal in literals)})")
    return "\n".join([*lines, f"ORDER BY {key};"])


def _table(source: str, commit: Commit, files: Sequence[str]) -> tuple[list[str], str]:
    """Return what to run first, and the table expression after it."""
    kind, _, rest = source.partition(":")
    place, _, name = rest.rpartition("#")
    match kind:
        case "delta":
            return [], f"delta_scan({_text(rest)}, version => {int(commit.id)})"
        case "iceberg":
            return _iceberg(place, name, commit)
        case "duckdb":
            return _attached(_text(place), "READ_ONLY"), f"source.{_dotted(name)}"
        case "ducklake":
            return _attached(_text(f"ducklake:{place}"), "READ_ONLY"), _at(name, commit)
        case "attach":
            driver, _, place = place.partition(":")
            return _attached(_text(place), f"TYPE {driver}, READ_ONLY"), f"source.{_dotted(name)}"
    return [], f"read_parquet([{', '.join(_text(file) for file in files)}])"


def _attached(place: str, options: str) -> list[str]:
    return [f"ATTACH {place} AS source ({options});"]


def _at(name: str, commit: Commit) -> str:
    return f"source.{_dotted(name)} AT (VERSION => {int(commit.id)})"


def _iceberg(catalog: str, name: str, commit: Commit) -> tuple[list[str], str]:
    namespace, _, table = name.rpartition(".")
    scan = f"iceberg_scan(getvariable('metadata'), snapshot_from_id => {int(commit.id)})"
    file = catalog.removeprefix(_SQLITE_URL)
    if not file.startswith("/"):
        asked = f"-- Put here where the catalogue {catalog} says the metadata of {name} is."
        return [asked, "SET VARIABLE metadata = '';"], scan
    where = f"table_namespace = {_text(namespace)} AND table_name = {_text(table)}"
    chosen = f"SELECT metadata_location FROM source.iceberg_tables WHERE {where}"
    return [*_attached(_text(file), "TYPE sqlite, READ_ONLY"), f"SET VARIABLE metadata = ({chosen});"], scan


def _dotted(name: str) -> str:
    return ".".join(_identifier(part) for part in name.split("."))


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _instant(instant: datetime, kind: str) -> str:
    zone = "+00" if kind == "TIMESTAMPTZ" else ""
    return f"{kind} '{instant.astimezone(UTC).replace(tzinfo=None).isoformat(' ')}{zone}'"


def _literal(value: object) -> str | None:
    """Return a key as SQL; None for a type that is not spelled alike everywhere."""
    if isinstance(value, bool) or not isinstance(value, (int, str, date)) or isinstance(value, datetime):
        return None
    if isinstance(value, int):
        return str(value)
    return _text(value) if isinstance(value, str) else f"DATE '{value.isoformat()}'"
