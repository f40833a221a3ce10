"""`snapline judge`: hold stored evidence against a contract, with no engine running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.findings import diagnostic_lines, finding_lines, searched_lines, short
from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Exit, Output

if TYPE_CHECKING:
    from snapline.cli.named import NamedEvidence
    from snapline.contracts.contract import KernelContract
    from snapline.contracts.rejudge import Rejudged

EvidenceArgument = Annotated[str, typer.Argument(help="A Parquet file, an object's address, or a model.")]


def judge(
    evidence: EvidenceArgument,
    contract: Annotated[str, typer.Option(help="A contract file or a recorded name.")],
    probes: Annotated[
        str | None, typer.Option(help="The probe file or recorded set it was measured on; default the contract's.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge evidence again, under the contract it was measured for or another one; nothing is recorded.

    Exit 0 when CERTIFIED, 1 when REFUTED, 3 when UNDECIDED. 5 when it was measured on other probes, 6 when at another
    temperature or of engines the contract does not allow.
    """
    from snapline.cli.named import contract_named, evidence_named, home_if_any, probes_named
    from snapline.contracts.rejudge import rejudge
    from snapline.contracts.verdict import Verdict

    output, opened = Output(as_json), home_if_any(home)
    held = contract_named(contract, opened).contract
    found = evidence_named(evidence, opened)
    rejudged = rejudge(held, probes_named(probes or held.probes, opened).table, found.table, found.certificate)
    output.answer(_document(held, found, rejudged), _text(held, found, rejudged))
    if found.certificate is None:
        output.note(
            "no certificate says which engines this is of, so what the contract allows to serve was not checked"
        )
    codes = {Verdict.CERTIFIED: Exit.DONE, Verdict.REFUTED: Exit.NO, Verdict.UNDECIDED: Exit.CANNOT_SAY}
    raise typer.Exit(int(codes[rejudged.verdict]))


def _document(contract: KernelContract, evidence: NamedEvidence, rejudged: Rejudged) -> dict[str, Any]:
    return {
        "verdict": rejudged.verdict.value,
        "contract": {"name": contract.name, "digest": contract.digest},
        "evidence": evidence.address or evidence.name,
        "model": evidence.certificate.model if evidence.certificate else None,
        "confidence": str(contract.confidence),
        "not_measured": list(rejudged.uncovered),
        "noise_floor": dict(rejudged.noise_floor),
        "findings": [finding.model_dump(mode="json") for finding in rejudged.judged.findings],
        "searched": [found.model_dump(mode="json") for found in rejudged.judged.searched],
        "diagnostics": rejudged.judged.diagnostics or {},
    }


def _text(contract: KernelContract, evidence: NamedEvidence, rejudged: Rejudged) -> str:
    lines = [f"{rejudged.verdict}  {evidence.name} under contract {contract.name}"]
    lines += finding_lines(rejudged.judged.findings)
    lines += searched_lines(rejudged.judged.searched)
    lines += diagnostic_lines(rejudged.judged.diagnostics or {})
    lines += [f"  not measured: {lacking}" for lacking in rejudged.uncovered]
    if rejudged.noise_floor:
        figures = ", ".join(f"{name.replace('_', ' ')} {short(f)}" for name, f in rejudged.noise_floor.items())
        lines.append(f"  noise floor, the reference alone against itself in a batch: {figures}")
    lines.append(f"  judged on stored evidence, measured by {evidence.provenance.recipe}; no certificate was issued")
    return "\n".join(lines)
