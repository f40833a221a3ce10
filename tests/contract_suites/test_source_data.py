"""Rows that are hard to carry, asked of every source: what was written is what is read, or it is refused."""

from __future__ import annotations

import struct
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from source_rows import HOUR, START, every_type, flights
from source_suite import EVERY, Place, digest, keys, scanned
from source_tables import TIME, Maker

from snapline.lineage.errors import DefinitionError
from snapline.lineage.rows.encoding import columns_of
from snapline.lineage.snapshot import Commit
from snapline.lineage.sources.protocol import Source, Window

TYPED = every_type()
NAMES = [name for name in TYPED.column_names if name not in ("key", "time")]
WITH_NAN = [kind for kind in EVERY if "float64" not in kind.cannot_hold]
HELD = [(kind, name) for kind in EVERY if not kind.remote for name in NAMES if name not in kind.cannot_hold]


@pytest.mark.parametrize(
    ("maker", "column"), HELD, indirect=["maker"], ids=[f"{kind.name}-{name}" for kind, name in HELD]
)
def test_a_column_of_a_type_the_format_holds_keeps_its_digest(create: Place, column: str) -> None:
    table = TYPED.select(["key", "time", column])
    source = create(table)
    found = scanned(source, source.commit())
    assert columns_of(found.schema) == columns_of(table.schema)
    assert digest(found) == digest(table)


def test_appended_times_of_another_zone_are_the_same_instants(maker: Maker, create: Place) -> None:
    source = create(flights([0, 1]))
    later = flights([2, 3])
    maker.append(later.set_column(1, TIME, later[TIME].cast(pa.timestamp("us", "Asia/Tokyo"))))
    now = source.commit()
    assert digest(scanned(source, now)) == digest(flights([0, 1, 2, 3]))
    assert keys(scanned(source, now, Window(START + HOUR, START + 3 * HOUR))) == [1, 2]


def test_text_for_times_is_read_as_it_is_or_refused_for_what_it_is(create: Place) -> None:
    table = flights([0, 1])
    source = create(table.set_column(1, TIME, table[TIME].cast(pa.string())))
    commit = source.commit()
    with pytest.raises(DefinitionError, match=r"'time' must hold timestamps or dates.*found"):
        scanned(source, commit, Window(START, START + HOUR))
    written = sorted(table[TIME].cast(pa.string()).to_pylist())
    found = texts_or_message(source, commit)
    assert found == written or "must hold timestamps or dates" in found


def texts_or_message(source: Source, commit: Commit) -> list[str] | str:
    try:
        return sorted(scanned(source, commit)[TIME].to_pylist())
    except DefinitionError as error:
        return error.message


def test_a_table_whose_every_time_is_missing_is_in_every_window(create: Place) -> None:
    table = flights([0, 1, 2])
    source = create(table.set_column(1, TIME, pa.nulls(3, table[TIME].type)))
    assert keys(scanned(source, source.commit(), Window(START, START + HOUR))) == [0, 1, 2]


def test_the_first_and_the_last_times_of_the_calendar_are_read(create: Place) -> None:
    times = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), START]
    source = create(flights([0, 1, 2]).set_column(1, TIME, pa.array(times, pa.timestamp("us", "UTC"))))
    commit = source.commit()
    assert keys(scanned(source, commit)) == [0, 1, 2]
    assert keys(scanned(source, commit, Window(times[0], START))) == [0]
    assert keys(scanned(source, commit, Window(START, datetime(9999, 12, 31, tzinfo=UTC)))) == [2]


def test_rows_that_share_a_key_all_count(create: Place) -> None:
    table = pa.concat_tables([flights([1, 1]), flights([1], "AA")])
    source = create(table)
    assert digest(scanned(source, source.commit())) == digest(table)


@pytest.mark.parametrize("maker", WITH_NAN, indirect=True, ids=lambda kind: kind.name)
def test_every_nan_is_one_and_minus_zero_is_not_zero(create: Place) -> None:
    odd = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
    table = flights([0, 1, 2])

    def delays(*values: float) -> pa.Table:
        return table.set_column(3, "delay", pa.array(values, pa.float64()))

    source = create(delays(odd, -0.0, 0.0))
    found = digest(scanned(source, source.commit()))
    assert found == digest(delays(float("nan"), -0.0, 0.0))
    assert found != digest(delays(float("nan"), 0.0, 0.0))


def test_rows_appended_to_none_are_read_and_none_appended_change_no_row(maker: Maker, create: Place) -> None:
    source = create(flights([]))
    maker.append(flights([4, 5]))
    assert keys(scanned(source, source.commit())) == [4, 5]
    maker.append(flights([]))
    assert keys(scanned(source, source.commit())) == [4, 5]


def test_a_long_text_and_many_rows_are_read_whole(create: Place) -> None:
    rows = 500
    table = flights(range(rows)).set_column(2, "carrier", pa.array(["x" * 100_000, *map(str, range(1, rows))]))
    source = create(table)
    assert digest(scanned(source, source.commit())) == digest(table)
