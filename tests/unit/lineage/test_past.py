from __future__ import annotations

from datetime import timedelta

import pytest
from histories import DAY, START, fleet, records, registered

from snapline.lineage.errors import NotFoundError
from snapline.lineage.past import at_entry, at_instant
from snapline.lineage.state import State, fold

HISTORY = records(fleet())


def test_an_instant_has_what_was_recorded_at_or_before_it() -> None:
    then = at_instant(HISTORY, START + 4 * DAY)
    assert set(then.state.models) == {"base", "left", "right", "apart", "merged"}
    assert not then.state.models["merged"][0].parents
    assert (then.entry, then.of) == (8, len(HISTORY))
    later = at_instant(HISTORY, START + 5 * DAY)
    assert [str(parent.model) for parent in later.state.models["merged"][0].parents] == ["left/1", "right/1"]


def test_before_the_first_entry_there_is_nothing() -> None:
    then = at_instant(HISTORY, START - timedelta(microseconds=1))
    assert (then.entry, then.records, then.state) == (0, (), State())


def test_the_last_entry_is_now() -> None:
    assert at_entry(HISTORY, len(HISTORY)).state == fold(fleet())
    assert at_instant(HISTORY, START + 99 * DAY).state == fold(fleet())


@pytest.mark.parametrize("entry", range(1, len(HISTORY) + 1))
def test_an_entry_has_those_up_to_it(entry: int) -> None:
    then = at_entry(HISTORY, entry)
    assert then.entry == entry
    assert then.state == fold(fleet()[:entry])


@pytest.mark.parametrize("entry", [0, -1, len(HISTORY) + 1])
def test_an_entry_that_is_not_there_is_refused(entry: int) -> None:
    with pytest.raises(NotFoundError, match=f"no entry {entry}; it has entries 1 to {len(HISTORY)}"):
        at_entry(HISTORY, entry)


def test_a_clock_that_ran_behind_takes_nothing_out_of_order() -> None:
    """The second entry claims to be older than the first: it counts from when the first does."""
    mixed = records([registered("first", at=START + 2 * DAY), registered("second", at=START)])
    assert at_instant(mixed, START + DAY).entry == 0
    assert set(at_instant(mixed, START + 2 * DAY).state.models) == {"first", "second"}
