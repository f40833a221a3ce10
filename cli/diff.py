"""`snapline snapshot diff`: how a snapshot differs from another, or from its source as it is now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Exit, Output

if TYPE_CHECKING:
    from snapline.lineage.diff import BucketDiff, Diff

NOW = "now"


def diff(
    then: Annotated[str, typer.Argument(metavar="A", help="NAME (its newest) or NAME@ID.")],
    now: Annotated[str, typer.Argument(metavar="B", help="NAME@ID, or now for the source as it is.")] = NOW,
    bucket: Annotated[str | None, typer.Option(help="Only the bucket that this date or instant lies in.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Show this many keys of each kind in a bucket.")] = 5,
    sql: Annotated[bool, typer.Option("--sql", help="Write only the DuckDB scripts that select the rows.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say by bucket what was appended, corrected, deleted or came late, with counts, keys and SQL.

    Exit 0 when nothing differs, 1 when something does. Buckets whose files did not change are not read.
    """
    from snapline.cli.wiring import Home
    from snapline.cli.wiring import now as instant
    from snapline.lineage.diff import diff as lineage_diff
    from snapline.lineage.series import Desk

    output, opened = Output(as_json), Home.open(home)
    state = opened.state()
    first, second = state.snapshot(then), None if now == NOW else state.snapshot(now)
    with output.progress("diff") as on_progress:
        desk = Desk(opened.objects(state.algorithm), instant(), on_progress)
        found = lineage_diff(first, second, state, desk, bucket)
    output.answer(document(found, limit), scripts(found) if sql else text(found, limit))
    raise typer.Exit(int(Exit.NO if found.differs else Exit.DONE))


def document(found: Diff, limit: int) -> dict[str, Any]:
    """Return a diff as plain JSON values, with at most `limit` keys of each kind in a bucket."""
    from snapline.lineage.rows.pairing import ROW_KINDS

    return {
        "then": _name(found, "then"),
        "now": _name(found, "now"),
        "commit_then": found.commit_then.id if found.commit_then else None,
        "commit_now": found.commit_now.id if found.commit_now else None,
        "differs": found.differs,
        "columns": list(found.columns),
        **{kind: found.total(kind) for kind in ROW_KINDS},
        "left_behind": sum(bucket.left_behind for bucket in found.buckets),
        "newer": found.newer,
        "buckets": [
            {
                "bucket": bucket.label,
                "rows_then": bucket.rows_then,
                "rows_now": bucket.rows_now,
                **bucket.counts,
                "left_behind": bucket.left_behind,
                "keys": {kind: list(keys[:limit]) for kind, keys in bucket.keys.items() if keys},
                "unnamed": {kind: count for kind, count in bucket.unnamed.items() if count},
                "sql": {"then": bucket.sql_then, "now": bucket.sql_now},
            }
            for bucket in found.buckets
        ],
    }


def _name(found: Diff, side: str) -> str:
    snapshot = found.then if side == "then" else found.now
    return f"{snapshot.series.name}@{snapshot.id[:12]}" if snapshot else NOW


def text(found: Diff, limit: int) -> str:
    """Return a diff for people."""
    from snapline.lineage.rows.pairing import ROW_KINDS

    sides = f"{_name(found, 'then')} and {_name(found, 'now')}"
    if not found.differs:
        return f"{sides}: nothing differs"
    counts = ", ".join(f"{found.total(kind)} {kind}" for kind in ROW_KINDS if found.total(kind))
    unpaired = "their columns differ, so no rows were compared" if found.columns else "no row inside the window differs"
    lines = [f"{sides}: {counts or unpaired}"]
    lines += [f"  {column}" for column in found.columns]
    for bucket in found.buckets:
        lines += _bucket(bucket, limit)
    if found.newer:
        direction = "more" if found.newer > 0 else "fewer"
        lines.append(f"  rows after the window: {abs(found.newer)} {direction} than at the take")
    if any(bucket.sql_then or bucket.sql_now for bucket in found.buckets):
        lines.append("  --sql writes scripts for DuckDB that select these rows")
    return "\n".join(lines)


def _bucket(bucket: BucketDiff, limit: int) -> list[str]:
    counts = [f"{count} {kind}" for kind, count in bucket.counts.items() if count]
    counts += [f"{bucket.left_behind} left behind"] if bucket.left_behind else []
    told = ", ".join(counts) or "other content"
    lines = [f"  {bucket.label}: {told} ({bucket.rows_then} rows then, {bucket.rows_now} now)"]
    for kind, keys in bucket.keys.items():
        if keys and limit:
            more = bucket.counts[kind] - len(keys[:limit])
            shown = ", ".join(str(key) for key in keys[:limit])
            lines.append(f"    {kind}: {shown}" + (f" and {more} more" if more else ""))
        elif bucket.unnamed[kind]:
            lines.append(f"    {kind}: these rows can no longer be read, and only hashes of their keys were kept")
    return lines


def scripts(found: Diff) -> str:
    """Return the DuckDB scripts of every bucket, each under a line that says what it selects."""
    lines = []
    for bucket in found.buckets:
        for script, kinds, when in (
            (bucket.sql_then, ("deleted", "corrected"), "were"),
            (bucket.sql_now, ("appended", "corrected", "late"), "are"),
        ):
            if script:
                counts = ", ".join(f"{bucket.counts[kind]} {kind}" for kind in kinds if bucket.counts[kind])
                lines += [f"-- {bucket.label}: {counts}, as they {when}", script, ""]
    return "\n".join(lines) or "-- nothing that can be read differs"
