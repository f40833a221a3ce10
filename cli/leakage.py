"""`snapline leakage`: did a model learn from what it could not have known, or from what it was judged on?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption, ModelArgument
from snapline.cli.output import Exit, Output

if TYPE_CHECKING:
    from snapline.lineage.leakage.audit import Audit
    from snapline.lineage.leakage.rules import Rules
    from snapline.lineage.snapshot import Snapshot

SAMPLE = 3


def leakage(
    model: ModelArgument,
    rules: Annotated[Path, typer.Option("--rules", help="The leakage rules document.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold the rows a model was trained and evaluated on against leakage rules, and record what was found.

    Exit 0 when every rule was checked and no row breaks one, 1 when a row does (the gate of that version is then shut),
    3 when none does but something the rules ask could not be checked.
    """
    from snapline.cli.wiring import Home, now
    from snapline.lineage.leakage.audit import audit, unrecorded_check
    from snapline.lineage.leakage.rules import load_rules
    from snapline.lineage.series import Desk

    output, opened = Output(as_json), Home.open(home)
    state = opened.state()
    version = opened.resolve(model, state)
    document = load_rules(rules)
    with output.progress(f"leakage {version.key}") as on_progress:
        found = audit(version, document, state, Desk(opened.objects(state.algorithm), now(), on_progress))
    if opened.key_path.exists():
        opened.ledger.commit(lambda current: unrecorded_check(found.event, current))
    else:
        output.note("what was found could not be recorded: this home has no signing key")
    output.answer(_document(found, document), "\n".join(_lines(found, document)))
    raise typer.Exit(int(_code(found)))


def _code(found: Audit) -> Exit:
    if found.report.leaked:
        return Exit.NO
    return Exit.CANNOT_SAY if found.report.unchecked else Exit.DONE


def _document(found: Audit, rules: Rules) -> dict[str, Any]:
    report, event = found.report, found.event
    return {
        "model": str(event.model),
        "rules": rules.document.name,
        "leaked": report.leaked,
        "complete": not report.unchecked,
        "train": [_snapshot(snapshot) for snapshot in found.subjects.train],
        "evaluation": [_snapshot(snapshot) for snapshot in found.subjects.evaluation],
        "findings": [
            {"rule": finding.rule, "rows": finding.rows, "sample": _sample(found, finding.rule)}
            for finding in report.findings
        ],
        "unchecked": list(report.unchecked),
        "remarks": [*found.subjects.remarks, *report.remarks],
        "rules_object": event.rules,
        "rows_object": event.rows,
    }


def _snapshot(snapshot: Snapshot) -> dict[str, Any]:
    return {"name": snapshot.series.name, "id": snapshot.id, "rows": snapshot.rows}


def _sample(found: Audit, rule: str) -> list[dict[str, str]]:
    """Return the first rows that break a rule, without what does not apply."""
    import pyarrow.compute as pc

    rows = found.report.rows
    chosen = rows.filter(pc.equal(rows["rule"], rule)).slice(0, SAMPLE).drop_columns(["rule"])
    return [{name: value for name, value in row.items() if value is not None} for row in chosen.to_pylist()]


def _lines(found: Audit, rules: Rules) -> list[str]:
    report = found.report
    answer = "LEAKED" if report.leaked else "CANNOT SAY" if report.unchecked else "CLEAN"
    lines = [f"{answer}  {found.event.model} under leakage rules {rules.document.name}"]
    for verb, snapshots in (("trained", found.subjects.train), ("evaluated", found.subjects.evaluation)):
        lines += [f"  {verb} on {s.series.name}@{s.id[:12]}, {s.rows} rows" for s in snapshots]
    for finding in (finding for finding in report.findings if finding.rows):
        lines.append(f"  ! {finding.rule}: {finding.rows} row{'s' if finding.rows > 1 else ''}")
        sample = _sample(found, finding.rule)
        lines += [f"      {_row(row)}" for row in sample]
        lines += [f"      and {finding.rows - len(sample)} more"] if finding.rows > len(sample) else []
    lines += [f"  ? {said}" for said in report.unchecked]
    lines += [f"  holds: {finding.rule}" for finding in report.findings if not finding.rows]
    lines += [f"  note: {said}" for said in (*found.subjects.remarks, *report.remarks)]
    return [*lines, f"  rows kept in {found.event.rows}"] if report.leaked else lines


def _row(row: dict[str, str]) -> str:
    said = (
        f"{row['snapshot']} {row['key']}: {row['column']} {row.get('value', 'is missing')}, allowed: {row['allowed']}"
    )
    return said + (f", first {row['train_snapshot']} {row['train_key']}" if "train_key" in row else "")
