"""Certificates of erasure: what was checked before a request was closed, as a signed in-toto Statement.

It says which snapshots may have had the rows, how each affected version was settled, and which commits of the sources
still hold the rows. It does not say that a version which was settled forgot them: that one is never served again. As
with every certificate we receive, fields we do not know are ignored.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import ValidationError

from snapline.lineage.cut import Instant
from snapline.lineage.digest import Digest
from snapline.lineage.documents import Received
from snapline.lineage.errors import IntegrityError
from snapline.lineage.signing import SigningKey, TrustedKeys, open_envelope, seal

PREDICATE_TYPE = "urn:snapline:erasure-certificate:v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_HINT = "Restore the envelope from a copy you trust."


class HeldCommit(Received):
    """A commit of a source that still holds an erased row; `newest` when readers of the table see it today."""

    id: str
    at: Instant | None
    newest: bool


class CheckedSource(Received):
    """The source of a series, as it was looked at.

    Attributes:
        commits: How many commits it lists.
        held: Those that still hold an erased row: retained until the source expires them.
        problem: Why it could not be read; None when it was.
    """

    series: str
    source: str
    commits: int
    held: tuple[HeldCommit, ...] = ()
    problem: str | None = None


class CheckedSnapshot(Received):
    """A snapshot whose membership was searched."""

    id: str
    series: str
    digest: Digest
    rows: int
    may_hold: bool


class SettledModel(Received):
    """An affected version, and how it was settled.

    Attributes:
        path: The edges that made it so.
        by: The version made without the rows; None when it was retired.
        aliases: Aliases that still stood on it.
    """

    model: str
    weights: Digest
    path: tuple[str, ...]
    settled: Literal["retrained", "retired"]
    by: str | None
    aliases: tuple[str, ...] = ()


class ErasureCertificate(Received):
    """The predicate.

    Attributes:
        tombstones: Address of the set of keyed hashes the search was for.
        absent: How many of the keys no snapshot had.
        recipe: How keys were hashed.
        over_report: Upper bound of the probability that any snapshot is named by mistake, as a decimal; none is left
            out by mistake.
    """

    erasure: str
    tombstones: Digest
    keys: int
    absent: int
    series: tuple[str, ...]
    snapshots: tuple[CheckedSnapshot, ...]
    models: tuple[SettledModel, ...]
    sources: tuple[CheckedSource, ...]
    recipe: str
    over_report: str
    requested_at: Instant
    closed_at: Instant


def issue(certificate: ErasureCertificate, key: SigningKey) -> bytes:
    """Return the certificate as a signed DSSE envelope holding an in-toto Statement."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [_subject(certificate)],
        "predicateType": PREDICATE_TYPE,
        "predicate": certificate.model_dump(mode="json"),
    }
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return seal(payload, PAYLOAD_TYPE, key)


def read(envelope: bytes, trusted: TrustedKeys) -> ErasureCertificate:
    """Return the certificate inside an envelope a trusted key signed.

    Raises:
        IntegrityError: The envelope, the signature or the statement does not hold.
    """
    payload = open_envelope(envelope, PAYLOAD_TYPE, trusted)
    try:
        statement = json.loads(payload)
        certificate = ErasureCertificate.model_validate(statement["predicate"])
        types, subject = (statement["_type"], statement["predicateType"]), statement["subject"]
    except (ValidationError, ValueError, LookupError, TypeError) as error:
        raise IntegrityError(f"the signed statement is not a certificate of erasure: {error}", hint=_HINT) from error
    if types != (STATEMENT_TYPE, PREDICATE_TYPE):
        expected = f"{STATEMENT_TYPE} of {PREDICATE_TYPE}"
        raise IntegrityError(f"expected a signed {expected}, found {types[0]} of {types[1]}", hint=_HINT)
    if subject != [_subject(certificate)]:
        raise IntegrityError("the signed statement's subject is not the tombstones its predicate binds", hint=_HINT)
    return certificate


def _subject(certificate: ErasureCertificate) -> dict[str, Any]:
    kind, _, digest = certificate.tombstones.partition(":")
    return {"name": f"erasure/{certificate.erasure}", "digest": {kind: digest}}
