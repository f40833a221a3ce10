"""Certificates: a verdict bound to everything it depends on, as a signed in-toto Statement.

The envelope's exact bytes are what is kept and verified. A certificate we receive may carry fields we do not know; they
are ignored, and ignoring one never turns a no into a yes.
"""

from __future__ import annotations

import json
from typing import Literal, Self

from pydantic import Field, model_validator

from snapline.contracts.targets import TargetIdentity
from snapline.contracts.verdict import Finding, Searched, Verdict, combine
from snapline.lineage.cut import Instant
from snapline.lineage.digest import Digest
from snapline.lineage.documents import Received
from snapline.lineage.statements import Kind

PREDICATE_TYPE = "urn:snapline:kernel-certificate:v1"
EVIDENCE_CLASSES = ("not-run", "cpu-emulated", "cpu", "gpu-emulated", "gpu-native", "multi-rank")


class BoundDocument(Received):
    """A named document or table, its identity and the object that holds it."""

    name: str
    digest: Digest
    object: Digest


class BoundSnapshot(Received):
    """A snapshot by its id and content digest."""

    id: str
    digest: Digest


class BoundEngine(Received):
    """What one side really ran, as the engine reported it after start."""

    engine: str
    version: str
    dtype: str
    device: str
    device_name: str
    vocabulary: int
    evidence_class: Literal["cpu", "cpu-emulated", "gpu-emulated", "gpu-native", "multi-rank"]
    settings: dict[str, str]
    libraries: dict[str, str]


class Certificate(Received):
    """The predicate: what was measured, on what, and what it says.

    Attributes:
        model: The version it speaks of, as `name/3`.
        wanted_probes: Name of the probe set the contract asks for; measured on another, a certificate informs but opens
            no gate.
        target: The name the target went by; `target_identity` is what binds.
        evidence: Address of the per-position evidence object.
        evidence_class: The weaker of the two sides' classes; never promoted to a stronger one.
        noise_floor: The reference against itself, as decimal strings by figure name.
        searched: The worst slice found for each clause that was searched.
        diagnostics: Unbounded figures by path and name; nothing is promised about them.
        verdict: Never stronger than what the findings combine to; without a finding, never CERTIFIED.
        issued_at: When the judging was done; the evidence may be older and says so in its own metadata.
    """

    model: str
    weights: Digest
    snapshots: tuple[BoundSnapshot, ...]
    view: Digest | None
    contract: BoundDocument
    probes: BoundDocument
    wanted_probes: str
    prompts: int
    confidence: str
    target: str
    target_identity: TargetIdentity
    reference: BoundEngine
    serving: BoundEngine
    evidence: Digest
    evidence_class: str
    noise_floor: dict[str, str]
    verdict: Verdict
    findings: tuple[Finding, ...]
    searched: tuple[Searched, ...] = ()
    diagnostics: dict[str, dict[str, str]] = Field(default_factory=dict)
    issued_at: Instant

    @model_validator(mode="after")
    def _claims_no_more_than_was_found(self) -> Self:
        found = combine(finding.verdict for finding in self.findings)
        if combine((self.verdict, found)) is not self.verdict:
            raise ValueError(f"the verdict {self.verdict} is stronger than its findings, which say {found}")
        return self

    @property
    def retained(self) -> tuple[str, ...]:
        """Addresses of every object the certificate binds."""
        return (self.contract.object, self.probes.object, self.evidence)


def weaker(*evidence_classes: str) -> str:
    """Return the weakest of some evidence classes: what is emulated or runs on a CPU stays so beside a native side."""
    return min(evidence_classes, key=EVIDENCE_CLASSES.index)


KERNEL = Kind(
    predicate_type=PREDICATE_TYPE,
    model=Certificate,
    noun="a kernel certificate",
    subject=lambda certificate: (certificate.model, certificate.weights),
    remedy="Restore the envelope from a copy you trust, or certify again.",
)
"""Kernel certificates as signed statements about a model's weights."""
issue, read = KERNEL.issue, KERNEL.read


def signer_of(envelope: bytes) -> str:
    """Return the id of the key that signed an envelope; whether it is trusted is `read`'s to say."""
    return str(json.loads(envelope)["signatures"][0]["keyid"])
