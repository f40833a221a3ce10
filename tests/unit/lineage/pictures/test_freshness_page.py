from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from html.parser import HTMLParser

import pytest
from histories import DAY, START, defined, digest, promoted, records, registered, snapshot, taken, view

from snapline.lineage.cut import Bucket, bucket_label
from snapline.lineage.events import LineageEvent, Retired, SourceCompared
from snapline.lineage.model import VersionKey
from snapline.lineage.pictures.calendar_map import CalendarMap, calendar_map
from snapline.lineage.pictures.freshness import Timeline, timelines
from snapline.lineage.pictures.freshness_page import Standing, page
from snapline.lineage.snapshot import BucketChange, BucketDigest, Commit, Comparison, Manifest

NOW = START + 100 * DAY
HOSTILE = """</title></style></svg>"'><script>alert(1)</script><img src=x onerror=alert(2)>$note${title}"""
EMPTY = Standing(("model",), ())


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.attributes: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def lines(events: Sequence[LineageEvent]) -> tuple[Timeline, ...]:
    return timelines(records(events), NOW)


def calendar(name: str = "trips", count: int = 30, changed: int = 0) -> CalendarMap:
    labels = [bucket_label(START + n * DAY, Bucket.DAY) for n in range(count)]
    buckets = tuple(BucketDigest(label=label, rows=100, hexdigest="0" * 64) for label in labels)
    changes = tuple(
        BucketChange(label=label, rows_then=100, rows_now=100, corrected=30, deleted=4, late=11, appended=2)
        for label in labels[:changed]
    )
    manifest = Manifest(columns=(), buckets=buckets, files=())
    return calendar_map(snapshot(name), manifest, Comparison(changed=changes, commit=Commit(id="2")), START)


def test_an_empty_home_has_a_page() -> None:
    text = Tags(page(EMPTY, (), (), "nothing", NOW)).text
    assert "No model yet." in text
    assert "No snapshot yet." in text


def test_the_page_shows_models_states_and_buckets() -> None:
    cut = snapshot(window=("2025-12-01", "2025-12-31"))
    events = [taken(cut), defined(view(max_age="10d")), registered("m", cut=cut, made_by=view(max_age="10d"))]
    found = page(
        Standing(("model", "state"), (("m/1", "STALE_AGE"),)),
        lines([*events, promoted("m", "champion", at=START + 50 * DAY)]),
        [calendar(changed=2)],
        "entry 4",
        NOW,
    )
    tags = Tags(found)
    for said in ("entry 4", "m/1", "STALE_AGE", "max_age 10.0 d", "94 rows differ", "m/1 holds champion", "2026-01-01"):
        assert said in tags.text
    assert 'class="FRESH"' in found
    assert 'class="STALE_AGE"' in found
    assert tags.found.count("section") == 3


def test_everything_hostile_is_text() -> None:
    """A name cannot hold such characters; a source, a reason, a title and whatever is said of now can."""
    retired = Retired(at=START + DAY, model=VersionKey(name="m", version=1), reason=HOSTILE)
    drawn = calendar(changed=1)
    hostile = CalendarMap(HOSTILE, drawn.unit, drawn.cells, drawn.compared_at)
    line = Timeline(HOSTILE, *_parts(lines([registered("m"), retired])[0]))
    found = page(Standing((HOSTILE,), ((HOSTILE,),)), [line], [hostile], HOSTILE, NOW)
    tags = Tags(found)
    assert not {"script", "img", "iframe", "link", "object"} & set(tags.found)
    assert not {name for name in tags.attributes if name.startswith("on") or name in ("src", "href")}
    assert tags.text.count("<script>alert(1)</script>") >= 4
    assert tags.found.count("title") >= 2
    assert "${title}" in tags.text


def _parts(line: Timeline) -> tuple[object, ...]:
    return line.stretches, line.marks, line.max_age


def test_the_page_needs_no_script_and_fetches_nothing() -> None:
    found = page(EMPTY, lines([registered("m")]), [calendar(changed=3)], "x", NOW)
    assert "<script" not in found
    assert not re.search(r"url\(|@import|https?://|src=|href=", found)


@pytest.fixture(scope="module")
def enormous() -> tuple[tuple[Timeline, ...], list[CalendarMap]]:
    """More models, entries and changed buckets than a page has room for."""
    cut, made_by = snapshot(), view(max_age="10d")
    events: list[LineageEvent] = [taken(cut), defined(made_by)]
    names = [f"{'m' * 90}{number:03d}" for number in range(30)]
    for step in range(60):
        at = START + step * DAY
        events += [registered(f"{name}/{step + 1}", cut=cut, made_by=made_by, at=at) for name in names]
        change = BucketChange(label="2013-01-01", rows_then=1, rows_now=1, corrected=step % 2)
        comparison = Comparison(changed=(change,) if step % 2 else (), commit=Commit(id="2"))
        later = at + timedelta(hours=12)
        events.append(SourceCompared(at=later, snapshot=cut.id, files=digest("f"), comparison=comparison))
    maps = [calendar(f"series{number}", 740, 740) for number in range(30)]
    return lines(events), maps


def test_the_page_stays_small_and_says_what_it_left_out(
    enormous: tuple[tuple[Timeline, ...], list[CalendarMap]],
) -> None:
    rows = tuple((f"m{number}", "x" * 5000, *["y" * 20] * 9) for number in range(200))
    found = page(Standing(tuple(f"c{n}" for n in range(11)), rows), *enormous, "x", NOW)
    assert len(found.encode()) < 500_000
    shown = {
        "rows": found.count("<tr><td>"),
        "models": found.count('class="chart"'),
        "snapshots": found.count('class="map"'),
    }
    for what, there in (("rows", 200), ("models", 30), ("snapshots", 30)):
        assert 0 < shown[what] < there
        assert f"{there - shown[what]} more {what} are not shown." in found


def test_the_gravest_come_first() -> None:
    cut, made_by = snapshot(window=("2025-12-01", "2025-12-31")), view(max_age="10d")
    events = [taken(cut), defined(made_by), registered("a"), registered("z", cut=cut, made_by=made_by)]
    found = page(EMPTY, lines(events), [calendar("quiet"), calendar("loud", changed=3)], "x", NOW)
    assert found.index("<h3>z</h3>") < found.index("<h3>a</h3>")
    assert found.index("loud@") < found.index("quiet@")
