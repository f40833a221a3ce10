from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from lineage_home import DAY, NOW, START, WINDOW, LineageHome

from snapline.lineage.cut import Bucket, Cut
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.series import CutOptions, Desk, SeriesOptions, select, take_and_record
from snapline.lineage.stores.memory import MemoryStore
from snapline.lineage.stores.protocol import Entry


@pytest.fixture
def home(tmp_path: Path) -> LineageHome:
    return LineageHome(tmp_path)


class OvertakenStore(MemoryStore):
    """Lets somebody else commit just before its first append."""

    def __init__(self) -> None:
        super().__init__()
        self.rival: Callable[[], object] | None = None

    def append(self, entries: Sequence[Entry], expected_length: int, expected_head: str) -> None:
        rival, self.rival = self.rival, None
        if rival is not None:
            rival()
        super().append(entries, expected_length, expected_head)


def test_a_first_take_declares_and_a_later_one_remembers(home: LineageHome) -> None:
    first = home.take()
    assert first.cut == Cut(since=START, until=START + 3 * DAY, as_of=NOW)
    assert (first.rows, first.series.bucket) == (6, Bucket.DAY)
    later = home.take(cut=CutOptions(until="2013-01-03"), now=NOW + DAY)
    assert later.series == first.series
    assert later.cut == Cut(since=START, until=START + 2 * DAY, as_of=NOW + DAY)
    assert home.state.series["trips"] == (first.id, later.id)


@pytest.mark.parametrize("missing", ["source", "time", "key"])
def test_a_first_take_says_what_it_lacks(home: LineageHome, missing: str) -> None:
    with pytest.raises(DefinitionError, match=f"the first take of 'trips' needs --{missing}$"):
        home.take(series=home.options(**{missing: None}))
    with pytest.raises(DefinitionError, match="needs --source, --time, --key"):
        home.take(series=SeriesOptions())
    assert home.ledger.load().length == 0


@pytest.mark.parametrize(
    ("option", "said", "declared"),
    [
        ("source", "/elsewhere", "trips.parquet"),
        ("time", "seen", "at"),
        ("known", "at", "seen"),
        ("key", "delay", "id"),
        ("bucket", "hour", "day"),
    ],
)
def test_a_later_option_that_differs_is_refused_and_the_same_is_not(
    home: LineageHome, option: str, said: str, declared: str
) -> None:
    home.take()
    with pytest.raises(DefinitionError, match=rf"--{option}: .*{declared}, not {said}") as caught:
        home.take(series=SeriesOptions(**{option: said}))
    assert "another name" in caught.value.hint
    home.take(series=home.options(bucket="day"))


def test_known_until_needs_known(home: LineageHome) -> None:
    with pytest.raises(DefinitionError, match="--known-until needs --known"):
        home.take(series=home.options(known=None, known_until="seen"))


def test_a_known_column_cannot_be_added_later(home: LineageHome) -> None:
    home.take(series=home.options(known=None))
    with pytest.raises(DefinitionError, match=r"--known: .*declared with none, not seen"):
        home.take(series=SeriesOptions(known="seen"))


@pytest.mark.parametrize(("name", "bucket"), [("no/slash", None), ("", None), ("trips", "fortnight")])
def test_a_name_or_a_bucket_that_cannot_be_one_is_refused_with_a_hint(
    home: LineageHome, name: str, bucket: str | None
) -> None:
    with pytest.raises(DefinitionError, match="snapshot") as caught:
        home.take(name, series=home.options(bucket=bucket))
    assert "letters" in caught.value.hint
    assert "hour, day, week" in caught.value.hint


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (CutOptions(), "needs --from and --until"),
        (CutOptions(since="2013-01-01"), "needs --from and --until"),
        (CutOptions(since="2013-01-04", until="2013-01-04"), "the window is empty"),
        (CutOptions(since="2013-01-05", until="2013-01-04"), "the window is empty"),
        (CutOptions(since="yesterday", until="2013-01-04"), "found 'yesterday'"),
        (CutOptions(since="2013-01-01", until="2013-01-04", as_of="soon"), "found 'soon'"),
        (CutOptions(since="2013-01-01", until="2013-01-04", as_of="2099-01-01"), "has not come yet"),
    ],
)
def test_a_window_that_is_none_is_refused(home: LineageHome, cut: CutOptions, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        home.take(cut=cut)


def test_as_of_needs_a_known_column_or_history_and_is_kept_when_given(home: LineageHome) -> None:
    with pytest.raises(DefinitionError, match="no known column, and its source keeps no history"):
        home.take("plain", home.options(known=None), CutOptions(WINDOW.since, WINDOW.until, "2013-02-01"))
    snapshot = home.take(cut=CutOptions(WINDOW.since, WINDOW.until, "2013-01-02"))
    assert snapshot.cut.as_of == datetime(2013, 1, 2, tzinfo=UTC)
    assert snapshot.rows == 2
    assert home.take("plain", home.options(known=None)).cut.as_of is None


def test_the_same_cut_twice_is_one_snapshot(home: LineageHome) -> None:
    cut = CutOptions(WINDOW.since, WINDOW.until, "2013-02-01")
    first = home.take(cut=cut)
    length = home.ledger.load().length
    assert home.take(cut=cut, now=NOW + DAY) == first
    assert home.ledger.load().length == length
    other = home.take(cut=CutOptions(as_of="2013-03-01"))
    assert home.state.snapshot("trips") == other
    assert home.take(cut=cut) == first
    assert home.state.snapshot("trips") == first


def test_taking_a_known_cut_again_keeps_the_files_it_was_first_read_from(home: LineageHome) -> None:
    cut = CutOptions(WINDOW.since, WINDOW.until, "2013-02-01")
    first = home.take(cut=cut)
    home.rows.append({"at": START, "seen": NOW, "id": 50, "delay": 0})
    home.write()
    again = home.take(cut=cut)
    assert (again.id, again.manifest) == (first.id, first.manifest)


def test_a_series_first_taken_otherwise_meanwhile_is_not_mixed_up(home: LineageHome) -> None:
    store = OvertakenStore()
    ledger = home.open(store)
    rival = home.open(store)
    desk = Desk(home.objects, NOW)
    store.rival = lambda: take_and_record("trips", home.options(bucket="hour"), WINDOW, rival, desk)
    with pytest.raises(ConflictError, match="declared the series 'trips' otherwise"):
        take_and_record("trips", home.options(), WINDOW, ledger, desk)
    (identifier,) = ledger.state().series["trips"]
    assert ledger.state().snapshots[identifier].series.bucket is Bucket.HOUR


def test_a_source_that_is_gone_records_nothing(home: LineageHome) -> None:
    home.source.unlink()
    with pytest.raises(NotFoundError, match=r"trips\.parquet"):
        home.take()
    assert home.ledger.load().length == 0


def test_select_reads_named_snapshots_and_nothing_else(home: LineageHome) -> None:
    with pytest.raises(DefinitionError, match="there are: none yet"):
        select("SELECT * FROM trips", home.state, Desk(home.objects, NOW))
    home.take()
    table = select("SELECT max(id) AS top FROM trips", home.state, Desk(home.objects, NOW))
    assert table.to_pylist() == [{"top": 5}]
    with pytest.raises(DefinitionError, match="names no snapshot; there are: trips"):
        select("SELECT * FROM other", home.state, Desk(home.objects, NOW))


def test_select_refuses_rows_that_are_no_longer_those_of_the_snapshot(home: LineageHome) -> None:
    home.take()
    home.rows[2]["delay"] = 99
    home.write()
    with pytest.raises(ConflictError, match="these differ: 2013-01-02"):
        select("SELECT * FROM trips", home.state, Desk(home.objects, NOW))
