"""Judge stored evidence again, under this or another contract, with no engine running.

Evidence is judged only as what it is: on the probes it was measured on, at its temperature, for the engines it came
from. What a contract asks for and the evidence lacks leaves its cells UNDECIDED.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snapline.contracts.contract import KernelContract
from snapline.contracts.errors import IncomparableError
from snapline.contracts.figures import decimal_text
from snapline.contracts.judge import Judged, judge, noise_floor
from snapline.contracts.probe import probes_digest
from snapline.contracts.procedure import procedure_of
from snapline.contracts.provenance import RECIPE, Provenance, provenance_of
from snapline.contracts.slices import with_lengths
from snapline.contracts.verdict import Verdict, combine
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import IntegrityError

if TYPE_CHECKING:
    import pyarrow as pa

    from snapline.contracts.certificate import Certificate


@dataclass(frozen=True, slots=True)
class Rejudged:
    """What stored evidence says of a contract.

    Attributes:
        uncovered: What the contract asks to have measured and the evidence lacks, one phrase each.
        noise_floor: As `judge.noise_floor` gives it.
    """

    judged: Judged
    uncovered: tuple[str, ...]
    noise_floor: Mapping[str, str]

    @property
    def verdict(self) -> Verdict:
        """The verdict over all findings."""
        return combine(finding.verdict for finding in self.judged.findings)


def rejudge(
    contract: KernelContract, probes: pa.Table, evidence: pa.Table, certificate: Certificate | None = None
) -> Rejudged:
    """Return what evidence says of a contract.

    Args:
        probes: The checked probe table the contract is to be judged on.
        certificate: One that rests on the evidence and says what ran; without it, what ran is not held against what
            the contract allows.

    Raises:
        IntegrityError: The table is not evidence, or was measured on other probes.
        IncomparableError: It was measured at another temperature, by another procedure, on shorter answers or on
            engines the contract does not allow.
        DefinitionError: A slice's predicate cannot be evaluated on the probes.
    """
    provenance = provenance_of(evidence)
    _require_same_probes(probes, provenance)
    _require_comparable(contract, provenance)
    if certificate is not None:
        _require_allowed(contract, certificate)
    uncovered = _uncovered(contract, probes.num_rows, provenance)
    judged = judge(contract, with_lengths(probes, provenance), evidence)
    return Rejudged(judged, uncovered, noise_floor(evidence))


def _require_same_probes(probes: pa.Table, provenance: Provenance) -> None:
    found = probes_digest(probes, BulkAlgorithm(provenance.probes.partition("-")[0]))
    if found != provenance.probes:
        raise IntegrityError(
            f"the evidence was measured on the probes {provenance.probes}, and these are {found}",
            hint="Name the probes it was measured on with --probes, or certify again on these.",
        )


def _require_comparable(contract: KernelContract, provenance: Provenance) -> None:
    wanted = decimal_text(contract.temperature)
    if provenance.temperature != wanted:
        raise IncomparableError(
            f"contract {contract.name!r} speaks of temperature {wanted}, the evidence of {provenance.temperature}",
            hint="Certify under this contract: logits are divided by the temperature when they are measured.",
        )
    if provenance.recipe != RECIPE:
        raise IncomparableError(
            f"the evidence was measured by {provenance.recipe}, and this version judges {RECIPE}",
            hint="Certify again, or judge it with the version that measured it.",
        )
    procedure = procedure_of(contract, len(provenance.lengths))
    drawn = any(key.split(" ")[1] == "decode-sampled" for key in provenance.comparisons)
    if drawn and provenance.horizon < procedure.horizon and contract.of_drawn_answers:
        raise IncomparableError(
            f"contract {contract.name!r} speaks of answers of up to {procedure.horizon} tokens, and the evidence holds "
            f"ones that were cut at {provenance.horizon}",
            hint="Certify under this contract, or lower its horizon.",
        )
    programs = {_program(key) for key in provenance.comparisons}
    for comparison in procedure.comparisons:
        if comparison.key not in provenance.comparisons and _program(comparison.key) in programs:
            there = ", ".join(key for key in provenance.comparisons if _program(key) == _program(comparison.key))
            raise IncomparableError(
                f"contract {contract.name!r} compares {comparison.key}, and the evidence {there}",
                hint="Certify under this contract.",
            )


def _require_allowed(contract: KernelContract, certificate: Certificate) -> None:
    from snapline.contracts.targets import objections

    found = list(objections(contract, certificate.target_identity))
    for field in ("engine", "dtype"):
        asked, ran = getattr(contract.reference, field), getattr(certificate.reference, field)
        if asked != ran:
            found.append(f"reference {field}: the contract asks for {asked}, the evidence has {ran}")
    if found:
        raise IncomparableError(
            f"the evidence is of engines outside contract {contract.name!r}: {'; '.join(found)}",
            hint="Name the contract it was measured under, or certify a target this one allows.",
        )


def _uncovered(contract: KernelContract, prompts: int, provenance: Provenance) -> tuple[str, ...]:
    procedure = procedure_of(contract, prompts)
    lacking = []
    for comparison in procedure.comparisons:
        there = provenance.comparisons.get(comparison.key, 0)
        if there < comparison.prompts:
            lacking.append(f"{comparison.key}: {there} prompts of the {comparison.prompts} it asks for")
    for batching, runs in procedure.timings:
        there = provenance.timings.get(batching.value, 0)
        if there < runs:
            lacking.append(f"timing {batching.value}: {there} runs of the {runs} it asks for")
    return tuple(lacking)


def _program(key: str) -> tuple[str, str]:
    pair, path, *_ = key.split(" ")
    return pair, path
