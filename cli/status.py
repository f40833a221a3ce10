"""`snapline status`: every model in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption, TargetsOption
from snapline.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from snapline.contracts.gate import TargetNow
    from snapline.contracts.inspection import Inspector
    from snapline.lineage.model import ModelVersion

COLUMNS = ("model", "cut", "state", "age", "lag", "delta", "target", "certificate", "gate", "aliases")


def status(
    targets: TargetsOption = None,
    html: Annotated[Path | None, typer.Option("--html", help="Draw it into this file too, as one web page.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show each model version: its cut, how stale it is, its certificate and its gate.

    Age is since the end of the cut, lag the commits its source made since, delta the rows that differ by kind, which
    is not known (?) of a source that moved and was not read since: snapline verify does.
    """
    from snapline.cli.status_page import draw
    from snapline.cli.wiring import Home
    from snapline.contracts.inspection import Inspector, target_now
    from snapline.lineage.errors import NotFoundError
    from snapline.lineage.observe import Depth

    opened, output = Home.open(home), Output(as_json)
    state = opened.state()
    try:
        known = [target_now(name, target) for name, target in opened.targets(targets).items()]
    except NotFoundError as error:
        output.note(f"no targets: {error.message}")
        known = []
    inspector = Inspector(state, opened.lens(state), opened.trusted, Depth())
    rows = [
        row for versions in state.models.values() for version in versions for row in _rows(version, known, inspector)
    ]
    rows.sort(key=lambda row: (row["model"], row["version"], row["target"] or ""))
    if html is not None:
        head = (*COLUMNS, "reasons")
        draw(html, opened, output, head, [(*_cells(row), "; ".join(row["reasons"])) for row in rows])
    output.answer({"models": rows}, lambda console: _table(console, rows))


def _rows(model: ModelVersion, targets: list[TargetNow], inspector: Inspector) -> list[dict[str, Any]]:
    from snapline.lineage.invalidation import worst_state
    from snapline.lineage.observe import policy_of
    from snapline.lineage.staleness import document, staleness, tree

    state, now = inspector.state, inspector.lens.now
    observation = inspector.observe(model)
    cuts = [state.snapshots[identifier] for identifier in model.snapshots]
    row: dict[str, Any] = {
        "model": model.key.name,
        "version": model.key.version,
        "cut": ", ".join(f"{s.series.name} [{s.cut.since.date()}, {s.cut.until.date()})" for s in cuts) or None,
        "state": worst_state(observation.causes, policy_of(model, state)).value,
        **document(staleness(observation.seen, now)),
        "causes": tree(str(model.key), observation.seen, observation.causes, now),
        "aliases": sorted(
            a
            for (n, a), stack in state.holders.items()
            if n == model.key.name and stack and stack[-1].model == model.key
        ),
        "target": None,
        "certificate": None,
        "gate": "shut",
        "reasons": [cause.message for cause in observation.causes],
    }
    if not targets or not model.snapshots:
        return [row]
    found = []
    for target in targets:
        decision, examined = inspector.inspect(model, target, observation)
        verdicts = sorted({s.found[1].verdict.value for s in examined.standings if s.found})
        found.append(
            row
            | {
                "target": target.name,
                "certificate": ", ".join(verdicts) or None,
                "gate": "open" if decision.open else "shut",
                "reasons": list(decision.reasons),
            }
        )
    return found


def _table(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(*COLUMNS, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return what people read of a row, in the order of `COLUMNS`."""
    return (
        f"{row['model']}/{row['version']}",
        row["cut"] or "no cut",
        row["state"],
        _age(row["age_seconds"]),
        "-" if row["lag"] is None else str(row["lag"]),
        _delta(row),
        row["target"] or "-",
        row["certificate"] or "none",
        row["gate"],
        ", ".join(row["aliases"]) or "-",
    )


def _age(seconds: int | None) -> str:
    if seconds is None:
        return "-"
    days, rest = divmod(seconds, 86_400)
    return f"{days}d" if days else f"{rest // 3600}h{rest % 3600 // 60:02d}m"


def _delta(row: dict[str, Any]) -> str:
    if row["delta"] is None:
        return "?" if row["cut"] else "-"
    return ", ".join(f"{count} {kind}" for kind, count in row["delta"].items() if count) or "0"
