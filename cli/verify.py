"""`snapline verify`: is everything a model binds still what it was?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Exit, Output

if TYPE_CHECKING:
    from snapline.contracts.certificate import Certificate
    from snapline.lineage.invalidation import Cause
    from snapline.lineage.model import ModelVersion
    from snapline.lineage.state import State


def verify(
    model: Annotated[str | None, typer.Argument(help="name, name/3, name@champion; default the ledger alone.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Re-read every byte: sources, weights, records, certificates and the whole chain.

    Exit 0 when everything bound matches, 1 when source rows differ, 4 when something is gone or keeps changing, 5 when
    weights, evidence, envelope or chain differ. What it read of a source is recorded, so the gate need not read it
    again.
    """
    from snapline.cli.wiring import Home
    from snapline.contracts.gate import readable
    from snapline.contracts.inspection import Inspector
    from snapline.lineage.observe import Depth

    output, opened = Output(as_json), Home.open(home)
    entries = opened.ledger.verify()
    facts = [f"chain: {entries} entries hold together, each signed by a trusted key"]
    findings: list[Cause] = []
    if model is not None:
        state = opened.state()
        version = opened.resolve(model, state)
        inspector = Inspector(state, opened.lens(state), opened.trusted, Depth(rows=True, full=True))
        with output.progress(f"verify {version.key}") as on_progress:
            on_progress("re-reading weights, sources and certificates", 0, 0)
            observation = inspector.observe(version)
            known, damage = readable(version, state, inspector.read)
        findings = [cause for cause in (*observation.causes, *damage) if _code(cause) is not None]
        facts += _facts(version, state, [certificate for _, certificate in known])
        facts += [f"not to be served: {cause.message}" for cause in observation.causes if _forbids(cause)]
        if opened.key_path.exists():
            opened.ledger.commit(lambda _state: observation.compared)
        elif observation.compared:
            output.note("what was read could not be recorded: this home has no signing key")
    _answer(output, str(version.key) if model is not None else None, facts, findings)
    codes = {_code(found) for found in findings}
    raise typer.Exit(int(next((code for code in _STRONGEST if code in codes), Exit.DONE)))


def _forbids(cause: Cause) -> bool:
    """Return whether a cause is something recorded that keeps a version from being served, whatever its bytes."""
    from snapline.lineage.invalidation import Change

    return cause.change in {Change.ERASURE_PENDING, Change.ERASED, Change.LEAKED, Change.RETIRED}


_STRONGEST = [Exit.DO_NOT_TRUST, Exit.NOT_THERE, Exit.NO]


def _code(cause: Cause) -> Exit | None:
    """Return the exit code of a finding; None for what is not about bound bytes or rows."""
    from snapline.lineage.invalidation import Change

    meanings = {
        Change.RESTATED: Exit.NO,
        Change.EVALUATION_RESTATED: Exit.NO,
        Change.MEMBERS_DELETED: Exit.NO,
        Change.SOURCE_UNREAD: Exit.NOT_THERE,
        Change.COMMIT_GONE: Exit.NO,
        Change.SOURCE_GONE: Exit.NOT_THERE,
        Change.WEIGHTS_GONE: Exit.NOT_THERE,
        Change.WEIGHTS_CHANGED: Exit.DO_NOT_TRUST,
        Change.RECORD_DAMAGED: Exit.DO_NOT_TRUST,
    }
    return meanings.get(cause.change)


def _facts(version: ModelVersion, state: State, certificates: list[Certificate]) -> list[str]:
    facts = [f"weights: {version.weights.path}, {version.weights.size_bytes} bytes, {version.weights.digest}"]
    for identifier in dict.fromkeys(version.touched):
        snapshot = state.snapshots[identifier]
        facts.append(
            f"snapshot {snapshot.series.name}@{identifier[:12]}: {snapshot.rows} rows of {snapshot.series.source}"
        )
    facts += [
        f"certificate for {c.target}: {c.verdict} under {c.contract.name!r}, issued {c.issued_at.isoformat()}"
        for c in certificates
    ]
    return facts + ([] if certificates else ["certificate: none"])


def _answer(output: Output, model: str | None, facts: list[str], findings: list[Cause]) -> None:
    document: dict[str, Any] = {
        "ok": not findings,
        "model": model,
        "facts": facts,
        "findings": [
            {
                "kind": found.change.value,
                "subject": found.subject,
                "message": found.message,
                "details": list(found.details),
            }
            for found in findings
        ],
    }
    lines = ["everything bound matches" if not findings else "something bound differs"]
    for found in findings:
        lines += [f"  ! {found.subject}: {found.message}", *(f"      {detail}" for detail in found.details[:20])]
        lines += [f"      and {len(found.details) - 20} more"] if len(found.details) > 20 else []
    output.answer(document, "\n".join([*lines, *(f"  {fact}" for fact in facts)]))
