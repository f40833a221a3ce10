"""The digest of a folder of weights, by file and by tensor, so that a mismatch says which tensor.

Every regular file under the folder counts: a changed `config.json` changes what the weights compute. Names are compared
as they are written, and nothing but a name, a size and bytes is hashed: not the folder's place, not a time, not a mode.
Files are read in chunks and never mapped, since a mapped file that somebody truncates kills the process; with the page
cache warm, mapping was no faster. Pickles are never opened as pickles.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, TypeVar

from pydantic import StringConstraints, ValidationError

from snapline.lineage.digest import (
    BulkAlgorithm,
    Digest,
    Hasher,
    canonical_json,
    hasher,
    merkle_root,
    named,
    require_equal,
)
from snapline.lineage.documents import Value
from snapline.lineage.errors import ConflictError, DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.files import FileStamp, HashedFile, hash_file, stamp_of
from snapline.lineage.safetensors_layout import read_layout
from snapline.lineage.stat_cache import StatCache
from snapline.lineage.weights_folder import SAFETENSORS, refuse_unusable, require_folder, scan

_CHUNK_BYTES = 1 << 20

Result = TypeVar("Result")
Report = Callable[[str, int, int], None]
"""Hears of progress as (what, done, total), here in bytes; from several threads, but one at a time."""
Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class TensorDigest(Value):
    """One tensor of a safetensors file and the hex digest of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    hexdigest: Hex


class WeightsFile(Value):
    """One file, by its path under the folder; `tensors`, in order of name, is empty unless it is a safetensors file."""

    path: str
    size_bytes: int
    hexdigest: Hex
    tensors: tuple[TensorDigest, ...] = ()


class WeightsManifest(Value):
    """What a folder of weights holds, its files in order of path. The same bytes give the same manifest anywhere."""

    digest: Digest
    files: tuple[WeightsFile, ...]

    @property
    def size_bytes(self) -> int:
        """The sum of the files' sizes."""
        return sum(file.size_bytes for file in self.files)


def weights_digest(files: Iterable[WeightsFile], algorithm: BulkAlgorithm) -> str:
    """Return `<algorithm>-weights-v1:…`: the Merkle root over every file, by path, each followed by its tensors.

    A leaf is the canonical JSON of a file's path, size and digest, or of a tensor's name, dtype, shape, size, digest.
    """
    leaves = []
    for file in files:
        leaves.append(canonical_json({"file": file.model_dump(mode="json", exclude={"tensors"})}))
        leaves += [canonical_json({"tensor": tensor.model_dump(mode="json")}) for tensor in file.tensors]
    return named(algorithm, "weights-v1", merkle_root(leaves, algorithm))


def encode_manifest(manifest: WeightsManifest) -> bytes:
    """Return the manifest's canonical bytes."""
    return canonical_json(manifest.model_dump(mode="json"))


def decode_manifest(data: bytes) -> WeightsManifest:
    """Return the manifest that `encode_manifest` wrote.

    Raises:
        IntegrityError: The bytes are none.
    """
    try:
        return WeightsManifest.model_validate_json(data)
    except ValidationError as error:
        raise IntegrityError("the object is no manifest of weights", hint="Restore it from a copy.") from error


def measure_weights(
    folder: Path,
    algorithm: BulkAlgorithm,
    *,
    cache: StatCache | None = None,
    allow_pickle: bool = False,
    on_progress: Report | None = None,
) -> WeightsManifest:
    """Return what a folder of weights holds, reading each file that the cache does not vouch for.

    Args:
        folder: The folder itself: no link, and no `..` in its path.
        algorithm: The hash.
        cache: Whole measurements of unmoved files; None reads everything.
        allow_pickle: Admit files that a careless loader would unpickle.
        on_progress: Hears of the bytes read.

    Raises:
        NotFoundError: There is no such folder.
        DefinitionError: It is no folder, holds no weights, or holds something that is refused; the message names it.
        ConflictError: A file changed while it was read.
    """
    require_folder(folder)
    stamps, refused = scan(folder)
    refuse_unusable(folder, stamps, refused, allow_pickle=allow_pickle)
    recipe = f"{algorithm}-weights-file-v1"
    known = {path: _remembered(cache, folder, path, stamp, recipe) for path, stamp in stamps.items()}
    missing = [path for path, file in known.items() if file is None]
    advance = _advance(on_progress, sum(stamps[path].size_bytes for path in missing))
    measured = dict(zip(missing, _each(lambda path: _measure(folder, path, algorithm, advance), missing), strict=True))
    for path, (stamp, file) in measured.items():
        if cache is not None:
            cache.put(folder / path, stamp, recipe, file.model_dump_json())
            cache.put(folder / path, stamp, _file_recipe(algorithm), file.hexdigest)
    files = sorted((file or measured[path][1] for path, file in known.items()), key=lambda file: file.path)
    return WeightsManifest(digest=weights_digest(files, algorithm), files=tuple(files))


def check_weights(
    manifest: WeightsManifest, folder: Path, algorithm: BulkAlgorithm, *, cache: StatCache | None, full: bool
) -> tuple[str, ...]:
    """Return how a folder differs from its manifest, one sentence each; empty when every byte is the same.

    A file is read only when the cache does not vouch for it. What was read is remembered.

    Args:
        manifest: What the folder held.
        folder: Where.
        algorithm: The hash the manifest was made with.
        cache: Digests of unmoved files; None reads everything.
        full: Read everything, whatever the cache says, and hold the manifest against its own digest.

    Raises:
        NotFoundError: The folder is gone.
        IntegrityError: The manifest's digest is not that of the files it lists.
        ConflictError: A file changed while it was read.
    """
    if full:
        require_equal("digest of the weights manifest", manifest.digest, weights_digest(manifest.files, algorithm))
    if folder.is_symlink():
        return (f"{folder} has become a symbolic link",)
    if not folder.is_dir():
        raise NotFoundError(f"no weights folder {folder}", hint="Put it back, or register the weights where they are.")
    stamps, refused = scan(folder)
    expected = {file.path: file for file in manifest.files}
    sentences = [f"{path} {what}" for path, what in refused.items()]
    sentences += _unmatched("", expected, {*stamps, *refused}, "file")
    recipe = _file_recipe(algorithm)
    doubtful = [
        path
        for path in sorted(expected.keys() & stamps.keys())
        if full or cache is None or cache.get(folder / path, stamps[path], recipe) != expected[path].hexdigest
    ]
    for found in _each(lambda path: hash_file(folder, path, algorithm), doubtful):
        if cache is not None:
            cache.put(folder / found.path, found.stamp, recipe, found.hexdigest)
        if found.hexdigest != expected[found.path].hexdigest:
            sentences += _explain(expected[found.path], folder, found, algorithm)
    return tuple(sentences)


def differences(expected: WeightsManifest, found: WeightsManifest) -> tuple[str, ...]:
    """Return how two folders differ, one sentence for each file or tensor that is missing, extra or changed."""
    then, now = ({file.path: file for file in manifest.files} for manifest in (expected, found))
    sentences = _unmatched("", then, now, "file")
    for path in sorted(then.keys() & now.keys()):
        if then[path] != now[path]:
            sentences += _file_differences(then[path], now[path])
    return tuple(sentences)


def _file_recipe(algorithm: BulkAlgorithm) -> str:
    return f"{algorithm}-file-v1"


def _unmatched(prefix: str, expected: Iterable[str], found: Iterable[str], what: str) -> list[str]:
    then, now = set(expected), set(found)
    return [f"{prefix}{what} {name} is missing" for name in sorted(then - now)] + [
        f"{prefix}{what} {name} is extra" for name in sorted(now - then)
    ]


def _file_differences(expected: WeightsFile, found: WeightsFile) -> list[str]:
    then, now = ({tensor.name: tensor for tensor in file.tensors} for file in (expected, found))
    prefix = f"{expected.path}: "
    sentences = _unmatched(prefix, then, now, "tensor")
    for name in sorted(then.keys() & now.keys()):
        before, after = then[name], now[name]
        if (before.dtype, before.shape) != (after.dtype, after.shape):
            forms = [f"{tensor.dtype} {list(tensor.shape)}" for tensor in (before, after)]
            sentences.append(f"{prefix}tensor {name} was {forms[0]}, is {forms[1]}")
        elif before != after:
            sentences.append(f"{prefix}tensor {name} changed")
    if sentences:
        return sentences
    return [f"{prefix}its header changed, no tensor did" if then else f"{prefix}its bytes changed"]


def _explain(expected: WeightsFile, folder: Path, found: HashedFile, algorithm: BulkAlgorithm) -> list[str]:
    """Say what changed in a file whose digest no longer holds, tensor by tensor where that can still be told."""
    if not expected.tensors:
        return [f"{expected.path}: its bytes changed"]
    try:
        return _file_differences(expected, _measure(folder, found.path, algorithm, _advance(None, 0))[1])
    except DefinitionError as error:
        return [f"{expected.path}: its bytes changed: {error.message}"]


def _remembered(cache: StatCache | None, folder: Path, path: str, stamp: FileStamp, recipe: str) -> WeightsFile | None:
    value = cache.get(folder / path, stamp, recipe) if cache is not None else None
    try:
        file = WeightsFile.model_validate_json(value) if value is not None else None
    except ValidationError:
        return None
    return file.model_copy(update={"path": path}) if file else None


def _advance(report: Report | None, total_bytes: int) -> Callable[[int], None]:
    lock, done = threading.Lock(), 0

    def advance(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            if report is not None:
                report("hashing weights", done, total_bytes)

    return advance


def _each(work: Callable[[str], Result], paths: list[str]) -> list[Result]:
    """Return `work` of every path, in order; both hashes let other threads run."""
    if len(paths) < 2:
        return [work(path) for path in paths]
    with ThreadPoolExecutor(max_workers=min(len(paths), os.cpu_count() or 1)) as pool:
        return list(pool.map(work, paths))


def _measure(
    folder: Path, path: str, algorithm: BulkAlgorithm, advance: Callable[[int], None]
) -> tuple[FileStamp, WeightsFile]:
    """Hash a file and each tensor in it, in one reading."""
    stamp, whole, tensors = stamp_of(folder / path), hasher(algorithm), []
    with (folder / path).open("rb") as stream:
        rest = stamp.size_bytes
        if PurePosixPath(path).suffix.lower() == SAFETENSORS:
            layout = read_layout(stream, stamp.size_bytes, str(folder / path))
            stream.seek(0)
            _absorb(stream, layout.header_bytes, (whole,), advance)
            for span in layout.tensors:
                own = hasher(algorithm)
                _absorb(stream, span.size_bytes, (whole, own), advance)
                tensors.append(
                    TensorDigest(
                        name=span.name,
                        dtype=span.dtype,
                        shape=span.shape,
                        size_bytes=span.size_bytes,
                        hexdigest=own.hexdigest(),
                    )
                )
            rest = 0
        _absorb(stream, rest, (whole,), advance)
    if stamp_of(folder / path) != stamp:
        raise ConflictError(f"{folder / path} changed while it was read", hint="Wait until nothing writes to it.")
    tensors.sort(key=lambda tensor: tensor.name)
    file = WeightsFile(path=path, size_bytes=stamp.size_bytes, hexdigest=whole.hexdigest(), tensors=tuple(tensors))
    return stamp, file


def _absorb(stream: BinaryIO, count: int, hashers: tuple[Hasher, ...], advance: Callable[[int], None]) -> None:
    while count and (chunk := stream.read(min(count, _CHUNK_BYTES))):
        for state in hashers:
            state.update(chunk)
        count -= len(chunk)
        advance(len(chunk))
