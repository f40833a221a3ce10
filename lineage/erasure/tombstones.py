"""Tombstones: the keys that were erased, as keyed hashes, so that no new snapshot has their rows.

A tombstone set lies among the objects as Parquet: the sorted hashes of its keys, with the recipe and a fingerprint of
the salt they were made with. It holds no key. A row whose key merely shares a hash with an erased one is left out too;
`membership.over_report` bounds how likely that is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from snapline.lineage.erasure.affected import erasures_of
from snapline.lineage.errors import IntegrityError
from snapline.lineage.objects import ObjectStore
from snapline.lineage.rows.hashes import RECIPE, key_hashes, salt_fingerprint
from snapline.lineage.state import State

_HINT = "Restore the object from a copy of this home."


@dataclass(frozen=True, slots=True)
class Tombstones:
    """The erased keys of one series.

    Attributes:
        erasures: Ids of the requests, in the order they were recorded.
        hashes: Key hashes, ascending, each once.
        salt: What they were made with.
    """

    erasures: tuple[str, ...]
    hashes: NDArray[np.uint64]
    salt: str

    def erased_rows(self, keys: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
        """Return which rows, of these keys, were erased."""
        found = key_hashes(keys, self.salt)
        if not len(self.hashes):
            return np.zeros(len(found), np.bool_)
        places = np.minimum(np.searchsorted(self.hashes, found), len(self.hashes) - 1)
        erased: NDArray[np.bool_] = self.hashes[places] == found
        return erased


def tombstones_of(
    series: str, state: State, objects: ObjectStore, erasures: Collection[str] | None = None
) -> Tombstones | None:
    """Return every tombstone of a series, closed requests' too, or those of some requests; None when there are none.

    Raises:
        IntegrityError: A tombstone set is missing, holds other bytes, or is of another home.
    """
    requests = list(erasures_of(series, state))
    if erasures is not None:
        requests = [found for found in requests if found.erasure in erasures]
    if not requests:
        return None
    sets = [decode_tombstones(objects.read(found.tombstones), state.salt) for found in requests]
    return Tombstones(tuple(found.erasure for found in requests), np.unique(np.concatenate(sets)), state.salt)


def encode_tombstones(hashes: NDArray[np.uint64], salt: str) -> bytes:
    """Return key hashes as Parquet, sorted and each once; equal sets give equal bytes."""
    schema = pa.schema([("key", pa.uint64())], metadata={"recipe": RECIPE, "salt": salt_fingerprint(salt)})
    sink = pa.BufferOutputStream()
    encoding = {"key": "DELTA_BINARY_PACKED"}
    pq.write_table(pa.table([np.unique(hashes)], schema=schema), sink, use_dictionary=False, column_encoding=encoding)
    return bytes(sink.getvalue().to_pybytes())


def decode_tombstones(data: bytes, salt: str) -> NDArray[np.uint64]:
    """Return the hashes that `encode_tombstones` wrote.

    Raises:
        IntegrityError: The bytes are no tombstones, or were made by another recipe or in another home.
    """
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            metadata = file.schema_arrow.metadata or {}
            hashes: NDArray[np.uint64] = file.read(columns=["key"], use_threads=False).column("key").to_numpy()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise IntegrityError(f"a tombstone set cannot be read: {error}", hint=_HINT) from error
    found = (metadata.get(b"recipe", b"").decode(), metadata.get(b"salt", b"").decode())
    if found != (RECIPE, salt_fingerprint(salt)):
        raise IntegrityError(f"a tombstone set is not of this home and recipe {RECIPE}: {found[0]}", hint=_HINT)
    return hashes
