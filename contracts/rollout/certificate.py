"""Stage certificates: what a stage's monitor says, bound to what it speaks of, as a signed in-toto Statement.

It lets a rollout into the next stage. It says nothing about prompts that were not served, and opens no gate: that is
the kernel certificate's, which it binds.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from snapline.contracts.certificate import BoundDocument
from snapline.contracts.rollout.documents import StageName
from snapline.contracts.verdict import Finding, Verdict, combine
from snapline.lineage.cut import Instant
from snapline.lineage.digest import Digest
from snapline.lineage.documents import Received
from snapline.lineage.statements import Kind

PREDICATE_TYPE = "urn:snapline:stage-certificate:v1"


class StageCertificate(Received):
    """The predicate.

    Attributes:
        stage: The stage it was earned in.
        model: The version it speaks of, as `name/3`.
        target_digest: Identity of what the gate was open for.
        kernel: Address of the kernel certificate that the open gate rested on.
        monitor: Address of the monitor's rows, from which the findings can be made again.
        requests: How many requests the monitor holds.
        confidence: Family-wise, over clauses, slices and looks.
        verdict: Never stronger than what the findings combine to.
    """

    rollout: str
    stage: StageName
    model: str
    weights: Digest
    contract: BoundDocument
    target: str
    target_digest: Digest
    kernel: Digest
    monitor: Digest
    requests: int
    confidence: str
    verdict: Verdict
    findings: tuple[Finding, ...]
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
        return (self.contract.object, self.kernel, self.monitor)


STAGE = Kind(
    predicate_type=PREDICATE_TYPE,
    model=StageCertificate,
    noun="a stage certificate",
    subject=lambda certificate: (certificate.model, certificate.weights),
    remedy="Restore the envelope from a copy you trust, or abort the rollout and start it again.",
)
"""Stage certificates as signed statements about a model's weights."""
issue, read = STAGE.issue, STAGE.read
