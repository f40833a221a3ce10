"""Manifests at rest: one Parquet object per snapshot, and the quick check of its source files.

Everything here is cheap to import and never parses a source's rows: it is what a gate needs of a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from snapline.lineage.errors import IntegrityError, NotFoundError
from snapline.lineage.files import HashedFile, SourceFile, stamp_of
from snapline.lineage.objects import ObjectStore
from snapline.lineage.snapshot import Commit, Manifest
from snapline.lineage.sources.protocol import Source
from snapline.lineage.stat_cache import StatCache

if TYPE_CHECKING:
    import pyarrow as pa

FILES_RECIPE = "manifest-files-v1"
_FILES: TypeAdapter[tuple[SourceFile, ...]] = TypeAdapter(tuple[SourceFile, ...])


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as Parquet: one row whose lists DuckDB can `unnest`. Equal manifests, equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([manifest.model_dump()], schema=_schema()), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest that `encode_manifest` wrote.

    Raises:
        IntegrityError: The bytes are no manifest.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            # With Arrow's threads, a process that leaves right after this is sometimes aborted.
            (row,) = file.read(use_threads=False).to_pylist()
        return Manifest.model_validate(row)
    except (pa.ArrowException, OSError, ValueError, ValidationError) as error:
        raise IntegrityError(
            f"a snapshot's manifest cannot be read: {error}", hint="Restore the object from a copy of this home."
        ) from error


def changed_files(files: Iterable[HashedFile], source: Source, commit: Commit) -> tuple[str, ...]:
    """Return the files of a commit that are not as they were hashed: other bytes, added, removed or gone.

    A file whose stamp is unchanged is not read; one whose stamp differs is hashed, so a file that was put back counts
    as unchanged.

    Raises:
        NotFoundError: The source is gone.
    """
    names, then = set(source.names(commit)), {file.path: file for file in files}
    changed = names ^ then.keys()
    return tuple(sorted(changed | {name for name in names & then.keys() if _moved(source, then[name])}))


def _moved(source: Source, file: HashedFile) -> bool:
    try:
        return source.stamp(file.path) != file.stamp and source.hexdigest(file.path) != file.hexdigest
    except NotFoundError:
        return True


def files_of(address: str, objects: ObjectStore, cache: StatCache | None) -> tuple[SourceFile, ...]:
    """Return the source files a manifest object lists; its bytes are verified, and parsed only if the cache forgot.

    Raises:
        IntegrityError: The object is missing, holds other bytes, or is no manifest.
    """
    data, path = objects.read(address), objects.path(address)
    stamp = stamp_of(path)
    known = cache.get(path, stamp, FILES_RECIPE) if cache else None
    if known is not None:
        return _FILES.validate_json(known)
    files = decode_manifest(data).files
    if cache:
        cache.put(path, stamp, FILES_RECIPE, _FILES.dump_json(files).decode())
    return files


def _schema() -> pa.Schema:
    import pyarrow as pa

    text, count = pa.string(), pa.int64()
    stamp = pa.struct([(name, count) for name in ("size_bytes", "mtime_ns", "ctime_ns")] + [("inode", pa.uint64())])
    return pa.schema(
        [
            ("columns", pa.list_(pa.struct([("name", text), ("type", text)]))),
            ("buckets", pa.list_(pa.struct([("label", text), ("rows", count), ("hexdigest", text)]))),
            ("left_out", pa.list_(pa.struct([("label", text), ("rows", count)]))),
            (
                "files",
                pa.list_(
                    pa.struct(
                        [
                            ("path", text),
                            ("stamp", stamp),
                            ("hexdigest", text),
                            ("first", text),
                            ("last", text),
                            ("later", count),
                        ]
                    )
                ),
            ),
            ("erasures", pa.list_(text)),
            ("erased", count),
        ]
    )
