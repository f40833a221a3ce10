"""The page that `snapline status --html` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapline.cli.output import Output
    from snapline.cli.wiring import Home
    from snapline.lineage.pictures.calendar_map import CalendarMap
    from snapline.lineage.state import State


def draw(path: Path, opened: Home, output: Output, head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Write the page.

    Args:
        path: The file.
        opened: The home it is about.
        output: Where a person is told what was written, and which snapshots could not be drawn.
        head: The names of the columns of what every model is now.
        rows: The rows below them.

    Raises:
        DefinitionError: The file cannot be written there.
    """
    from snapline.cli.files import write
    from snapline.cli.wiring import now
    from snapline.lineage.pictures.freshness import timelines
    from snapline.lineage.pictures.freshness_page import Standing, page
    from snapline.lineage.state import fold

    records, instant = opened.ledger.entries(), now()
    state = fold(record.event for record in records)
    note = f"{opened.root.name}, entry {len(records)}, {instant.isoformat(timespec='seconds')}"
    maps = _maps(opened, state, output)
    text = page(Standing(tuple(head), tuple(rows)), timelines(records, instant), maps, note, instant)
    write(path, text.encode())
    output.note(f"drawn into {path}")


def _maps(opened: Home, state: State, output: Output) -> list[CalendarMap]:
    """Return the calendars of the snapshots that newest versions were made from, and of every restated one."""
    from snapline.cli.impact import manifest_reader
    from snapline.lineage.errors import IntegrityError
    from snapline.lineage.pictures.calendar_map import calendar_map

    read = manifest_reader(opened, state)
    wanted = {identifier for versions in state.models.values() for identifier in versions[-1].touched}
    wanted |= {identifier for identifier, found in state.comparisons.items() if found.comparison.restated}
    maps = []
    for identifier in sorted(wanted):
        snapshot, compared = state.snapshots[identifier], state.comparisons.get(identifier)
        try:
            manifest = read(snapshot)
        except IntegrityError as error:
            output.note(f"{snapshot.series.name}@{identifier[:12]} is not drawn: {error.message}")
            continue
        comparison = compared.comparison if compared else None
        maps.append(calendar_map(snapshot, manifest, comparison, compared.at if compared else None))
    return maps
