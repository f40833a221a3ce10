"""What a person named: a contract, a probe set or evidence, as a file, in a home, or with no home at all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from snapline.cli.wiring import Home
    from snapline.contracts.certificate import Certificate
    from snapline.contracts.contract import KernelContract
    from snapline.contracts.provenance import Provenance
    from snapline.lineage.events import Attested
    from snapline.lineage.state import State

_ADDRESS = re.compile(r"^(blake3|sha256)-object-v1:[0-9a-f]{64}$")


@dataclass(frozen=True, slots=True)
class NamedContract:
    """A contract and the text it was read from; `source` is what messages call that."""

    contract: KernelContract
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class NamedProbes:
    """A probe set; `digest` is None for a file, whose digest depends on the hash it is held against."""

    name: str
    table: pa.Table
    digest: str | None


@dataclass(frozen=True, slots=True)
class NamedEvidence:
    """Evidence, verified if it came out of a home.

    Attributes:
        address: Its address as an object; None for a file outside any home.
        certificate: The newest certificate that rests on it; None when there is none, or no home.
    """

    name: str
    data: bytes
    table: pa.Table
    provenance: Provenance
    address: str | None
    certificate: Certificate | None


def home_if_any(option: Path | None) -> Home | None:
    """Return the home there is; None without one, if none was asked for.

    Raises:
        NotFoundError: The home that was asked for is not there.
    """
    from snapline.cli.wiring import Home
    from snapline.lineage.errors import NotFoundError

    try:
        return Home.open(option)
    except NotFoundError:
        if option is not None:
            raise
        return None


def contract_named(text: str, home: Home | None) -> NamedContract:
    """Return a contract by its file, or by the name a home recorded it under; nothing is recorded.

    A recorded contract whose file is still there is read from the file, so that an edit takes effect.

    Raises:
        NotFoundError: It is neither.
        DefinitionError: The document is malformed.
    """
    from snapline.contracts.records import parse_contract

    data, source = contract_bytes(text, home)
    contract = parse_contract(data, source)
    return NamedContract(contract, data.decode(), source)


def contract_bytes(text: str, home: Home | None) -> tuple[bytes, str]:
    """Return the bytes of a contract by its file or recorded name, and what to call them.

    Raises:
        NotFoundError: It is neither.
    """
    from snapline.lineage.errors import NotFoundError

    state = home.state() if home else None
    record = state.records.get(("contract", text)) if state else None
    path = Path(record.path) if record and record.path else Path(text)
    if path.is_file():
        return path.read_bytes(), str(path)
    if home is not None and state is not None and record is not None:
        return home.objects(state.algorithm).read(record.object), record.name
    names = ", ".join(sorted(name for what, name in state.records if what == "contract")) if state else ""
    raise NotFoundError(f"no contract {text!r}: no such file, and recorded are: {names or 'none'}", hint="Check it.")


def probes_named(text: str, home: Home | None) -> NamedProbes:
    """Return a probe set by its file, or by the name a home recorded it under.

    Raises:
        NotFoundError: It is neither.
        DefinitionError: The file is not a probe table.
    """
    from snapline.contracts.probe import read_probes
    from snapline.lineage.errors import NotFoundError

    if Path(text).is_file() or Path(text).suffix in {".jsonl", ".parquet"}:
        return NamedProbes(text, read_probes(Path(text)), None)
    found = recorded_probes(text, home)
    if found is None:
        names = ", ".join(sorted(n for what, n in home.state().records if what == "probes")) if home else ""
        raise NotFoundError(
            f"no probe set {text!r}: no such file, and recorded are: {names or 'none'}",
            hint="Name its file or a recorded set with --probes.",
        )
    return found


def recorded_probes(name: str, home: Home | None) -> NamedProbes | None:
    """Return the probe set a home recorded under a name; None when there is none."""
    from snapline.contracts.probe import probes_from_parquet

    if home is None:
        return None
    state = home.state()
    record = state.records.get(("probes", name))
    if record is None:
        return None
    return NamedProbes(name, probes_from_parquet(home.objects(state.algorithm).read(record.object)), record.digest)


def evidence_named(text: str, home: Home | None) -> NamedEvidence:
    """Return evidence by its Parquet file, its address, or the model whose newest certificate rests on it.

    Raises:
        NotFoundError: It is none of these, or the model has no certificate.
        IntegrityError: It is not evidence, or its bytes do not hash to its address.
    """
    from snapline.lineage.errors import NotFoundError

    if Path(text).is_file():
        return _evidence(text, Path(text).read_bytes(), home, None)
    if home is None or Path(text).suffix == ".parquet":
        raise NotFoundError(f"no file {text}", hint="Name a file of evidence; models and addresses need a home.")
    state = home.state()
    objects = home.objects(state.algorithm)
    if _ADDRESS.match(text):
        return _evidence(text, objects.read(text), home, None)
    version = home.resolve(text, state)
    for attested in reversed(state.attestations.get(version.key, ())):
        if (certificate := _certificate(attested, home, state)) is not None:
            return _evidence(text, objects.read(certificate.evidence), home, certificate)
    raise NotFoundError(f"{version.key} has no certificate, so no evidence", hint="Certify it first.")


def certificates(home: Home) -> Iterator[Certificate]:
    """Yield every certificate of a home whose envelope holds, the newest first."""
    state = home.state()
    attested = sorted(
        (one for attestations in state.attestations.values() for one in attestations), key=lambda one: one.at
    )
    for one in reversed(attested):
        if (certificate := _certificate(one, home, state)) is not None:
            yield certificate


def _certificate(attested: Attested, home: Home, state: State) -> Certificate | None:
    from snapline.contracts.certificate import PREDICATE_TYPE, read
    from snapline.lineage.errors import IntegrityError

    if attested.predicate_type != PREDICATE_TYPE:
        return None
    try:
        return read(home.objects(state.algorithm).read(attested.envelope), home.trusted)
    except IntegrityError:
        return None  # `snapline verify` says so; here it only speaks for nothing


def _evidence(text: str, data: bytes, home: Home | None, certificate: Certificate | None) -> NamedEvidence:
    from snapline.contracts.evidence import evidence_from_parquet
    from snapline.contracts.provenance import provenance_of
    from snapline.lineage.digest import bytes_hex, named

    table = evidence_from_parquet(data)
    address = None
    if home is not None:
        algorithm = home.state().algorithm
        address = named(algorithm, "object-v1", bytes_hex(data, algorithm))
        certificate = certificate or next((one for one in certificates(home) if one.evidence == address), None)
    return NamedEvidence(text, data, table, provenance_of(table), address, certificate)
