"""A snapshot's buckets as a calendar, each coloured by the share of its rows that the newest comparison found changed.

Days stand in weeks, hours in days, weeks and months in years. A snapshot with too many buckets to draw is shown in the
next wider unit, its counts added up, so that the drawing stays small however long the window is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from snapline.lineage.cut import Bucket, bucket_label, bucket_start, parse_instant
from snapline.lineage.snapshot import BucketChange, Comparison, Manifest, Snapshot

CELLS = 750
PITCH, SIDE, LEFT, TOP = 12, 10, 44, 16
SHARES = (0.0, 0.01, 0.05, 0.2)
KINDS = ("appended", "corrected", "deleted", "late")


@dataclass(frozen=True, slots=True)
class Cell:
    """One bucket of the calendar: its first instant, the rows it held, and how many differ, by kind in order."""

    start: datetime
    rows: int
    changed: tuple[int, ...]

    @property
    def level(self) -> int:
        """0 when nothing differs, otherwise 1 to 4 by the share of rows that do."""
        total = sum(self.changed)
        share = total / max(self.rows, 1)
        return sum(share > limit for limit in SHARES) if total else 0


@dataclass(frozen=True, slots=True)
class CalendarMap:
    """The cells of one snapshot in order, the unit they are drawn in, and when they were compared, if ever."""

    title: str
    unit: Bucket
    cells: tuple[Cell, ...]
    compared_at: datetime | None

    @property
    def changed(self) -> int:
        """How many rows differ in all."""
        return sum(sum(cell.changed) for cell in self.cells)


def calendar_map(
    snapshot: Snapshot, manifest: Manifest, comparison: Comparison | None, compared_at: datetime | None
) -> CalendarMap:
    """Return the calendar of a snapshot; without a comparison nothing counts as changed."""
    rows = {bucket.label: bucket.rows for bucket in manifest.buckets}
    changes = {change.label: change for change in comparison.changed} if comparison else {}
    found = [(parse_instant(label), rows.get(label, 0), _counts(changes.get(label))) for label in rows | changes]
    units = list(Bucket)[list(Bucket).index(snapshot.series.bucket) :]
    unit = next((u for u in units if len({bucket_start(start, u) for start, _, _ in found}) <= CELLS), units[-1])
    cells: dict[datetime, Cell] = {}
    for start, count, changed in sorted(found):
        place = bucket_start(start, unit)
        known = cells.get(place, Cell(place, 0, (0,) * len(KINDS)))
        summed = tuple(a + b for a, b in zip(known.changed, changed, strict=True))
        cells[place] = Cell(place, known.rows + count, summed)
    window = f"[{snapshot.cut.since.date()}, {snapshot.cut.until.date()})"
    title = f"{snapshot.series.name}@{snapshot.id[:12]}  {window}"
    return CalendarMap(title, unit, tuple(cells.values())[-CELLS:], compared_at)


def svg(drawn: CalendarMap, told: int) -> str:
    """Return the calendar as an SVG drawing.

    Args:
        drawn: The calendar.
        told: How many changed cells may say what changed in them; the most changed do.
    """
    places, labels, size = _places([cell.start for cell in drawn.cells], drawn.unit)
    worst = sorted((cell for cell in drawn.cells if cell.level), key=lambda cell: -sum(cell.changed))[:told]
    telling = {cell.start for cell in worst}
    paths: dict[int, list[str]] = {}
    rects = []
    for cell, (x, y) in zip(drawn.cells, places, strict=True):
        if cell.start in telling:
            rects.append(
                f'<rect class="l{cell.level}" x="{x}" y="{y}" width="{SIDE}" height="{SIDE}">'
                f"<title>{escape(_told(cell, drawn.unit))}</title></rect>"
            )
        else:
            paths.setdefault(cell.level, []).append(f"M{x} {y}h{SIDE}v{SIDE}h-{SIDE}z")
    unknown = "" if drawn.compared_at else " unknown"
    shapes = [f'<path class="l{level}{unknown}" d="{"".join(path)}"/>' for level, path in sorted(paths.items())]
    texts = [f'<text x="{x}" y="{y}">{escape(text)}</text>' for x, y, text in labels]
    width, height = size
    label = escape(f"{drawn.title}: {drawn.changed} rows changed", quote=True)
    return (
        f'<svg class="map" role="img" aria-label="{label}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{"".join(shapes + rects + texts)}</svg>'
    )


def _counts(change: BucketChange | None) -> tuple[int, ...]:
    return tuple(getattr(change, kind) if change else 0 for kind in KINDS)


def _told(cell: Cell, unit: Bucket) -> str:
    counts = ", ".join(f"{count} {kind}" for kind, count in zip(KINDS, cell.changed, strict=True) if count)
    return f"{bucket_label(cell.start, unit)}: {cell.rows} rows; {counts}"


Label = tuple[int, int, str]


def _places(starts: Sequence[datetime], unit: Bucket) -> tuple[list[tuple[int, int]], list[Label], tuple[int, int]]:
    """Return the corner of each cell, the labels, and the size of the drawing."""
    if unit is Bucket.HOUR:
        return _hours(starts)
    years = {year: place for place, year in enumerate(sorted({start.year for start in starts}))}
    deep = 7 if unit is Bucket.DAY else 1
    block = deep * PITCH + (6 if deep > 1 else 2)
    labels: list[Label] = [(0, TOP + place * block + SIDE, str(year)) for year, place in years.items()]
    places = []
    for start in starts:
        column, row = _in_year(start, unit)
        places.append((LEFT + column * PITCH, TOP + years[start.year] * block + row * PITCH))
    if unit is not Bucket.YEAR:
        first_days = [datetime(2013, month, 1, tzinfo=starts[0].tzinfo if starts else None) for month in range(1, 13)]
        labels += [
            (LEFT + _in_year(day, unit)[0] * PITCH, TOP - 5, day.strftime("%b")[: _letters(unit)]) for day in first_days
        ]
    columns = {Bucket.DAY: 54, Bucket.WEEK: 54, Bucket.MONTH: 12, Bucket.YEAR: 1}[unit]
    return places, labels, (LEFT + columns * PITCH, TOP + len(years) * block)


def _letters(unit: Bucket) -> int:
    return 1 if unit is Bucket.MONTH else 3


def _in_year(start: datetime, unit: Bucket) -> tuple[int, int]:
    """Return a bucket's column and row inside its year."""
    day = start.timetuple().tm_yday - 1
    match unit:
        case Bucket.DAY:
            first = datetime(start.year, 1, 1, tzinfo=start.tzinfo).weekday()
            return (day + first) // 7, start.weekday()
        case Bucket.WEEK:
            return day // 7, 0
        case Bucket.MONTH:
            return start.month - 1, 0
        case _:
            return 0, 0


def _hours(starts: Sequence[datetime]) -> tuple[list[tuple[int, int]], list[Label], tuple[int, int]]:
    """Return the same for hours: a column for each day that has any, and a row for each hour."""
    days = {day: place for place, day in enumerate(sorted({bucket_start(start, Bucket.DAY) for start in starts}))}
    places = [(LEFT + days[bucket_start(start, Bucket.DAY)] * PITCH, TOP + start.hour * PITCH) for start in starts]
    labels: list[Label] = [(0, TOP + hour * PITCH + SIDE, f"{hour:02d}:00") for hour in range(0, 24, 6)]
    labels += [(LEFT + place * PITCH, TOP - 5, day.strftime("%d %b")) for day, place in days.items() if place % 7 == 0]
    return places, labels, (LEFT + max(len(days) + 4, 12) * PITCH, TOP + 24 * PITCH)
