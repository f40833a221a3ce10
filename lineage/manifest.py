"""Manifests at rest: one Parquet object per snapshot, and the quick check of its source files.

Everything here is cheap to import and never parses a source's rows: it is what a gate needs of a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from snapline.lineage.digest import BulkAlgorithm, file_hex
from snapline.lineage.errors import IntegrityError
from snapline.lineage.files import HashedFile, stamp_of
from snapline.lineage.snapshot import Manifest
from snapline.lineage.sources.parquet import locate

_TEXT, _COUNT = pa.string(), pa.int64()
_STAMP = pa.struct([(name, _COUNT) for name in ("size_bytes", "mtime_ns", "ctime_ns")] + [("inode", pa.uint64())])
_SCHEMA = pa.schema(
    [
        ("columns", pa.list_(pa.struct([("name", _TEXT), ("type", _TEXT)]))),
        ("buckets", pa.list_(pa.struct([("label", _TEXT), ("rows", _COUNT), ("hexdigest", _TEXT)]))),
        ("left_out", pa.list_(pa.struct([("label", _TEXT), ("rows", _COUNT)]))),
        ("files", pa.list_(pa.struct([("path", _TEXT), ("stamp", _STAMP), ("hexdigest", _TEXT)]))),
    ]
)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as Parquet: one row whose lists DuckDB can `unnest`. Equal manifests, equal bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([manifest.model_dump()], schema=_SCHEMA), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest that `encode_manifest` wrote.

    Raises:
        IntegrityError: The bytes are no manifest.
    """
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            (row,) = file.read().to_pylist()
        return Manifest.model_validate(row)
    except (pa.ArrowException, OSError, ValueError, ValidationError) as error:
        raise IntegrityError(
            f"a snapshot's manifest cannot be read: {error}", hint="Restore the object from a copy of this home."
        ) from error


def changed_files(files: Iterable[HashedFile], source: Path, algorithm: BulkAlgorithm) -> tuple[str, ...]:
    """Return the files of a source that are not as they were hashed: other bytes, added or removed.

    A file whose stamp is unchanged is not read; one whose stamp differs is hashed, so a file that was put back counts
    as unchanged.

    Raises:
        NotFoundError: The source is gone.
    """
    folder, names = locate(source)
    then = {file.path: file for file in files}
    changed = set(names) ^ then.keys()
    for name in set(names) & then.keys():
        path = folder / name
        if stamp_of(path) != then[name].stamp and file_hex(path, algorithm) != then[name].hexdigest:
            changed.add(name)
    return tuple(sorted(changed))
