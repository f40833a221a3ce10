"""Certificates of erasure: what was checked before a request was closed, as a signed in-toto Statement.

It says which snapshots may have had the rows, how each affected version was settled, and which commits of the sources
still hold the rows. It does not say that a version which was settled forgot them: that one is never served again. As
with every certificate we receive, fields we do not know are ignored.
"""

from __future__ import annotations

from typing import Literal

from snapline.lineage.cut import Instant
from snapline.lineage.digest import Digest
from snapline.lineage.documents import Received
from snapline.lineage.statements import Kind

PREDICATE_TYPE = "urn:snapline:erasure-certificate:v1"


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


ERASURE = Kind(
    predicate_type=PREDICATE_TYPE,
    model=ErasureCertificate,
    noun="a certificate of erasure",
    subject=lambda certificate: (f"erasure/{certificate.erasure}", certificate.tombstones),
    remedy="Restore the envelope from a copy you trust.",
)
"""Certificates of erasure as signed statements about a set of tombstones."""
issue, read = ERASURE.issue, ERASURE.read
