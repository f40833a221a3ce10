"""Contracts as people keep them: a file somebody edits, and the copy the ledger recorded."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from snapline.lineage.digest import bytes_hex, document_digest, hex_part
from snapline.lineage.documents import parse
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.events import LineageEvent, Recorded
from snapline.lineage.ledger import Ledger
from snapline.lineage.objects import ObjectStore
from snapline.lineage.state import State

if TYPE_CHECKING:
    import pyarrow as pa

    from snapline.contracts.contract import KernelContract


def contract_record(text: str, state: State, objects: ObjectStore, now: datetime) -> Recorded:
    """Return the record of a contract, named by its file or by the name it was recorded under.

    A recorded contract whose file is still there is read from the file, so that an edit takes effect.

    Raises:
        NotFoundError: It is neither.
        DefinitionError: The document is malformed, no longer the contract of that name, or has another's name.
    """
    known = state.records.get(("contract", text))
    path = Path(known.path) if known and known.path else Path(text)
    if not path.is_file():
        if known is not None:
            return known
        names = ", ".join(sorted(name for what, name in state.records if what == "contract")) or "none yet"
        raise NotFoundError(f"no contract {text!r}: no such file, and recorded are: {names}", hint="Check the path.")
    data = path.read_bytes()
    contract = parse_contract(data, str(path))
    if known is not None and contract.name != known.name:
        raise DefinitionError(
            f"{path}: expected contract {known.name!r}, which was recorded from it, found {contract.name!r}",
            hint=f"Name the file itself to use contract {contract.name!r}.",
        )
    namesake = state.records.get(("contract", contract.name))
    if namesake is not None and _kept_elsewhere(namesake, path):
        if namesake.digest == contract.digest:
            return namesake
        raise DefinitionError(
            f"{path}: another contract is named {contract.name!r}: {namesake.path}",
            hint="Models are held to a contract by its name; give this one its own.",
        )
    return Recorded(
        at=now,
        what="contract",
        name=contract.name,
        digest=contract.digest,
        object=objects.put(data),
        path=str(path.absolute()),
    )


def _kept_elsewhere(record: Recorded, path: Path) -> bool:
    return record.path is not None and record.path != str(path.absolute()) and Path(record.path).is_file()


def record_probes(name: str, table: pa.Table, ledger: Ledger, objects: ObjectStore, now: datetime) -> Recorded:
    """Record a checked probe table and return its record; the same content twice records nothing new.

    Raises:
        DefinitionError: The name cannot be one.
    """
    from snapline.contracts.probe import probes_digest, probes_to_parquet

    digest = probes_digest(table, objects.algorithm)
    try:
        record = Recorded(
            at=now,
            what="probes",
            name=name,
            digest=digest,
            object=objects.put(probes_to_parquet(table)),
            count=table.num_rows,
        )
    except ValidationError as error:
        raise DefinitionError(f"probe set name {name!r}: {error.errors()[0]['msg']}") from error

    def decide(state: State) -> list[LineageEvent]:
        known = state.records.get(("probes", name))
        return [] if known is not None and known.digest == digest else [record]

    ledger.commit(decide)
    return record


def read_contract(record: Recorded, objects: ObjectStore) -> KernelContract:
    """Return a recorded contract from its object."""
    return parse_contract(objects.read(record.object), record.path or record.name)


def parse_contract(data: bytes, name: str) -> KernelContract:
    """Return the contract some bytes spell.

    Raises:
        DefinitionError: They are not text, or not a contract.
    """
    from snapline.contracts.contract import KernelContract  # a gate whose contracts did not move never needs it

    try:
        return parse(data.decode(), KernelContract, name=name)
    except UnicodeDecodeError as error:
        raise DefinitionError(f"{name}: cannot be read as text: {error}") from error


def with_files_as_they_are(state: State, objects: ObjectStore) -> State:
    """Return the state with each contract's digest replaced by that of its file as it is now."""
    records = state.records
    for key, record in state.records.items():
        if (digest := digest_now(record, objects)) != record.digest:
            records = records.set(key, record.model_copy(update={"digest": digest}))
    return replace(state, records=records)


def digest_now(record: Recorded, objects: ObjectStore) -> str:
    """Return the digest of a recorded contract's file as it is now; for a probe set, the recorded one.

    A file that is gone changes nothing; one that no longer parses is a change like any other.
    """
    if record.what != "contract" or record.path is None or not Path(record.path).is_file():
        return record.digest
    data = Path(record.path).read_bytes()
    if bytes_hex(data, objects.algorithm) == hex_part(record.object):
        return record.digest
    try:
        return parse_contract(data, record.path).digest
    except DefinitionError as error:
        return document_digest("contract", {"unreadable": error.message})
