"""What every source must do, asked of each of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from source_rows import HOUR, START, every_type, flights
from source_suite import TRAVELLING, Place, digest, keys, scanned
from source_tables import KEY, TIME, Maker, corrected

from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.rows.encoding import columns_of
from snapline.lineage.snapshot import Commit
from snapline.lineage.sources.opening import normalise
from snapline.lineage.sources.protocol import Source, Window

FIRST, LATER = range(10), range(10, 14)
travelling = pytest.mark.parametrize("maker", TRAVELLING, indirect=True, ids=lambda kind: kind.name)


def evidence(source: Source, commit: Commit) -> dict[str, tuple[object, str]]:
    return {name: (source.stamp(name), source.hexdigest(name)) for name in source.names(commit)}


def test_every_type_the_format_can_hold_keeps_its_digest(maker: Maker, create: Place) -> None:
    table = every_type().drop_columns(sorted(maker.cannot_hold))
    source = create(table)
    found = scanned(source, source.commit())
    assert columns_of(found.schema) == columns_of(table.schema) == columns_of(source.schema(source.commit()))
    assert digest(found) == digest(table)


def test_its_files_together_are_the_table_with_the_digest_it_has_everywhere(maker: Maker, create: Place) -> None:
    source = create(flights(FIRST))
    assert source.travels is maker.travels
    assert normalise(create.spec, Path("/")) == create.spec
    commit = source.commit()
    names = source.names(commit)
    assert names
    assert list(names) == sorted(set(names))
    assert digest(scanned(source, commit)) == digest(flights(FIRST))


def test_a_window_gives_exactly_the_rows_inside_it(create: Place) -> None:
    source = create(flights(FIRST))
    commit = source.commit()
    hours: dict[tuple[float, float], Iterable[int]] = {
        (0, 24): FIRST,
        (2, 5): range(2, 5),
        (4.5, 4.6): [],
        (9, 99): [9],
        (-5, 0): [],
        (-5, 0.000001): [0],
    }
    for (since, until), expected in hours.items():
        window = Window(START + since * HOUR, START + until * HOUR)
        assert keys(scanned(source, commit, window)) == list(expected)


def test_rows_without_a_time_are_in_every_window(create: Place) -> None:
    table = flights(FIRST)
    times = [None if key in (1, 8) else time for key, time in enumerate(table.column(TIME).to_pylist())]
    source = create(table.set_column(1, TIME, pa.array(times, table.schema.field(TIME).type)))
    window = Window(START + 4 * HOUR, START + 6 * HOUR)
    assert keys(scanned(source, source.commit(), window)) == [1, 4, 5, 8]


def test_naive_times_are_utc(create: Place) -> None:
    table = flights(FIRST)
    source = create(table.set_column(1, TIME, table.column(TIME).cast(pa.timestamp("us"))))
    assert keys(scanned(source, source.commit(), Window(START + 2 * HOUR, START + 5 * HOUR))) == [2, 3, 4]


def test_dates_begin_at_midnight_utc(create: Place) -> None:
    table = flights([0, 23, 24, 47, 48])
    source = create(table.set_column(1, TIME, table.column(TIME).cast(pa.timestamp("us")).cast(pa.date32())))
    day = Window(START + timedelta(days=1), START + timedelta(days=2))
    assert keys(scanned(source, source.commit(), day)) == [24, 47]
    assert keys(scanned(source, source.commit(), Window(START + HOUR, START + 24 * HOUR))) == []


def test_only_the_asked_columns_are_read_in_their_order_and_the_window_still_holds(create: Place) -> None:
    source = create(flights(FIRST))
    commit = source.commit()
    window = Window(START, START + 3 * HOUR)
    pieces = [p for name in source.names(commit) for p in source.scan(commit, name, TIME, window, ["delay", KEY])]
    assert {tuple(piece.column_names) for piece in pieces} == {("delay", KEY)}
    assert keys(pa.concat_tables(pieces)) == [0, 1, 2]


def test_an_unknown_column_is_named_with_those_there_are_and_text_orders_no_rows(create: Place) -> None:
    source = create(flights(FIRST))
    commit = source.commit()
    name = source.names(commit)[0]
    for time, columns in [("when", None), (TIME, [KEY, "when"])]:
        with pytest.raises(DefinitionError, match=r"'when'.*carrier"):
            list(source.scan(commit, name, time, None, columns))
    with pytest.raises(DefinitionError, match=r"'carrier'.*timestamps or dates"):
        list(source.scan(commit, name, "carrier", Window(START, START + HOUR), None))


def test_a_table_without_rows_has_columns(create: Place) -> None:
    source = create(flights([]))
    found = scanned(source, source.commit())
    assert found.num_rows == 0
    assert digest(found) == digest(flights([]))


def test_an_unchanged_table_stays_at_its_commit(create: Place) -> None:
    source = create(flights(FIRST))
    commit = source.commit()
    before = evidence(source, commit)
    scanned(source, commit)
    assert source.commit() == commit
    assert source.commits()[-1] == commit
    assert evidence(source, commit) == before


@pytest.mark.parametrize("change", ["append", "overwrite", "delete", "replace"])
def test_every_change_makes_a_commit_and_other_files(maker: Maker, create: Place, change: str) -> None:
    source = create(flights(FIRST))
    commit = source.commit()
    before = evidence(source, commit)
    arguments = {
        "append": flights(LATER),
        "overwrite": flights([3], "Alaska"),
        "delete": [3],
        "replace": flights([3], "Alaska"),
    }
    getattr(maker, change)(arguments[change])
    now = source.commit()
    assert now.id != commit.id
    assert evidence(source, now) != before
    expected = {
        "append": flights([*FIRST, *LATER]),
        "overwrite": corrected(flights(FIRST), flights([3], "Alaska")),
        "delete": flights([key for key in FIRST if key != 3]),
        "replace": flights([3], "Alaska"),
    }
    assert digest(scanned(source, now)) == digest(expected[change])


def test_an_append_leaves_the_files_that_are_there_as_they_are(maker: Maker, create: Place) -> None:
    source = create(flights(FIRST))
    then = source.commit()
    before = evidence(source, then)
    maker.append(flights(LATER))
    now = source.commit()
    after = evidence(source, now)
    shared = {name for name, seen in after.items() if before.get(name) == seen}
    if maker.appends:
        assert shared == set(before)
        assert keys(scanned(source, now, names=after.keys() - shared)) == list(LATER)
    else:
        assert not shared


@travelling
def test_rows_of_shared_files_are_the_same_in_both_commits(maker: Maker, create: Place) -> None:
    source = create(flights(FIRST))
    then = source.commit()
    maker.append(flights(LATER))
    maker.overwrite(flights([2], "AA"))
    now = source.commit()
    shared = set(source.names(then)) & set(source.names(now))
    assert digest(scanned(source, then, names=shared)) == digest(scanned(source, now, names=shared))


def test_an_older_version_is_read_as_it_was(maker: Maker, create: Place) -> None:
    source = create(flights(FIRST))
    then = source.commit()
    maker.append(flights(LATER))
    maker.overwrite(flights([2], "AA"))
    if not maker.travels:
        with pytest.raises(DefinitionError, match="history"):
            source.commit(then.id)
        assert source.commit(source.commit().id) == source.commit()
        return
    assert source.commit(then.id) == then
    assert digest(scanned(source, source.commit(then.id))) == digest(flights(FIRST))
    middle = source.commits()[-2]
    assert digest(scanned(source, middle)) == digest(flights([*FIRST, *LATER]))


def test_at_an_instant_is_the_last_commit_up_to_it(maker: Maker, create: Place) -> None:
    source = create(flights(FIRST))
    maker.append(flights(LATER))
    maker.overwrite(flights([2], "AA"))
    if not maker.travels:
        with pytest.raises(DefinitionError, match="history"):
            source.commit(as_of=START)
        return
    commits = source.commits()
    assert len(commits) >= 3
    assert [commit.at for commit in commits] == sorted(commit.at for commit in commits if commit.at)
    for commit in commits:
        assert commit.at is not None
        last = [other for other in commits if other.at is not None and other.at <= commit.at][-1]
        assert source.commit(as_of=commit.at) == last
    assert source.commit(as_of=commits[-1].at + timedelta(days=1)) == commits[-1]
    with pytest.raises(NotFoundError):
        source.commit(as_of=commits[0].at - timedelta(seconds=1))


def test_commits_are_listed_oldest_first(maker: Maker, create: Place) -> None:
    source = create(flights(FIRST))
    first = source.commit()
    maker.append(flights(LATER))
    last = source.commit()
    assert source.commits()[-1] == last
    assert (first in source.commits()) is maker.travels
    assert len(source.commits()) == 1 or maker.travels


def test_a_version_that_never_was_is_not_found(maker: Maker, create: Place) -> None:
    source = create(flights(FIRST))
    for version in ("99999", "nonsense", "-1", ""):
        with pytest.raises(NotFoundError if maker.travels else DefinitionError):
            source.commit(version)


@travelling
def test_an_expired_commit_is_not_found_and_the_newest_is_still_read(maker: Maker, create: Place) -> None:
    source = create(flights(FIRST))
    first = source.commit()
    maker.overwrite(flights(FIRST, "AA"))
    maker.expire()
    for reader in (source, create.again()):
        with pytest.raises(NotFoundError):
            scanned(reader, reader.commit(first.id))
        assert digest(scanned(reader, reader.commit())) == digest(flights(FIRST, "AA"))


def test_a_dropped_table_is_not_found(maker: Maker, create: Place) -> None:
    source = create(flights(FIRST))
    commit = source.commit()
    name = source.names(commit)[0]
    scanned(source, commit)
    maker.drop()
    with pytest.raises(NotFoundError):
        source.commit()
    with pytest.raises((NotFoundError, ConflictError)):
        list(source.scan(commit, name, TIME, None, None))


def test_new_columns_show_in_the_schema_and_the_old_commit_keeps_its_own(maker: Maker, create: Place) -> None:
    source = create(flights(FIRST))
    then = source.commit()
    before = columns_of(source.schema(then))
    wider = flights(FIRST).append_column("gate", pa.array([f"B{n}" for n in FIRST]))
    maker.replace(wider)
    now = source.commit()
    assert columns_of(source.schema(now)) == columns_of(wider.schema) != before
    assert digest(scanned(source, now)) == digest(wider)
    if maker.travels:
        assert columns_of(source.schema(then)) == before
        assert digest(scanned(source, then)) == digest(flights(FIRST))


def test_a_type_that_changed_shows_in_the_schema(maker: Maker, create: Place) -> None:
    source = create(flights(FIRST))
    table = flights(FIRST)
    other = table.set_column(3, "delay", table.column("delay").cast(pa.string()))
    maker.replace(other)
    assert columns_of(source.schema(source.commit())) == columns_of(other.schema)


def test_an_append_meanwhile_does_not_change_what_a_scan_gives(maker: Maker, create: Place) -> None:
    source = create(flights(FIRST))
    commit = source.commit()
    found: list[pa.Table] = []
    pending = [maker.append]
    try:
        for name in source.names(commit):
            for piece in source.scan(commit, name, TIME, None, None):
                found.append(piece)
                while pending:
                    pending.pop()(flights(LATER))
    except ConflictError:
        assert not maker.appends
        return
    assert digest(pa.concat_tables(found)) == digest(flights(FIRST))


def test_a_change_after_the_stamp_is_seen_by_the_stamp_or_makes_another_file(maker: Maker, create: Place) -> None:
    source = create(flights(FIRST))
    commit = source.commit()
    stamps = {name: source.stamp(name) for name in source.names(commit)}
    maker.overwrite(flights([2, 3], "a much longer carrier"))
    now = source.commit()
    assert {name: source.stamp(name) for name in source.names(now)} != stamps
