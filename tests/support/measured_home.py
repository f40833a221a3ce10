"""A home on disk with one certified model, its contract, probes and evidence; no engine ever ran."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from certificates import AT, KEY, MODEL, fields
from stored_evidence import Said, chat_probes, stored

from snapline.cli.wiring import Home, initialise
from snapline.contracts.certificate import PREDICATE_TYPE, Certificate, issue
from snapline.contracts.records import contract_record, read_contract, record_probes
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.events import Attested, ModelRegistered
from snapline.lineage.objects import ObjectStore

CONTRACT = """\
apiVersion: snapline/v1
kind: KernelContract
name: tiny
probes: chats
reference: {engine: transformers, dtype: float32}
serving: {engine: vllm, dtype: bfloat16}
confidence: "0.95"
paths: [prefill]
slices:
  - {name: all, min_prompts: 60}
numerical: {half_span: {quantile: "0.90", limit: "2"}}
statistical: {tv_token: "0.10"}
runtime: {batch_invariance: {half_span: "0.1", at_most: "0.1"}}
diagnostics: [kl]
"""


class MeasuredHome:
    """What was made, and where.

    Attributes:
        root: The home's folder.
        contract: The contract's file.
        evidence: Address of the certificate's evidence.
        file: A copy of that evidence as a file.
    """

    def __init__(self, folder: Path, probes: pa.Table | None = None) -> None:
        self.root = folder / "home"
        initialise(self.root, BulkAlgorithm.BLAKE3, "sqlite:///{home}/ledger.db")
        self.contract = folder / "tiny.yaml"
        self.contract.write_text(CONTRACT)
        self.home = Home.open(self.root)
        self.objects: ObjectStore = self.home.objects(BulkAlgorithm.BLAKE3)
        self.table = chat_probes() if probes is None else probes
        self.probes = record_probes("chats", self.table, self.home.ledger, self.objects, AT)
        self.record = contract_record(str(self.contract), self.home.state(), self.objects, AT)
        self.home.ledger.commit(lambda _state: [self.record, ModelRegistered(at=AT, model=MODEL)])
        self.evidence = self.certify()
        self.file = folder / "evidence.parquet"
        self.file.write_bytes(self.objects.read(self.evidence))

    def certify(self, said: Mapping[str, Said] | None = None, **changes: Any) -> str:
        """Record a certificate over evidence of the contract, and return the evidence's address.

        Args:
            said: By pair, what prompts say of their rows.
            changes: Fields of the evidence's provenance that are something else.
        """
        contract = read_contract(self.record, self.objects)
        evidence = self.objects.put(stored(contract, self.table, said, **changes))
        bound = {
            what: {"name": record.name, "digest": record.digest, "object": record.object}
            for what, record in (("contract", self.record), ("probes", self.probes))
        }
        floor = {"half_span": "0.5", "tv": "0.2", "not_identical": "0", "prompts": "4"}
        certificate = Certificate.model_validate(fields(evidence=evidence, noise_floor=floor, **bound))
        envelope = self.objects.put(issue(certificate, self.home.key))
        retained = certificate.retained
        signed = Attested(at=AT, model=KEY, predicate_type=PREDICATE_TYPE, envelope=envelope, retained=retained)
        self.home.ledger.commit(lambda _state: [signed])
        return evidence

    def entries(self) -> int:
        """How many entries the ledger has."""
        return len(self.home.ledger.entries())
