"""What can happen: the events the ledger orders.

An event is a fact, in the past tense, with the instant it was recorded. Events are stored as the exact bytes they were
written as, so adding a field to a later version never rewrites history.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from snapline.lineage.cut import Instant
from snapline.lineage.digest import BulkAlgorithm, Digest, canonical_json
from snapline.lineage.documents import Value
from snapline.lineage.model import ModelVersion, VersionKey
from snapline.lineage.snapshot import Comparison, Name, Snapshot
from snapline.lineage.view import View


class Initialized(Value):
    """A home was made; its bulk hash is fixed from here on."""

    kind: Literal["initialized"] = "initialized"
    at: Instant
    algorithm: BulkAlgorithm


class SnapshotTaken(Value):
    """A cut was read and digested."""

    kind: Literal["snapshot-taken"] = "snapshot-taken"
    at: Instant
    snapshot: Snapshot


class SourceCompared(Value):
    """A snapshot was held against its source's rows.

    `files` is the address of the hashed files that were read, so that a gate can tell whether this comparison still
    speaks of the bytes that are there.
    """

    kind: Literal["source-compared"] = "source-compared"
    at: Instant
    snapshot: str
    files: Digest
    comparison: Comparison


class ViewDefined(Value):
    """A view was defined, or defined anew."""

    kind: Literal["view-defined"] = "view-defined"
    at: Instant
    view: View


class ModelRegistered(Value):
    """A model version was recorded."""

    kind: Literal["model-registered"] = "model-registered"
    at: Instant
    model: ModelVersion


class Recorded(Value):
    """A named document or table was recorded: a contract or a probe set.

    Attributes:
        what: `contract` or `probes`.
        digest: Identity of the content; a comment edit keeps it.
        object: Address of the bytes.
        path: The file it was read from, absolute, so that a later edit is noticed; None when it came from a query.
        count: Rows of a probe set; None for a document.
    """

    kind: Literal["recorded"] = "recorded"
    at: Instant
    what: Literal["contract", "probes"]
    name: Name
    digest: Digest
    object: Digest
    path: str | None = None
    count: int | None = None


class ContractBound(Value):
    """A version's gate requires this contract from now on."""

    kind: Literal["contract-bound"] = "contract-bound"
    at: Instant
    model: VersionKey
    contract: Name


class Attested(Value):
    """Somebody signed a statement about a model version. Lineage keeps it without reading it.

    Attributes:
        predicate_type: The statement's own name for its format.
        envelope: Address of the signed envelope's exact bytes.
        retained: Addresses of the objects the statement binds, so that verifying can re-read each.
        seconds: What issuing it cost, for the planner; None when it cost nothing to speak of.
    """

    kind: Literal["attested"] = "attested"
    at: Instant
    model: VersionKey
    predicate_type: str
    envelope: Digest
    retained: tuple[Digest, ...] = ()
    seconds: int | None = None


class Promoted(Value):
    """An alias was moved onto a version, or back by a rollback, while its gate was open.

    Attributes:
        target: The deployment target whose gate was open.
        envelope: The attestation the decision rested on.
    """

    kind: Literal["promoted"] = "promoted"
    at: Instant
    model: VersionKey
    alias: Name
    target: str
    envelope: Digest
    rollback: bool = False


LineageEvent = Annotated[
    Initialized
    | SnapshotTaken
    | SourceCompared
    | ViewDefined
    | ModelRegistered
    | ContractBound
    | Recorded
    | Attested
    | Promoted,
    Field(discriminator="kind"),
]

_ADAPTER: TypeAdapter[LineageEvent] = TypeAdapter(LineageEvent)


def encode(event: LineageEvent) -> bytes:
    """Return the canonical bytes of an event."""
    return canonical_json(event.model_dump(mode="json"))


def decode(data: bytes) -> LineageEvent:
    """Return the event that `encode` wrote.

    Raises:
        pydantic.ValidationError: The bytes are no event this version knows.
    """
    return _ADAPTER.validate_json(data)
