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
from snapline.lineage.model import ModelVersion, Parent, Use, VersionKey
from snapline.lineage.snapshot import Comparison, Name, Snapshot
from snapline.lineage.view import View


class Initialized(Value):
    """A home was made; its bulk hash is fixed from here on.

    `salt` keys the hashes of rows in membership indices and tombstones, so that those of two homes cannot be joined.
    """

    kind: Literal["initialized"] = "initialized"
    at: Instant
    algorithm: BulkAlgorithm
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


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


class Linked(Value):
    """A version got more edges: snapshots it was evaluated or calibrated on, or versions it came from."""

    kind: Literal["linked"] = "linked"
    at: Instant
    model: VersionKey
    uses: tuple[Use, ...] = ()
    parents: tuple[Parent, ...] = ()


class RuleFinding(Value):
    """How many rows break a rule."""

    rule: str
    rows: int


class LeakageChecked(Value):
    """A version's training and evaluation rows were held against leakage rules.

    Attributes:
        name: Name of the rules document; a later check under the same name takes this one's place.
        rules: Address of the rules document's bytes.
        rows: Address of a Parquet object with the offending rows.
        findings: Every rule that was checked, with how many rows break it.
        notes: What could not be checked, and why; then remarks.
    """

    kind: Literal["leakage-checked"] = "leakage-checked"
    at: Instant
    model: VersionKey
    name: Name
    rules: Digest
    rows: Digest
    findings: tuple[RuleFinding, ...]
    notes: tuple[str, ...] = ()

    @property
    def leaked(self) -> bool:
        """Whether any row breaks a rule."""
        return any(finding.rows for finding in self.findings)


class Erased(Value):
    """Somebody asked for rows to be erased: their keys may be in no new snapshot, and in no served model.

    Attributes:
        erasure: Identity of the request, 64 hex digits.
        series: The series the keys are of.
        tombstones: Address of the tombstone set: keyed hashes of the keys.
        keys: How many keys were asked for.
        absent: How many of them are in no snapshot of those series.
        snapshots: Ids of the snapshots whose rows may include one; never too few.
        plain: Address of the keys in plain text; None unless the request said to keep them.
        reason: Why, in the words of the request.
    """

    kind: Literal["erased"] = "erased"
    at: Instant
    erasure: str
    series: tuple[Name, ...]
    tombstones: Digest
    keys: int
    absent: int
    snapshots: tuple[str, ...]
    plain: Digest | None = None
    reason: str | None = None


class Retired(Value):
    """A version must not be served again."""

    kind: Literal["retired"] = "retired"
    at: Instant
    model: VersionKey
    reason: str | None = None


class ErasureClosed(Value):
    """Every affected version was retrained without the rows or retired; `certificate` is the signed statement."""

    kind: Literal["erasure-closed"] = "erasure-closed"
    at: Instant
    erasure: str
    certificate: Digest


class StageEntered(Value):
    """A rollout entered a stage, or ended: `stage` None says it was aborted.

    Attributes:
        rollout: The name a person gave it; one name is one version at one target.
        stage: Name of the stage, in the contract's words.
        envelope: The attestation that let it in; None for the first stage, a demotion and an abort.
    """

    kind: Literal["stage-entered"] = "stage-entered"
    at: Instant
    rollout: Name
    model: VersionKey
    target: str
    contract: Name
    stage: str | None
    envelope: Digest | None = None
    reason: str | None = None


class Observed(Value):
    """Serving logs of a rollout were read into its monitor.

    Attributes:
        monitor: Address of the monitor's rows after this look; the one before it is in them.
        log: Digest of the log's bytes, so that the same log is never counted twice.
        requests: How many new requests were counted.
    """

    kind: Literal["observed"] = "observed"
    at: Instant
    rollout: Name
    stage: str
    monitor: Digest
    log: Digest
    requests: int


class Escalated(Value):
    """A monitored clause was refuted or undecided, and what the contract declares for that was done.

    Attributes:
        acts: What was done, in the contract's words; a route is written `route_slice`.
        until: Nothing is done again for the same clause and slice before this instant.
        blocks: Whether the version's gate is shut by it, until the rollout is started anew.
        reference_slices: Slices whose traffic goes to the reference from now on.
    """

    kind: Literal["escalated"] = "escalated"
    at: Instant
    rollout: Name
    clause: str
    slice: str
    verdict: str
    acts: tuple[str, ...]
    until: Instant
    blocks: bool = False
    reference_slices: tuple[Name, ...] = ()
    reason: str = ""


LineageEvent = Annotated[
    Initialized
    | SnapshotTaken
    | SourceCompared
    | ViewDefined
    | ModelRegistered
    | ContractBound
    | Recorded
    | Attested
    | Promoted
    | Linked
    | LeakageChecked
    | Erased
    | Retired
    | ErasureClosed
    | StageEntered
    | Observed
    | Escalated,
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
