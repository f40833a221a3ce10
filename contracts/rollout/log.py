"""Serving logs: what a file of logged requests says, read once from its first byte to its last.

A log is JSON lines, one `ServingRecord` each (`.jsonl`), or a table with the same names: Parquet (`.parquet`) or an
Arrow file (`.arrow`). `LOG_SCHEMA` is the table's schema; a column that a contract does not ask for may be left out,
and columns it does not know are left alone. `json_schema` describes a line.

Two tags are the log's own: a request that was not drawn from the untruncated distribution at the contract's temperature
says so by `temperature`, a number, or `truncated: "true"`; a monitor passes it over. All other tags are free.

Only the requests a monitor wants are kept in memory; of all others the tally remembers what observability asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from snapline.contracts.rollout.documents import LogField
from snapline.contracts.rollout.record import ServingRecord
from snapline.lineage.cut import Instant
from snapline.lineage.digest import BulkAlgorithm, hasher, named
from snapline.lineage.documents import Received
from snapline.lineage.errors import DefinitionError, NotFoundError

LOG_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("route", pa.string()),
        pa.field("prompt_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("sampled_logprob", pa.list_(pa.float64())),
        pa.field("margin", pa.list_(pa.float64())),
        pa.field("batch_size", pa.int32()),
        pa.field("cache_hit", pa.bool_()),
        pa.field("latency_seconds", pa.float64()),
        pa.field("reference_logprob", pa.list_(pa.float64())),
        pa.field("tags", pa.map_(pa.string(), pa.string())),
    ]
)
_HINT = "A log holds one request on each line: id, at, prompt_ids, token_ids, and what the contract demands."


class Lacking(Received):
    """How many logged requests lack a field, and the first of them."""

    field: LogField
    requests: int
    first: str


class Tally(Received):
    """What a whole log says of itself.

    Attributes:
        requests: How many it holds, whoever answered them.
        oldest, newest: When the first and the last of them were answered.
        served: How many the engines answered in the log's time, by their own count; None when nobody said.
    """

    requests: int
    oldest: Instant
    newest: Instant
    lacking: tuple[Lacking, ...] = ()
    served: int | None = None


@dataclass(frozen=True, slots=True)
class ServingLog:
    """A log that was read: the digest of its bytes, its tally, and the requests that were wanted, in order of time."""

    digest: str
    tally: Tally
    wanted: tuple[ServingRecord, ...]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of one line of a log."""
    return ServingRecord.model_json_schema()


def read_log(path: Path, algorithm: BulkAlgorithm, wants: Callable[[ServingRecord], bool]) -> ServingLog:
    """Return what a log says, with the requests that `wants` picks.

    Raises:
        NotFoundError: There is no such file.
        DefinitionError: It is not a log, holds nothing, or gives an id twice; the message names the line and field.
    """
    readers = {".jsonl": _lines, ".parquet": _parquet, ".arrow": _arrow}
    if path.suffix not in readers:
        raise DefinitionError(
            f"{path}: expected a serving log named .jsonl, .parquet or .arrow, found {path.suffix or 'no suffix'!r}",
            hint=_HINT,
        )
    summed = _Summed(algorithm)
    wanted = []
    try:
        for place, record in readers[path.suffix](path, summed):
            summed.add(place, record)
            if wants(record):
                wanted.append(record)
    except FileNotFoundError as error:
        raise NotFoundError(f"no file {path}", hint="Check the path.") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise DefinitionError(f"{path}: cannot be read as a serving log: {error}", hint=_HINT) from error
    wanted.sort(key=lambda record: (record.at, record.id))
    return ServingLog(summed.digest(), summed.tally(path), tuple(wanted))


class _Summed:
    """A log's digest and tally, as far as it was read."""

    def __init__(self, algorithm: BulkAlgorithm) -> None:
        self.algorithm = algorithm
        self.state = hasher(algorithm)
        self._places: dict[tuple[str, bool], str] = {}
        self._lacking: dict[LogField, tuple[int, str]] = {}
        self._times: list[Instant] = []

    def add(self, place: str, record: ServingRecord) -> None:
        # A copy nobody saw may have the id of the request it is a copy of.
        earlier = self._places.setdefault((record.id, record.route == "shadow"), place)
        if earlier != place:
            raise DefinitionError(
                f"{place}: id: {record.id!r} was given already, at {earlier}", hint="Give every request its own id."
            )
        for field in LogField:
            there = field.value in record.model_fields_set and getattr(record, field.value) is not None
            if not there:
                count, first = self._lacking.get(field, (0, record.id))
                self._lacking[field] = (count + 1, first)
        self._times = [min([*self._times, record.at]), max([*self._times, record.at])]

    def digest(self) -> str:
        return named(self.algorithm, "log-v1", self.state.hexdigest())

    def tally(self, path: Path) -> Tally:
        if not self._places:
            raise DefinitionError(f"{path}: expected at least one request, found none", hint=_HINT)
        lacking = tuple(Lacking(field=f, requests=n, first=first) for f, (n, first) in sorted(self._lacking.items()))
        return Tally(requests=len(self._places), oldest=self._times[0], newest=self._times[1], lacking=lacking)


Placed = Iterator[tuple[str, ServingRecord]]


def _lines(path: Path, summed: _Summed) -> Placed:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            summed.state.update(line)
            if line.strip():
                yield f"{path}:{number}", _checked(line, f"{path}:{number}")


def _parquet(path: Path, summed: _Summed) -> Placed:
    data = path.read_bytes()
    summed.state.update(data)
    source = pq.ParquetFile(pa.BufferReader(data))
    return _rows(path, source.iter_batches(batch_size=1024))


def _arrow(path: Path, summed: _Summed) -> Placed:
    data = path.read_bytes()
    summed.state.update(data)
    source = pa.ipc.open_file(pa.BufferReader(data))
    return _rows(path, (source.get_batch(number) for number in range(source.num_record_batches)))


def _rows(path: Path, batches: Iterator[pa.RecordBatch]) -> Placed:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            place = f"{path}: row {number}"
            yield place, _checked({name: _plain(name, cell) for name, cell in row.items() if cell is not None}, place)


def _plain(name: str, cell: Any) -> Any:
    """Return a cell as JSON would have it: a map comes out of Arrow as pairs, a struct with a null for each gap."""
    if name != "tags":
        return cell
    return {tag: value for tag, value in dict(cell).items() if value is not None}


def _checked(row: bytes | dict[str, Any], place: str) -> ServingRecord:
    try:
        if isinstance(row, bytes):
            return ServingRecord.model_validate_json(row)
        return ServingRecord.model_validate(row)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        raise DefinitionError(f"{place}: {field + ': ' if field else ''}{message}", hint=_HINT) from None
