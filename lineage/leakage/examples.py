"""The two tables that leakage rules are asked of: training examples and evaluation examples.

Whatever a snapshot calls its columns, an example has

    snapshot, key      which row it is
    p                  its prediction time, or its event time where the rules name no prediction time
    t0, t1, ...        the instants of the rules' time columns, in the order of `LeakageRules.times`
    read_as_of         the instant its snapshot was read as of, or NULL
    entity, content    what must not be in both tables, where the rules say so

Instants are nanoseconds since the epoch in 128 bits, whatever unit a column has, so that comparisons are exact. Naive
times and dates are UTC, as everywhere in a cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyarrow import types

from snapline.lineage.errors import DefinitionError
from snapline.lineage.leakage.near_duplicates import comparable, content_sql, folded, kind
from snapline.lineage.leakage.rules import Location, Rules
from snapline.lineage.rows.encoding import TICKS_PER_SECOND, plain

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Inputs:
    """The rows of one snapshot.

    Attributes:
        snapshot: What messages and reports call it.
        key: The column that names a row.
        time: The column with a row's event time.
        until: The end of its cut, exclusive.
        read_as_of: The instant the rows were read as of; None where nothing states one.
    """

    snapshot: str
    table: pa.Table
    key: str
    time: str
    until: datetime
    read_as_of: datetime | None


def nanoseconds(span: timedelta) -> int:
    """Return a span of time in nanoseconds, exactly."""
    return span // timedelta(microseconds=1) * 1000


def instant_sql(instant: datetime | None) -> str:
    """Return the SQL of an instant as examples hold it."""
    return f"CAST({'NULL' if instant is None else nanoseconds(instant - _EPOCH)} AS HUGEINT)"


@dataclass(frozen=True, slots=True)
class _Part:
    """One snapshot's rows under the name SQL has for them; `table` is plain, with the columns the rules need."""

    name: str
    inputs: Inputs
    table: pa.Table


class Examples:
    """Lays the rows of snapshots out as examples.

    Args:
        rules: What the columns mean.
        sides: The snapshots of each table of examples.

    Raises:
        DefinitionError: A snapshot lacks a column the rules name, or holds values there that cannot be compared; the
            message names file, line and field.
    """

    def __init__(self, rules: Rules, sides: Mapping[str, Sequence[Inputs]]) -> None:
        document = rules.document
        self._rules = rules
        self._times = tuple(document.times)
        self._content = document.near_duplicates.columns if document.near_duplicates else ()
        self._parts = {
            side: [_Part(f"{side}_{index}", inputs, self._needed(inputs)) for index, inputs in enumerate(parts)]
            for side, parts in sides.items()
        }
        parts = [part for side in self._parts.values() for part in side]
        self._refuse_times(parts)
        if document.entity:
            self._refuse_mixture(parts, document.entity, ("entity",))
        for index, column in enumerate(self._content):
            self._refuse_mixture(parts, column, ("near_duplicates", "columns", index))

    @property
    def tables(self) -> dict[str, pa.Table]:
        """The tables that `setup` reads: ticks as integers, and text folded."""
        return {part.name: self._columns(part) for side in self._parts.values() for part in side}

    @property
    def setup(self) -> list[str]:
        """The statements that make one table of examples for each side that has any snapshot."""
        return [
            f"CREATE TEMP TABLE {side} AS {' UNION ALL '.join(self._select(part) for part in parts)}"
            for side, parts in self._parts.items()
            if parts
        ]

    def time(self, column: str) -> str:
        """Return the name examples have for a time column of the rules."""
        return f"t{self._times.index(column)}"

    def _columns(self, part: _Part) -> pa.Table:
        table = part.table
        columns = {"key": table[part.inputs.key], "p": _ticks(table[self._prediction(part.inputs)])}
        columns |= {self.time(column): _ticks(table[column]) for column in self._times}
        if entity := self._rules.document.entity:
            columns["entity"] = table[entity]
        for index, column in enumerate(self._content):
            values = table[column]
            try:
                columns[f"c{index}"] = folded(values) if types.is_large_string(values.type) else values
            except UnicodeDecodeError as error:
                place = self._rules.place("near_duplicates", "columns", index)
                raise DefinitionError(
                    f"{place}: column {column!r} of snapshot {part.inputs.snapshot} is not UTF-8: {error}",
                    hint="Write the column as binary, or mend it at the source.",
                ) from error
        return pa.table(columns)

    def _select(self, part: _Part) -> str:
        schema = part.table.schema
        prediction = schema.field(self._prediction(part.inputs)).type
        columns = [f"{quoted(part.inputs.snapshot)} AS snapshot", "key", _instants("p", prediction)]
        columns += [_instants(self.time(column), schema.field(column).type) for column in self._times]
        columns.append(f"{instant_sql(part.inputs.read_as_of)} AS read_as_of")
        if self._rules.document.entity:
            columns.append("entity")
        if self._content:
            kinds = [(f"c{index}", kind(schema.field(name).type)) for index, name in enumerate(self._content)]
            columns.append(f"{content_sql(kinds)} AS content")
        return f"SELECT {', '.join(columns)} FROM {part.name}"

    def _prediction(self, inputs: Inputs) -> str:
        return self._rules.document.prediction_time or inputs.time

    def _needed(self, inputs: Inputs) -> pa.Table:
        for column, location in self._named():
            if column not in inputs.table.column_names:
                raise DefinitionError(
                    f"{self._rules.place(*location)}: snapshot {inputs.snapshot} has no column {column!r}; its columns "
                    f"are {', '.join(inputs.table.column_names)}",
                    hint="Name a column of the rows, or other snapshots with train and evaluation.",
                )
        entity = self._rules.document.entity
        wanted = (inputs.key, self._prediction(inputs), *self._times, *([entity] if entity else ()), *self._content)
        return plain(inputs.table.select(list(dict.fromkeys(wanted))))

    def _named(self) -> list[tuple[str, Location]]:
        """Return every column the document names, with its place."""
        document = self._rules.document
        named = list(document.times.items())
        named += [(feature.column, ("features", index, "column")) for index, feature in enumerate(document.features)]
        named += [(document.entity, ("entity",))] if document.entity else []
        return named + [(column, ("near_duplicates", "columns", index)) for index, column in enumerate(self._content)]

    def _refuse_times(self, parts: Iterable[_Part]) -> None:
        """Raise unless every time column holds instants, and all or none of the timestamps have a zone."""
        places = self._rules.document.times
        seen: dict[bool, str] = {}
        for part in parts:
            for column in dict.fromkeys((self._prediction(part.inputs), *self._times)):
                arrow = part.table.schema.field(column).type
                where = self._rules.place(*places[column]) if column in places else self._rules.name
                found = f"column {column!r} of snapshot {part.inputs.snapshot}"
                if not types.is_timestamp(arrow) and not types.is_date(arrow):
                    raise DefinitionError(
                        f"{where}: {found}: expected timestamps or dates, found {arrow}",
                        hint=f"Cast {column} to a timestamp where the source is written.",
                    )
                if types.is_timestamp(arrow):
                    seen.setdefault(arrow.tz is not None, found)
                if len(seen) == 2:
                    raise DefinitionError(
                        f"{where}: {seen[True]} has a time zone and {seen[False]} has none; comparing them is a guess",
                        hint="Write both with a zone where the source is written.",
                    )

    def _refuse_mixture(self, parts: Iterable[_Part], column: str, location: Location) -> None:
        """Raise unless equal values of a column are found to be equal whatever snapshots they are in."""
        first: tuple[str, str] | None = None
        for part in parts:
            arrow = part.table.schema.field(column).type
            found = kind(arrow)
            where = f"{self._rules.place(*location)}: column {column!r} of snapshot {part.inputs.snapshot}"
            if not found:
                raise DefinitionError(
                    f"{where}: expected text, numbers, times or bytes, found {arrow}",
                    hint="Name columns with one value in each row.",
                )
            first = first or (found, part.inputs.snapshot)
            if not comparable(first[0], found):
                raise DefinitionError(
                    f"{where} holds {found}, but {first[0]} in snapshot {first[1]}; equal values would not be found",
                    hint="Write the column with one type.",
                )


def quoted(text: str) -> str:
    """Return text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _ticks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.int32()).cast(pa.int64()) if types.is_date(column.type) else column.cast(pa.int64())


def _instants(name: str, arrow: pa.DataType) -> str:
    per_tick = _DAY_SECONDS * 10**9 if types.is_date(arrow) else 10**9 // TICKS_PER_SECOND[arrow.unit]
    return f"CAST({name} AS HUGEINT) * {per_tick} AS {name}"
