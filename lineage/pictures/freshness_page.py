"""The freshness of every model as one web page: inline styles and drawings, no scripts, nothing fetched.

What it says of now is given to it as text; the rest is what the ledger and the manifests say. Everything is escaped,
and each part has its limit, so that the page stays below half a megabyte however much there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from string import Template

from snapline.lineage.invalidation import ModelState
from snapline.lineage.pictures import calendar_map, freshness_chart
from snapline.lineage.pictures.calendar_map import CalendarMap
from snapline.lineage.pictures.freshness import Timeline

TOLD, CELL_TEXT = 600, 240
# Bytes for each part; what does not fit is counted.
ROWS_ROOM, MODELS_ROOM, MAPS_ROOM = 100_000, 200_000, 160_000

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Freshness</title>
<style>
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2430; --soft: #5c6878; --rule: #dde2e9; --age: #1f5fbf;
  --good: #157347; --stale: #b07a10; --restated: #c2571a; --bad: #b3261e; --erasure: #7a3fa3; --none: #75808f;
  --l0: #dfe5ec; --l1: #f6cf9a; --l2: #eda35a; --l3: #d96b2b; --l4: #a8321a; --on: #fff; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --ink: #e6ebf2; --soft: #9aa7b8; --rule: #2f3846;
  --age: #7fb0ff; --good: #62cf95; --stale: #e3b453; --restated: #f0935a; --bad: #ff8a80; --erasure: #cf9cf5;
  --none: #8b97a7; --l0: #2b3442; --l1: #6b4a1e; --l2: #a5672a; --l3: #db8440; --l4: #ff9f7d; --on: #14181f; } }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .25rem; }
h3 { font-size: .95rem; margin: 1.1rem 0 .1rem; overflow-wrap: anywhere; }
.note { color: var(--soft); font-size: .85rem; margin: .2rem 0 .6rem; } .wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .82rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .5rem; border-bottom: 1px solid var(--rule);
  overflow-wrap: break-word; max-width: 24rem; }
th { color: var(--soft); white-space: nowrap; } td:last-child { min-width: 18rem; }
svg { display: block; } svg text { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--rule); } .axis { text-anchor: end; } .age { fill: none; stroke: var(--age); stroke-width: 2; }
.limit { stroke: var(--bad); stroke-dasharray: 5 3; }
svg .limit-text { fill: var(--bad); paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
.mark { stroke: var(--paper); } .good { fill: var(--age); } .bad { fill: var(--bad); }
svg .on-state { fill: var(--on); font-weight: 600; }
.FRESH { fill: var(--good); } .STALE_AGE, .STALE_DATA, .STALE_VIEW { fill: var(--stale); }
.RESTATED { fill: var(--restated); } .ERASURE_PENDING { fill: var(--erasure); } .LEAKED, .TAMPERED { fill: var(--bad); }
.ORPHANED { fill: var(--none); }
.l0 { fill: var(--l0); } .l1 { fill: var(--l1); } .l2 { fill: var(--l2); } .l3 { fill: var(--l3); }
.l4 { fill: var(--l4); } .unknown { fill: none; stroke: var(--rule); }
.key { display: inline-block; vertical-align: -1px; }
</style>
</head>
<body>
<h1>Freshness</h1>
<p class="note">$note</p>
$sections
</body>
</html>
""")
_MARKS = (
    ('<path class="good" d="M6 0l6 11h-12z"/>', "a version"),
    ('<path class="good" d="M6 0l6 6l-6 6l-6 -6z"/>', "a promotion"),
    ('<rect class="good" width="10" height="10" x="1" y="1"/>', "a signed statement"),
    ('<circle class="good" r="5" cx="6" cy="6"/>', "a comparison with the source, a check or a definition"),
    ('<circle class="bad" r="5" cx="6" cy="6"/>', "the same with bad news"),
)


@dataclass(frozen=True, slots=True)
class Standing:
    """A table of text: what every model is now."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def page(
    standing: Standing, timelines: Sequence[Timeline], maps: Sequence[CalendarMap], note: str, now: datetime
) -> str:
    """Return the whole page.

    Args:
        standing: What every model is now.
        timelines: Every model over time; the gravest states are drawn first, and as many as there is room for.
        maps: Snapshots as calendars; those with the most changed rows are drawn first.
        note: A line that says what the page speaks of.
        now: The instant at which the time axis ends.
    """
    sections = [_section("Now", _standing(standing)), _section("Over time", _charts(timelines, now))]
    sections.append(_section("Buckets", _maps(maps)))
    return _PAGE.substitute(note=escape(note), sections="\n".join(sections))


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{body}\n</section>"


def _left_out(count: int, what: str) -> str:
    return f'<p class="note">{count} more {what} are not shown.</p>' if count else ""


def _fitting(parts: Iterable[str], room: int) -> list[str]:
    """Return the parts, from the first, that fit into so many bytes."""
    kept = []
    for part in parts:
        room -= len(part.encode())
        if room < 0:
            break
        kept.append(part)
    return kept


def _cut(text: str) -> str:
    return escape(text if len(text) <= CELL_TEXT else f"{text[: CELL_TEXT - 1]}…")


def _standing(standing: Standing) -> str:
    head = "".join(f"<th>{_cut(name)}</th>" for name in standing.head)
    rows = (f"<tr>{''.join(f'<td>{_cut(text)}</td>' for text in row)}</tr>" for row in standing.rows)
    kept = _fitting(rows, ROWS_ROOM)
    body = "\n".join(kept)
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
    return (table if standing.rows else "<p>No model yet.</p>") + _left_out(len(standing.rows) - len(kept), "rows")


def _charts(timelines: Sequence[Timeline], now: datetime) -> str:
    order = list(ModelState)
    gravest = sorted(timelines, key=lambda line: (-order.index(line.stretches[-1].state), line.model))
    span = freshness_chart.span_of(gravest, now)
    charts = _fitting(
        (f'<h3>{_cut(line.model)}</h3>\n<div class="wide">{freshness_chart.svg(line, span)}</div>' for line in gravest),
        MODELS_ROOM,
    )
    drawn = gravest[: len(charts)]
    keys = ", ".join(f"{_key(shape)} {what}" for shape, what in _MARKS)
    known = [state for state in ModelState if any(one.state is state for line in drawn for one in line.stretches)]
    square = '<rect class="{}" width="10" height="10" x="1" y="1"/>'
    states = ", ".join(f"{_key(square.format(state.value))} {state.value}" for state in known)
    note = (
        '<p class="note">The line is the age of the newest version: the time since its oldest cut ended; a model '
        f"without a cut has none. Below it are {keys}. The band is what the ledger said the model was: {states}.</p>"
    )
    body = note + "\n".join(charts) if drawn else "<p>No model yet.</p>"
    return body + _left_out(len(gravest) - len(drawn), "models")


def _maps(maps: Sequence[CalendarMap]) -> str:
    drawn = sorted(maps, key=lambda one: (-one.changed, one.compared_at is None, one.title))
    levels = ("unchanged", "up to 1 %", "up to 5 %", "up to 20 %", "more")
    square = '<rect class="l{}" width="10" height="10" x="1" y="1"/>'
    keys = ", ".join(f"{_key(square.format(level))} {text}" for level, text in enumerate(levels))
    note = f'<p class="note">The share of a bucket\'s rows that differ in its source: {keys}.</p>'
    parts = _fitting(_calendars(drawn), MAPS_ROOM)
    body = note + "\n".join(parts) if drawn else "<p>No snapshot yet.</p>"
    return body + _left_out(len(drawn) - len(parts), "snapshots")


def _calendars(maps: Sequence[CalendarMap]) -> Iterable[str]:
    left = TOLD
    for one in maps:
        when = f"compared {one.compared_at.isoformat(timespec='seconds')}" if one.compared_at else "never compared"
        said = f"{one.changed} rows differ, {when}; each square is one {one.unit.value}"
        yield (
            f'<h3>{_cut(one.title)}</h3>\n<p class="note">{escape(said)}</p>\n'
            f'<div class="wide">{calendar_map.svg(one, left)}</div>'
        )
        left -= min(left, sum(cell.level > 0 for cell in one.cells))


def _key(shape: str) -> str:
    return f'<svg class="key" width="12" height="12">{shape}</svg>'
