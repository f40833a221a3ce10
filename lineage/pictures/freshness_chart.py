"""One model's freshness over time as a drawing: its age, what happened to it, and what it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape

from snapline.lineage.pictures.freshness import Mark, Stretch, Timeline

WIDTH, LEFT, RIGHT, TOP, PLOT, LANE, BAND, FOOT = 900, 70, 14, 12, 96, 34, 16, 20
STRETCHES, MARKS, TICKS = 60, 60, 5
_UNITS = ((timedelta(days=2), timedelta(days=1), "d"), (timedelta(hours=2), timedelta(hours=1), "h"))


@dataclass(frozen=True, slots=True)
class Span:
    """The instants at both ends of the time axis; the end lies after the start."""

    start: datetime
    end: datetime

    def x(self, instant: datetime) -> float:
        """Return where an instant lies across the drawing."""
        share = (instant - self.start) / (self.end - self.start)
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)


def span_of(timelines: Sequence[Timeline], now: datetime) -> Span:
    """Return the time axis that all drawings share: from the first version to now, a minute at the least."""
    start = min((line.stretches[0].since for line in timelines), default=now)
    return Span(start, max(now, start + timedelta(minutes=1)))


def svg(line: Timeline, span: Span) -> str:
    """Return a timeline as an SVG drawing; of too many stretches and marks the newest are drawn."""
    stretches = line.stretches[-STRETCHES:]
    base = TOP + (PLOT if any(one.oldest for one in stretches) else 0)
    height = base + LANE + BAND + FOOT
    label = escape(f"{line.model}: {stretches[-1].state.value} now", quote=True)
    parts = [
        f'<svg class="chart" role="img" aria-label="{label}" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}">',
        *_ages(line, stretches, span),
        *_marks(line.marks, span, base),
        *(_band(one, span, base + LANE) for one in stretches),
        *_ticks(span, base + LANE + BAND + 14),
        "</svg>",
    ]
    return "".join(parts)


def _ages(line: Timeline, stretches: Sequence[Stretch], span: Span) -> list[str]:
    aged = [one for one in stretches if one.oldest is not None]
    ages = [when - one.oldest for one in aged if one.oldest for when in (one.since, one.until)]
    if not ages:
        return []
    low, high = min(timedelta(), *ages), max(ages)
    limit = line.max_age if line.max_age is not None and line.max_age <= 2 * max(high, timedelta()) else None
    high = max(high, limit) if limit is not None else high
    room = max(high - low, timedelta(seconds=1))

    def y(age: timedelta) -> float:
        return TOP + PLOT - 6 - (age - low) / room * (PLOT - 12)

    parts = [_level(y(age), age) for age in dict.fromkeys((low, high))]
    if limit is not None:
        parts.append(
            f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(limit):.1f}" y2="{y(limit):.1f}"/>'
            f'<text class="limit-text" x="{LEFT + 4}" y="{y(limit) - 3:.1f}">max_age {_age(limit)}</text>'
        )
    path = ""
    for one in aged:
        if one.oldest:
            start, end = y(one.since - one.oldest), y(one.until - one.oldest)
            path += f"{'L' if path else 'M'}{span.x(one.since):.1f} {start:.1f}L{span.x(one.until):.1f} {end:.1f}"
    return [*parts, f'<path class="age" d="{path}"/>']


def _level(y: float, age: timedelta) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="axis" x="{LEFT - 6}" y="{y + 4:.1f}">{_age(age)}</text>'
    )


def _age(age: timedelta) -> str:
    if not age:
        return "0"
    for least, unit, name in _UNITS:
        if abs(age) >= least:
            return f"{age / unit:,.1f} {name}"
    return f"{age / timedelta(minutes=1):,.1f} min"


def _marks(marks: Sequence[Mark], span: Span, top: int) -> list[str]:
    """Return the marks; of those of one kind that would cover each other, the last."""
    drawn: dict[tuple[str, bool, int], Mark] = {}
    for mark in marks:
        drawn[mark.kind, mark.bad, round(span.x(mark.at) / 5)] = mark
    return [_mark(mark, span.x(mark.at), top) for mark in list(drawn.values())[-MARKS:]]


def _mark(mark: Mark, x: float, top: int) -> str:
    y = top + (9 if mark.kind in ("model-registered", "promoted") else 24)
    shape = {
        "model-registered": f'<path d="M{x:.1f} {y - 6}l6 11h-12z"',
        "promoted": f'<path d="M{x:.1f} {y - 7}l7 7l-7 7l-7 -7z"',
        "attested": f'<rect x="{x - 5:.1f}" y="{y - 5}" width="10" height="10"',
    }.get(mark.kind, f'<circle cx="{x:.1f}" cy="{y}" r="5"')
    name = shape[1:].partition(" ")[0]
    told = escape(f"{mark.at.isoformat(timespec='seconds')}: {mark.text}")
    return f'{shape} class="mark {"bad" if mark.bad else "good"}"><title>{told}</title></{name}>'


def _band(one: Stretch, span: Span, y: int) -> str:
    left, right = span.x(one.since), span.x(one.until)
    width = max(right - left, 1.5)
    state = one.state.value + (", retired" if one.retired else "")
    times = " to ".join(when.isoformat(timespec="seconds") for when in (one.since, one.until))
    told = escape(f"{one.version}: {state}, {times}")
    shown = next((text for text in (f"{one.version} {state}", state) if len(text) * 8 + 8 < width), "")
    text = f'<text class="on-state" x="{left + 4:.1f}" y="{y + 12}">{escape(shown)}</text>' if shown else ""
    return (
        f'<g><rect class="{one.state.value}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{BAND}"/>'
        f"{text}<title>{told}</title></g>"
    )


def _ticks(span: Span, y: int) -> list[str]:
    length = span.end - span.start
    style = "%Y-%m-%d" if length > timedelta(days=3) else "%b %d %H:%M" if length > timedelta(hours=1) else "%H:%M:%S"
    ticks = []
    for place in range(TICKS):
        when = span.start + length * place / (TICKS - 1)
        anchor = "start" if place == 0 else "end" if place == TICKS - 1 else "middle"
        ticks.append(
            f'<text class="tick" text-anchor="{anchor}" x="{span.x(when):.1f}" y="{y}">{when.strftime(style)}</text>'
        )
    return ticks
