"""Turn what a person calls a source into what is recorded, and what is recorded into a source.

Nothing of a kind of source is imported before one of that kind is opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError

if TYPE_CHECKING:
    from snapline.lineage.sources.protocol import Source

_PREFIX = re.compile(r"([a-z][a-z0-9+.-]*):(.*)", re.DOTALL)
_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]+[a-z0-9](/.*)?", re.DOTALL)
_SECRET = re.compile(r"://[^/#@]*:[^/#@]*@|\bpassword\s*=", re.IGNORECASE)
_CATALOG_FILE = re.compile(r"[^:]*[/.][^:]*")


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one kind of source is written and opened.

    Attributes:
        spelling: What people write.
        factory: Module below `lineage.sources`, and class; called with what `split` gives, then the algorithm.
        split: Takes apart what follows the prefix; raises ValueError where that is malformed.
        absolute: Gives each local path in it the folder it is relative to.
        package: What must be installed; empty where nothing else is needed.
    """

    spelling: str
    factory: str
    split: Callable[[str], tuple[object, ...]]
    absolute: Callable[[str, Path], str]
    package: str = ""


def _place(rest: str) -> tuple[object, ...]:
    """Split PATH, or an s3:// URL."""
    if not rest or (rest.startswith("s3:") and not _BUCKET.fullmatch(rest)):
        raise ValueError(rest)
    return (rest,)


def _table(rest: str) -> tuple[str, str]:
    """Split PLACE#TABLE; a place may hold the sign, a table's name may not."""
    place, _, table = rest.rpartition("#")
    if not place or not table:
        raise ValueError(rest)
    return place, table


def _file_table(rest: str) -> tuple[object, ...]:
    file, table = _table(rest)
    return Path(file), table


def _attached(rest: str) -> tuple[object, ...]:
    """Split KIND:LOCATION#TABLE."""
    kind, _, location = rest.partition(":")
    if kind not in ("sqlite", "postgres"):
        raise ValueError(rest)
    return kind, *_table(location)


def _absolute_place(rest: str, here: Path) -> str:
    return rest.rstrip("/") if rest.startswith("s3:") else str((here / rest).resolve())


def _absolute_file(rest: str, here: Path) -> str:
    file, table = _table(rest)
    return f"{(here / file).resolve()}#{table}"


def _absolute_catalog(rest: str, here: Path) -> str:
    """Take a catalogue for a file when it is spelled like one (`a/b`, `a.db`); else it is a name or a URL."""
    catalog, table = _table(rest)
    scheme, _, path = catalog.rpartition("sqlite:///")
    if scheme or not (path != catalog or _CATALOG_FILE.fullmatch(catalog)):
        return rest
    prefix = catalog.removesuffix(path)
    return f"{prefix}{(here / path).resolve()}#{table}"


def _absolute_attached(rest: str, here: Path) -> str:
    kind, _, location = rest.partition(":")
    return f"{kind}:{_absolute_file(location, here)}" if kind == "sqlite" else rest


# One line a kind. A path has no prefix; `s3` keeps its own, for that is part of the URL.
_KINDS = {
    "": _Kind("PATH", "parquet.ParquetSource", _place, _absolute_place),
    "s3": _Kind("s3://BUCKET/PREFIX", "parquet.ParquetSource", _place, _absolute_place),
    "delta": _Kind("delta:PATH or delta:s3://BUCKET/PREFIX", "delta.DeltaSource", _place, _absolute_place, "deltalake"),
    "iceberg": _Kind("iceberg:CATALOG#TABLE", "iceberg.IcebergSource", _table, _absolute_catalog, "pyiceberg"),
    "duckdb": _Kind("duckdb:FILE#TABLE", "duckdb_file.DuckDBSource", _file_table, _absolute_file),
    "attach": _Kind(
        "attach:sqlite:FILE#TABLE or attach:postgres:DSN#TABLE", "attach.AttachedSource", _attached, _absolute_attached
    ),
    "ducklake": _Kind("ducklake:FILE#TABLE", "ducklake.DuckLakeSource", _table, _absolute_file),
}


def normalise(text: str, here: Path) -> str:
    """Return a source's spelling as it is recorded: every local path absolute, links resolved.

    Args:
        text: What a person wrote.
        here: The folder that relative paths start from.

    Raises:
        DefinitionError: It is no spelling of a source, or holds a password, which would be recorded for good.
    """
    if _SECRET.search(text):
        raise DefinitionError(
            "the source's location holds a password, and would be recorded with it",
            hint="Leave it out; clients find it in the environment (AWS_*, PGPASSWORD) or their own files (~/.pgpass).",
        )
    name, kind, rest = _parse(text)
    written = kind.absolute(rest, here)
    return written if name in ("", "s3") else f"{name}:{written}"


def open_source(spec: str, algorithm: BulkAlgorithm) -> Source:
    """Return the source that a recorded spelling names; nothing of it is read yet.

    Args:
        spec: What `normalise` returned.
        algorithm: The hash for the bytes of its files.

    Raises:
        DefinitionError: It is no spelling of a source, or the package that reads it is not installed.
        NotFoundError: The place cannot be reached.
    """
    name, kind, rest = _parse(spec)
    if kind.package and find_spec(kind.package) is None:
        raise DefinitionError(
            f"reading {name}: sources needs the package {kind.package}, which is not installed",
            hint="pip install 'snapline[lake]'",
        )
    module, _, factory = kind.factory.partition(".")
    opened: Source = getattr(import_module(f"snapline.lineage.sources.{module}"), factory)(*kind.split(rest), algorithm)
    return opened


def _parse(text: str) -> tuple[str, _Kind, str]:
    """Return a spelling's prefix, its kind, and what follows the prefix."""
    found = _PREFIX.fullmatch(text)
    name, rest = (found[1], found[2]) if found else ("", text)
    try:
        kind = _KINDS[name]
        rest = text if name == "s3" else rest
        kind.split(rest)
    except (KeyError, ValueError) as error:
        raise DefinitionError(
            f"expected a source, found {text!r}: it is spelled {'; '.join(kind.spelling for kind in _KINDS.values())}",
            hint="A path whose name has a colon is written ./NAME.",
        ) from error
    return name, kind, rest
