"""The options of commands that can ask about an earlier instant, and what the ledger said then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from snapline.cli.output import Output
    from snapline.cli.wiring import Home
    from snapline.lineage.past import Past

AtOption = Annotated[
    str | None, typer.Option("--at", help="What the ledger said at this instant, such as 2026-11-01T12:00Z.")
]
AtEntryOption = Annotated[int | None, typer.Option("--at-entry", help="What the ledger said after this entry.")]


def past(opened: Home, at: str | None, entry: int | None, output: Output) -> Past:
    """Return what the ledger said then, or says now; a person is told when it is not now.

    Raises:
        DefinitionError: Both were given, or the instant is malformed or has not come yet.
        NotFoundError: There is no such entry, or the home has none yet.
    """
    from snapline.cli.wiring import now
    from snapline.lineage.cut import parse_instant
    from snapline.lineage.errors import DefinitionError, NotFoundError
    from snapline.lineage.past import at_entry, at_instant

    if at is not None and entry is not None:
        raise DefinitionError("expected one of --at and --at-entry, found both", hint="Give one.")
    instant = parse_instant(at) if at is not None else None
    if instant is not None and instant > now():
        raise DefinitionError(f"--at {at} has not come yet", hint="Give a past instant, or leave it out.")
    records = opened.ledger.entries()
    if not records:
        raise NotFoundError(f"the Snapline home at {opened.root} is half made", hint="Finish it with snapline init.")
    if instant is None:
        return at_entry(records, len(records) if entry is None else entry)
    found = at_instant(records, instant)
    output.note(f"as of entry {found.entry} of {found.of}")
    return found
