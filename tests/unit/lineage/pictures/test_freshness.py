from __future__ import annotations

from datetime import timedelta

import pytest
from histories import DAY, START, attested, defined, digest, key, promoted, records, registered, snapshot, taken, view

from snapline.lineage.events import (
    Erased,
    ErasureClosed,
    LeakageChecked,
    LineageEvent,
    Retired,
    RuleFinding,
    SourceCompared,
)
from snapline.lineage.invalidation import ModelState
from snapline.lineage.pictures.freshness import Timeline, timelines
from snapline.lineage.snapshot import BucketChange, Commit, Comparison, Snapshot

NOW = START + 100 * DAY
CUT = snapshot(window=("2025-12-01", "2025-12-31"))
LATER = snapshot(window=("2026-01-01", "2026-01-31"))
ENDS = START - DAY


def compared(day: int, cut: Snapshot = CUT, **counts: int) -> SourceCompared:
    changed = (BucketChange(label="2025-12-03", rows_then=9, rows_now=9, **counts),) if counts else ()
    comparison = Comparison(changed=changed, commit=Commit(id="2"))
    return SourceCompared(at=START + day * DAY, snapshot=cut.id, files=digest("f"), comparison=comparison)


def timeline(*events: LineageEvent, max_age: str | None = None) -> Timeline:
    made_by = view(max_age=max_age)
    first = [taken(CUT), defined(made_by), registered("m", cut=CUT, made_by=made_by)]
    (found,) = timelines(records([*first, *events]), NOW)
    return found


def told(line: Timeline) -> list[tuple[int, str]]:
    """The day each stretch begins, and what the model was in it."""
    return [((one.since - START).days, one.state.value) for one in line.stretches]


def test_a_model_nobody_spoke_of_again_stays_fresh() -> None:
    line = timeline()
    assert told(line) == [(0, "FRESH")]
    (only,) = line.stretches
    assert (only.since, only.until, str(only.version), only.oldest) == (START, NOW, "m/1", ENDS)


def test_a_cut_grows_old_without_an_entry() -> None:
    line = timeline(max_age="10d")
    assert told(line) == [(0, "FRESH"), (9, "STALE_AGE")]
    assert line.max_age == 10 * DAY
    assert line.stretches[0].until == ENDS + 10 * DAY + timedelta(microseconds=1)


def test_a_restatement_is_believed_from_its_comparison_until_the_next() -> None:
    line = timeline(compared(3), compared(5, corrected=2), compared(9))
    assert told(line) == [(0, "FRESH"), (5, "RESTATED"), (9, "FRESH")]
    assert [(mark.kind, mark.bad, mark.text) for mark in line.marks[1:]] == [
        ("source-compared", False, "compared with its source: cut unchanged"),
        ("source-compared", True, "compared with its source: 2 rows differ"),
        ("source-compared", False, "compared with its source: cut unchanged"),
    ]


def test_a_newer_version_begins_anew() -> None:
    again = registered("m/2", cut=LATER, at=START + 35 * DAY, made_by=view(max_age="10d"))
    line = timeline(taken(LATER, START + 34 * DAY), again, max_age="10d")
    assert told(line) == [(0, "FRESH"), (9, "STALE_AGE"), (35, "FRESH"), (40, "STALE_AGE")]
    assert [str(one.version) for one in line.stretches] == ["m/1", "m/1", "m/2", "m/2"]


def test_stretches_have_no_gaps() -> None:
    line = timeline(compared(3, deleted=1), compared(5), promoted("m", "champion", at=START + 6 * DAY), max_age="10d")
    for before, after in zip(line.stretches, line.stretches[1:], strict=False):
        assert before.until == after.since
    assert line.stretches[-1].until == NOW


def test_what_keeps_a_model_from_being_served_shows() -> None:
    leaked = LeakageChecked(
        at=START + 4 * DAY,
        model=key("m"),
        name="rules",
        rules=digest("r"),
        rows=digest("r"),
        findings=(RuleFinding(rule="later", rows=2),),
    )
    clean = leaked.model_copy(update={"at": START + 6 * DAY, "findings": (RuleFinding(rule="later", rows=0),)})
    line = timeline(leaked, clean, defined(view(seed=8), at=START + 8 * DAY), attested("m", at=START + 9 * DAY))
    assert told(line) == [(0, "FRESH"), (4, "LEAKED"), (6, "FRESH"), (8, "STALE_VIEW")]
    assert [mark.kind for mark in line.marks] == [
        "model-registered", "leakage-checked", "leakage-checked", "view-defined", "attested"
    ]  # fmt: skip


def test_an_erasure_is_pending_until_it_is_settled() -> None:
    erased = Erased(
        at=START + 4 * DAY,
        erasure="e" * 64,
        series=("trips",),
        tombstones=digest("t"),
        keys=1,
        absent=0,
        snapshots=(CUT.id,),
    )
    retired = Retired(at=START + 7 * DAY, model=key("m"), reason="because")
    closed = ErasureClosed(at=START + 7 * DAY, erasure="e" * 64, certificate=digest("c"))
    line = timeline(erased, retired, closed)
    assert told(line)[:2] == [(0, "FRESH"), (4, "ERASURE_PENDING")]
    assert [one.retired for one in line.stretches][-1] is True
    assert [mark.text for mark in line.marks][1:] == ["erasure eeeeeeeeeeee asked for", "m/1 retired"]


def test_a_model_without_a_cut_has_no_age() -> None:
    (line,) = timelines(records([registered("base")]), NOW)
    assert [(one.state, one.oldest) for one in line.stretches] == [(ModelState.FRESH, None)]


def test_two_models_do_not_hear_of_each_other() -> None:
    other = registered("other", cut=LATER, at=START + DAY)
    lines = timelines(records([*([taken(CUT), taken(LATER), defined(view())]), registered("m", cut=CUT), other,
                               compared(5, corrected=2)]), NOW)  # fmt: skip
    assert {line.model: told(line) for line in lines} == {
        "m": [(0, "FRESH"), (5, "RESTATED")],
        "other": [(1, "FRESH")],
    }
    assert [len(line.marks) for line in lines] == [2, 1]


@pytest.mark.parametrize("now", [START, START - DAY])
def test_a_model_registered_this_instant_has_one_stretch(now: object) -> None:
    (line,) = timelines(records([registered("base")]), now)  # type: ignore[arg-type]
    assert len(line.stretches) == 1


def test_nothing_recorded_has_no_timeline() -> None:
    assert timelines((), NOW) == ()
