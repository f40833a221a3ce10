"""Reading one Parquet file inside a window of time, at most a batch of a row group at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from snapline.lineage.errors import DefinitionError
from snapline.lineage.rows.encoding import TICKS_PER_SECOND, plain
from snapline.lineage.rows.fingerprint import Instants, instants
from snapline.lineage.sources.protocol import Window

BATCH_ROWS = 1 << 17
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_DAYS_PER_SECOND = 1


def refuse_unknown(what: str, present: Sequence[str], asked: Sequence[str]) -> None:
    """Pass when every asked column is there.

    Raises:
        DefinitionError: Some are not; the message names them and those there are.
    """
    missing = [repr(column) for column in dict.fromkeys(asked) if column not in present]
    if missing:
        raise DefinitionError(
            f"{what} has no column {', '.join(missing)}; its columns are {', '.join(present)}",
            hint="Name columns of the source for time, known time and key.",
        )


def pieces(
    file: pq.ParquetFile,
    time: str,
    window: Window | None,
    columns: Sequence[str] | None,
    complete: Callable[[pa.Table], pa.Table] = lambda table: table,
    deleted: NDArray[np.int64] | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file, in plain types: those inside the window, and those whose time is null.

    Args:
        file: An open file.
        time: The event-time column.
        window: None for every row.
        columns: Yield only these; None for all.
        complete: Brings what was read to the columns of the table, where the file alone does not say them.
        deleted: Rows of the file to leave out, ascending, shape (rows deleted,); None for none.

    Raises:
        DefinitionError: The time column holds neither timestamps nor dates, and a window was given.
    """
    needed = None if columns is None else tuple(dict.fromkeys((*columns, *(() if window is None else (time,)))))
    stored = None if needed is None else [name for name in needed if name in file.schema_arrow.names]
    start = 0
    for group in range(file.num_row_groups):
        position, start = start, start + file.metadata.row_group(group).num_rows
        if window is not None and not _may_hold(file, group, time, window):
            continue
        for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=stored):
            table = plain(complete(pa.Table.from_batches([batch])))
            if deleted is not None:
                table = _without(table, deleted, position)
            position += batch.num_rows
            if window is not None:
                table = inside(table, time, window)
            if table.num_rows:
                yield table if columns is None else table.select(list(columns))


def _without(table: pa.Table, deleted: NDArray[np.int64], position: int) -> pa.Table:
    """Return a table that begins at a row of its file, less the rows of the file that are deleted."""
    first, last = np.searchsorted(deleted, [position, position + table.num_rows])
    kept = np.ones(table.num_rows, np.bool_)
    kept[deleted[first:last] - position] = False
    return table if kept.all() else table.filter(pa.array(kept))


def inside(table: pa.Table, time: str, window: Window) -> pa.Table:
    """Return the rows of a plain table whose time lies inside a window or is null.

    Raises:
        DefinitionError: The time column holds neither timestamps nor dates.
    """
    column = table.column(time)
    absent = column.is_null().to_numpy()
    if absent.any():
        filler = pa.scalar(0, pa.int32() if pa.types.is_date(column.type) else pa.int64())
        typed = pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)
        column = pc.fill_null(column, filler.cast(column.type)) if typed else column
    found = instants(pa.table({time: column}), time)
    chosen = absent | (~found.before(window.since) & found.before(window.until))
    return table if chosen.all() else table.filter(pa.array(chosen))


def _may_hold(file: pq.ParquetFile, group: int, time: str, window: Window) -> bool:
    """Return whether a row group can have rows inside a window, or without a time, by its statistics alone."""
    described = file.metadata.row_group(group)
    chunks = [described.column(i) for i in range(described.num_columns) if described.column(i).path_in_schema == time]
    statistics = chunks[0].statistics if len(chunks) == 1 else None
    if statistics is None or not statistics.has_min_max or not statistics.has_null_count or statistics.null_count:
        return True
    logical = json.loads(statistics.logical_type.to_json())
    bounds = np.array([statistics.min_raw, statistics.max_raw])
    if logical["Type"] == "Date":
        found = Instants(bounds.astype(np.int64) * 86_400, _DAYS_PER_SECOND)
    elif logical["Type"] == "Timestamp" and logical["timeUnit"] in _UNITS and bounds.dtype == np.int64:
        found = Instants(bounds, TICKS_PER_SECOND[_UNITS[logical["timeUnit"]]])
    else:
        return True
    return not bool(found.before(window.since)[1]) and bool(found.before(window.until)[0])
