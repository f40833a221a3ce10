"""Stage certificates: what a stage's monitor says, bound to what it speaks of, as a signed in-toto Statement.

It lets a rollout into the next stage. It says nothing about prompts that were not served, and opens no gate: that is
the kernel certificate's, which it binds.
"""

from __future__ import annotations

import json
from typing import Any, Self

from pydantic import ValidationError, model_validator

from snapline.contracts.certificate import PAYLOAD_TYPE, STATEMENT_TYPE, BoundDocument
from snapline.contracts.rollout.documents import StageName
from snapline.contracts.verdict import Finding, Verdict, combine
from snapline.lineage.cut import Instant
from snapline.lineage.digest import Digest
from snapline.lineage.documents import Received
from snapline.lineage.errors import IntegrityError
from snapline.lineage.signing import SigningKey, TrustedKeys, open_envelope, seal

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


def issue(certificate: StageCertificate, key: SigningKey) -> bytes:
    """Return the certificate as a signed DSSE envelope holding an in-toto Statement."""
    statement: dict[str, Any] = {
        "_type": STATEMENT_TYPE,
        "subject": [_subject(certificate)],
        "predicateType": PREDICATE_TYPE,
        "predicate": certificate.model_dump(mode="json"),
    }
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return seal(payload, PAYLOAD_TYPE, key)


def read(envelope: bytes, trusted: TrustedKeys) -> StageCertificate:
    """Return the certificate inside an envelope a trusted key signed.

    Raises:
        IntegrityError: The envelope, the signature or the statement does not hold.
    """
    payload = open_envelope(envelope, PAYLOAD_TYPE, trusted)
    hint = "Restore the envelope from a copy you trust, or abort the rollout and start it again."
    try:
        statement = json.loads(payload)
        certificate = StageCertificate.model_validate(statement["predicate"])
        said = (statement["_type"], statement["predicateType"], statement["subject"])
    except (ValidationError, ValueError, LookupError, TypeError) as error:
        raise IntegrityError(f"the signed statement is not a stage certificate: {error}", hint=hint) from error
    if said != (STATEMENT_TYPE, PREDICATE_TYPE, [_subject(certificate)]):
        raise IntegrityError("the signed statement is of another kind, or about other weights", hint=hint)
    return certificate


def _subject(certificate: StageCertificate) -> dict[str, Any]:
    kind, _, digest = certificate.weights.partition(":")
    return {"name": certificate.model, "digest": {kind: digest}}
