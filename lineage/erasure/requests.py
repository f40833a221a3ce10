"""Ask for rows to be erased: find the keys, every snapshot that may have one, and record the request.

Recording it takes the keys out of every later snapshot (`tombstones`) and shuts the gate of every version it affects
(`affected`). What is kept of the keys is their keyed hashes, unless the request says to keep them plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from snapline.lineage import query
from snapline.lineage.digest import bytes_hex, document_digest, hex_part
from snapline.lineage.erasure.affected import affected
from snapline.lineage.erasure.keys import KeyColumn, Listed, cast_keys, read_keys
from snapline.lineage.erasure.tombstones import encode_tombstones
from snapline.lineage.errors import DefinitionError
from snapline.lineage.events import Erased, LineageEvent, Retired
from snapline.lineage.ledger import Ledger
from snapline.lineage.manifest import decode_manifest
from snapline.lineage.model import VersionKey
from snapline.lineage.rows.hashes import key_hashes
from snapline.lineage.rows.membership import holding
from snapline.lineage.series import Desk, rows_of
from snapline.lineage.snapshot import Snapshot
from snapline.lineage.state import State
from snapline.lineage.view import OnErasure

_SAMPLE = 10


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asked for.

    Attributes:
        names: The snapshots whose keys are meant; every snapshot of each series is searched.
        keys: A CSV or Parquet file of keys; None when `where` chooses them.
        where: A boolean SQL expression over the rows of the named snapshots; None when a file lists the keys.
        keep_plain: Store the keys themselves too.
    """

    names: tuple[str, ...]
    keys: Path | None = None
    where: str | None = None
    reason: str | None = None
    keep_plain: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a request.

    Attributes:
        recorded: Whether it is new; False when the same keys were erased before.
        absent: Some of the keys that no snapshot has, as text.
        searched: How many snapshots were searched.
        rows: How many rows these have together.
        index_bytes: What their membership indices take.
        same_source: Other series cut from the same sources, which the request does not speak of.
    """

    erased: Erased
    recorded: bool
    absent: tuple[str, ...]
    searched: int
    rows: int
    index_bytes: int
    same_source: tuple[str, ...]


def erase(request: Request, ledger: Ledger, desk: Desk) -> Outcome:
    """Record a request and return what it reaches; asking the same again records nothing.

    Raises:
        DefinitionError: Neither or both of keys and where were given, they name no key, or one is none of its type.
        NotFoundError: There is no such snapshot or file.
        ConflictError: `where` was given and a source no longer holds the rows of its snapshot.
    """
    state = ledger.state()
    named = {snapshot.series.name: snapshot for snapshot in map(state.snapshot, request.names)}
    asked = _Asked.of(request, named, state, desk)
    hashes = np.unique(asked.hashes)
    body: dict[str, object] = {"series": sorted(named), "keys": bytes_hex(hashes.tobytes(), desk.objects.algorithm)}
    identifier = hex_part(document_digest("erasure", body))
    search = _Search(asked, desk)
    tombstones = desk.objects.put(encode_tombstones(hashes, state.salt))
    plain = desk.objects.put(asked.plain()) if request.keep_plain else None
    recorded: list[bool] = []

    def decide(state: State) -> list[LineageEvent]:
        recorded.append(identifier not in state.erasures)
        if not recorded[-1]:
            return []
        erased = Erased(
            at=desk.now,
            erasure=identifier,
            series=tuple(sorted(named)),
            tombstones=tombstones,
            keys=len(asked),
            absent=len(search.absent(state)),
            snapshots=search.hits(state),
            plain=plain,
            reason=request.reason,
        )
        return [erased, *_retired_by_policy(erased, state)]

    state = ledger.commit(decide)
    searched = [state.snapshots[found] for name in sorted(named) for found in state.series[name]]
    sources = {snapshot.series.source for snapshot in named.values()}
    absent = search.absent(state)
    return Outcome(
        erased=state.erasures[identifier],
        recorded=recorded[-1],
        absent=tuple(str(asked.arrays[0][row].as_py()) for row in absent[:_SAMPLE]),
        searched=len(searched),
        rows=sum(snapshot.rows for snapshot in searched),
        index_bytes=sum(desk.objects.path(snapshot.membership).stat().st_size for snapshot in searched),
        same_source=tuple(sorted(_cut_from(sources, state) - named.keys())),
    )


def _cut_from(sources: set[str], state: State) -> set[str]:
    return {name for name, ids in state.series.items() if state.snapshots[ids[-1]].series.source in sources}


def retire(key: VersionKey, reason: str | None, ledger: Ledger, desk: Desk) -> bool:
    """Record that a version must not be served again; return whether that is new."""
    new: list[bool] = []

    def decide(state: State) -> list[LineageEvent]:
        new.append(key not in state.retired)
        return [Retired(at=desk.now, model=key, reason=reason)] if new[-1] else []

    ledger.commit(decide)
    return new[-1]


@dataclass(frozen=True, slots=True)
class _Asked:
    """The keys of a request, each once.

    Attributes:
        series: The series they are of.
        arrays: The keys as each series writes them, aligned.
        hashes: Shape (keys, series).
    """

    series: tuple[str, ...]
    arrays: tuple[pa.Array, ...]
    hashes: NDArray[np.uint64]

    @classmethod
    def of(cls, request: Request, named: dict[str, Snapshot], state: State, desk: Desk) -> _Asked:
        if (request.keys is None) == (request.where is None):
            raise DefinitionError(
                "expected either a file of keys or a condition on rows", hint="Give one of --keys and --where."
            )
        columns = [_key_column(snapshot, desk) for snapshot in named.values()]
        if request.keys is not None:
            arrays = read_keys(request.keys, columns)
        else:
            arrays = _chosen(request.where or "", list(named.values()), columns, state, desk)
        hashes = np.stack([key_hashes(array, state.salt) for array in arrays], axis=1)
        _, first = np.unique(hashes, axis=0, return_index=True)
        kept = np.sort(first)
        return cls(tuple(named), tuple(array.take(pa.array(kept)) for array in arrays), hashes[kept])

    def __len__(self) -> int:
        return len(self.hashes)

    def plain(self) -> bytes:
        """Return the keys as Parquet, a column for each series."""
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(dict(zip(self.series, self.arrays, strict=True))), sink)
        return bytes(sink.getvalue().to_pybytes())


class _Search:
    """Looks for the asked keys in snapshots, each once however often it is asked."""

    def __init__(self, asked: _Asked, desk: Desk) -> None:
        self._asked = asked
        self._desk = desk
        self._found: dict[str, NDArray[np.bool_]] = {}

    def hits(self, state: State) -> tuple[str, ...]:
        """Return the ids of the snapshots that may have a key."""
        return tuple(found for found in self._ids(state) if self._held(state.snapshots[found]).any())

    def absent(self, state: State) -> list[int]:
        """Return which keys no snapshot has."""
        present = np.zeros(len(self._asked), np.bool_)
        for found in self._ids(state):
            present |= self._held(state.snapshots[found])
        return [int(row) for row in np.flatnonzero(~present)]

    def _ids(self, state: State) -> list[str]:
        return [found for name in self._asked.series for found in state.series[name]]

    def _held(self, snapshot: Snapshot) -> NDArray[np.bool_]:
        if snapshot.id not in self._found:
            if self._desk.on_progress:
                self._desk.on_progress(f"searching {snapshot.series.name}", len(self._found), 0)
            index = self._desk.objects.verified(snapshot.membership)
            of_series = self._asked.hashes[:, self._asked.series.index(snapshot.series.name)]
            self._found[snapshot.id] = holding(index, of_series)
        return self._found[snapshot.id]


def _key_column(snapshot: Snapshot, desk: Desk) -> KeyColumn:
    columns = decode_manifest(desk.objects.read(snapshot.manifest)).columns
    key = next(column for column in columns if column.name == snapshot.series.key)
    return KeyColumn(snapshot.series.name, key.name, key.type)


def _chosen(
    where: str, snapshots: Sequence[Snapshot], columns: Sequence[KeyColumn], state: State, desk: Desk
) -> list[pa.Array]:
    """Return the keys of the rows that a condition chooses from any of the snapshots, as each series writes them."""
    chosen: list[pa.Array] = []
    for snapshot in snapshots:
        rows = rows_of(snapshot, state, desk)
        mask = pa.array(query.matching(rows, where), pa.bool_())
        chosen.append(rows.filter(mask).column(snapshot.series.key).combine_chunks())
    if not any(len(keys) for keys in chosen):
        names = ", ".join(snapshot.series.name for snapshot in snapshots)
        raise DefinitionError(f"no row of {names} is one where {where}", hint="Widen the condition, or list the keys.")
    arrays = []
    for column in columns:
        cast = [cast_keys(Listed(keys, Path("--where"), "row", range(1, len(keys) + 1)), column) for keys in chosen]
        arrays.append(_joined(cast))
    return arrays


def _joined(arrays: Sequence[pa.Array]) -> pa.Array:
    """Return arrays of one logical type and several units as one, of the finest."""
    tables = [pa.table({"key": array}) for array in arrays]
    return pa.concat_tables(tables, promote_options="permissive").column("key").combine_chunks()


def _retired_by_policy(erased: Erased, state: State) -> list[Retired]:
    """Return the retirement of every affected version whose view says to retire it."""
    events = []
    for model in affected(erased, state):
        name = state.models[model.key.name][model.key.version - 1].view_name
        view = state.views.get(name) if name else None
        if view and view.definition.refresh.on_erasure is OnErasure.RETIRE and model.key not in state.retired:
            reason = f"its view's policy: on_erasure: retire (erasure {erased.erasure[:12]})"
            events.append(Retired(at=erased.at, model=model.key, reason=reason))
    return events
