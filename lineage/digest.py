"""Digests whose names say what was hashed and how.

A digest is written `<algorithm>-<what>-v<version>:<64 hex digits>`, for example `blake3-rows-v2:9f…`. Two digests are
comparable only when their names are equal, so a change of recipe can never be mistaken for a change of content.

Documents are hashed with SHA-256 over canonical JSON (RFC 8785). Bulk bytes (rows, tensors, files) are hashed with the
bulk algorithm a home was initialised with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Protocol, Self

import rfc8785
from blake3 import blake3
from pydantic import StringConstraints

from snapline.lineage.errors import DefinitionError, IntegrityError

Digest = Annotated[str, StringConstraints(pattern=r"^(blake3|sha256)-[a-z0-9]+(-[a-z0-9]+)*-v\d+:[0-9a-f]{64}$")]
CHUNK_BYTES = 8 << 20
_CACHED_BYTES = 1 << 20  # what was read is then still in a core's cache when it is hashed


class BulkAlgorithm(StrEnum):
    """The hash for rows, tensors and files; chosen once, when a home is initialised."""

    BLAKE3 = "blake3"
    SHA256 = "sha256"


class Hasher(Protocol):
    """The part of `hashlib`'s interface that both algorithms share."""

    def update(self, data: bytes | memoryview, /) -> Self | None:
        """Absorb more bytes."""

    def hexdigest(self) -> str:
        """Return the digest of everything absorbed so far, as 64 hex digits."""


_NEW: dict[BulkAlgorithm, Callable[[], Hasher]] = {BulkAlgorithm.BLAKE3: blake3, BulkAlgorithm.SHA256: hashlib.sha256}


def hasher(algorithm: BulkAlgorithm) -> Hasher:
    """Return a fresh incremental hasher."""
    return _NEW[algorithm]()


def named(algorithm: BulkAlgorithm, what: str, hexdigest: str) -> str:
    """Return the full digest string for `what`, a kebab-case noun with its version, such as `rows-v2`."""
    return f"{algorithm}-{what}:{hexdigest}"


def hex_part(digest: str) -> str:
    """Return the 64 hex digits of a digest string."""
    return digest.rpartition(":")[2]


def short(digest: str) -> str:
    """Return the twelve hex digits people read; never used for identity."""
    return hex_part(digest)[:12]


def canonical_json(value: object) -> bytes:
    """Return the RFC 8785 encoding of a JSON value.

    Raises:
        DefinitionError: The value holds a float, an integer beyond 2**53 or text with a lone surrogate, none of which
            hash portably.
    """
    _refuse_floats(value)
    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise DefinitionError(f"not canonical JSON: {error}", hint="Write numbers as decimal strings.") from error


def _refuse_floats(value: object) -> None:
    if isinstance(value, float):
        raise DefinitionError(f"a hashed document may not hold the float {value!r}", hint="Write it as a string.")
    if isinstance(value, dict):
        for item in value.values():
            _refuse_floats(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_floats(item)


def document_digest(kind: str, value: object) -> str:
    """Return `sha256-<kind>-v1:…` over the canonical JSON of `value`."""
    return f"sha256-{kind}-v1:{hashlib.sha256(canonical_json(value)).hexdigest()}"


def bytes_hex(data: bytes | memoryview, algorithm: BulkAlgorithm) -> str:
    """Return the hex digest of bytes in memory."""
    state = hasher(algorithm)
    state.update(data)
    return state.hexdigest()


def file_hex(path: Path, algorithm: BulkAlgorithm) -> str:
    """Return the hex digest of a file's bytes, reading it once in chunks; BLAKE3 uses every core."""
    state = blake3(max_threads=blake3.AUTO) if algorithm is BulkAlgorithm.BLAKE3 else hasher(algorithm)
    with path.open("rb") as stream:
        while chunk := stream.read(_CACHED_BYTES):
            state.update(chunk)
    return state.hexdigest()


def mapped_hex(path: Path, algorithm: BulkAlgorithm) -> str:
    """Return the hex digest of a file that nobody shortens meanwhile, such as an object; BLAKE3 maps it into memory."""
    if algorithm is BulkAlgorithm.BLAKE3:
        return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
    return file_hex(path, algorithm)


def merkle_root(leaves: Iterable[bytes], algorithm: BulkAlgorithm) -> str:
    """Return the hex root of a Merkle tree over the leaves, in the given order.

    The tree is that of RFC 6962, section 2.1: leaves and nodes are hashed under different prefixes, so a leaf can never
    pose as a node, and the tree over n leaves splits at the largest power of two below n. The root of no leaves is the
    hash of nothing.
    """

    def hash_bytes(data: bytes) -> bytes:
        return bytes.fromhex(bytes_hex(data, algorithm))

    def root(level: Sequence[bytes]) -> bytes:
        if len(level) == 1:
            return level[0]
        split = 1 << ((len(level) - 1).bit_length() - 1)
        return hash_bytes(b"\x01" + root(level[:split]) + root(level[split:]))

    hashed = [hash_bytes(b"\x00" + leaf) for leaf in leaves]
    return (root(hashed) if hashed else hash_bytes(b"")).hex()


def require_equal(what: str, expected: str, found: str) -> None:
    """Raise unless two digests are equal.

    Raises:
        IntegrityError: They differ; the message carries both.
    """
    if expected != found:
        raise IntegrityError(
            f"{what}: expected {expected}, found {found}", hint="Restore what was recorded from a copy you trust."
        )
