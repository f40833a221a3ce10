"""What somebody with write access, but without a trusted key, might do to certificates. No gate opens for any of it.

Where the crime needs an entry in the ledger, a trusted writer is fooled into committing it: the worst case.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from workbench import TARGET, Home, NoEngines, Replayed, kinds

from snapline.contracts.certificate import PREDICATE_TYPE, Certificate, issue
from snapline.contracts.gate import GateDecision, GateOpen
from snapline.contracts.inspection import target_now
from snapline.lineage.digest import canonical_json
from snapline.lineage.errors import IntegrityError, RequirementError
from snapline.lineage.events import Attested
from snapline.lineage.invalidation import Why
from snapline.lineage.observe import Depth
from snapline.lineage.signing import SigningKey, seal
from snapline.lineage.statements import PAYLOAD_TYPE


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def model(home):
    """A certified version, whose gate opens."""
    model = home.register()
    home.certify(model, Replayed())
    assert gate(home, model).open
    return model


@pytest.fixture
def refuted(home):
    """A version an engine was refuted on: what a criminal would like to ship."""
    refuted = home.register(home.write_weights("bad", 2))
    engines = Replayed()
    issued = home.certify(refuted, Replayed(serving={n: 2 * rows for n, rows in engines.reference.items()}))
    assert issued.certificate.verdict == "REFUTED"
    return refuted


@pytest.fixture
def stranger(tmp_path: Path) -> SigningKey:
    return SigningKey.create(tmp_path / "stranger.key")


def gate(home: Home, model: Any, depth: Depth | None = None, target: Any = TARGET) -> GateDecision:
    inspector = home.inspector(depth)
    return inspector.inspect(model, target_now("production", target), inspector.observe(model))[0]


def smuggle(home: Home, model: Any, envelope: bytes) -> None:
    """Attest an envelope as if it were about a version."""
    address = home.objects.put(envelope)
    entry = Attested(
        at=home.state.records["contract", "tiny"].at, model=model.key, predicate_type=PREDICATE_TYPE, envelope=address
    )
    home.ledger.commit(lambda _state: [entry])


def envelope_of(home: Home, model: Any) -> bytes:
    return home.objects.read(home.state.attestations[model.key][-1].envelope)


def certificate_of(home: Home, model: Any) -> Certificate:
    return home.inspector().read(home.state.attestations[model.key][-1])


def overwrite(home: Home, address: str, data: bytes) -> None:
    path = home.objects.path(address)
    path.chmod(0o644)
    path.write_bytes(data)


def assert_tampered(home: Home, model: Any, message: str) -> None:
    decision = gate(home, model)
    assert (decision.open, decision.why) == (False, Why.TAMPERED)
    assert any(message in reason for reason in decision.reasons), decision.reasons
    with pytest.raises(RequirementError):
        home.ledger.commit(lambda _state: [], requires=[GateOpen(decision)])


def test_a_certificate_signed_by_a_stranger(home, refuted, stranger):
    wished = certificate_of(home, refuted).model_dump() | {"verdict": "CERTIFIED"}
    wished["findings"] = [finding | {"verdict": "CERTIFIED"} for finding in wished["findings"]]
    smuggle(home, refuted, issue(Certificate.model_validate(wished), stranger))
    assert_tampered(home, refuted, "signed by a key nobody trusts here")


def test_a_strangers_signature_under_a_trusted_keys_name(home, refuted, stranger):
    document = json.loads(envelope_of(home, refuted))
    payload = base64.b64decode(document["payload"]).replace(b"REFUTED", b"CERTIFIED")
    forged = json.loads(seal(payload, PAYLOAD_TYPE, stranger))
    forged["signatures"][0]["keyid"] = home.key.key_id
    smuggle(home, refuted, canonical_json(forged))
    assert_tampered(home, refuted, "bad signature")


def test_a_verdict_edited_under_the_old_signature(home, refuted):
    document = json.loads(envelope_of(home, refuted))
    payload = base64.b64decode(document["payload"]).replace(b"REFUTED", b"CERTIFIED")
    document["payload"] = base64.b64encode(payload).decode()
    smuggle(home, refuted, canonical_json(document))
    assert_tampered(home, refuted, "bad signature")


def test_a_verdict_edited_and_the_findings_forgotten(home, refuted):
    """Even a trusted key cannot sign a yes over findings that say no."""
    document = json.loads(envelope_of(home, refuted))
    statement = json.loads(base64.b64decode(document["payload"]))
    statement["predicate"]["verdict"] = "CERTIFIED"
    smuggle(home, refuted, seal(json.dumps(statement).encode(), PAYLOAD_TYPE, home.key))
    assert_tampered(home, refuted, "stronger than its findings")


def test_another_models_envelope_replayed_onto_this_version(home, model, refuted):
    smuggle(home, refuted, envelope_of(home, model))
    assert_tampered(home, refuted, "it speaks of other weights")


def test_an_envelope_of_the_same_weights_under_another_name_replayed(home, model):
    twin = home.register(name="twin")
    assert twin.weights.digest == model.weights.digest
    smuggle(home, twin, envelope_of(home, model))
    assert_tampered(home, twin, "it speaks of other weights")


def test_the_attested_envelope_overwritten_with_somebody_elses(home, model, refuted):
    overwrite(home, home.state.attestations[refuted.key][-1].envelope, envelope_of(home, model))
    assert_tampered(home, refuted, "holds other bytes")


def test_the_attestation_points_at_no_envelope_but_at_other_bytes(home, model):
    smuggle(home, model, b'{"payload": "yes"}')
    assert_tampered(home, model, "not a DSSE envelope")


def test_an_envelope_of_another_kind(home, model):
    smuggle(home, model, seal(b"{}", "application/json", home.key))
    assert_tampered(home, model, "expected an envelope of application/vnd.in-toto+json")


def test_the_evidence_swapped_for_another_models(home, model, refuted):
    theirs = home.objects.read(certificate_of(home, model).evidence)
    overwrite(home, certificate_of(home, refuted).evidence, theirs)
    assert_tampered(home, refuted, "holds other bytes")


def test_a_certificate_that_borrows_another_models_evidence_is_not_judged_on_it(home, model, refuted):
    borrowed = certificate_of(home, refuted).model_copy(update={"evidence": certificate_of(home, model).evidence})
    smuggle(home, refuted, issue(borrowed, home.key))
    home.edit(('limit: "0.01"', 'limit: "0.02"'))
    assert home.certify(refuted, NoEngines()).certificate.verdict == "REFUTED"


BOUND: dict[str, Callable[[Certificate], str]] = {
    "contract": lambda found: found.contract.object,
    "probes": lambda found: found.probes.object,
    "evidence": lambda found: found.evidence,
}


@pytest.mark.parametrize("what", BOUND)
def test_one_byte_of_a_bound_object_flipped(home, model, what):
    address = BOUND[what](certificate_of(home, model))
    data = bytearray(home.objects.read(address))
    data[len(data) // 2] ^= 1
    overwrite(home, address, bytes(data))
    assert_tampered(home, model, "holds other bytes")


def test_a_looser_contract_swapped_in_for_the_bound_one(home, model):
    address = certificate_of(home, model).contract.object
    overwrite(home, address, home.objects.read(address).replace(b'"0.01"', b'"9.00"'))
    assert_tampered(home, model, "holds other bytes")


def test_a_certificate_for_another_targets_identity_shown_for_this_one(home, model):
    elsewhere = TARGET.model_copy(update={"dtype": "float16"})
    decision = gate(home, model, target=elsewhere)
    assert (decision.open, decision.why, kinds(decision.causes)) == (False, Why.UNKNOWN, ["ENGINE_CHANGED"])
    renamed = certificate_of(home, model).model_copy(update={"target": "elsewhere"})
    smuggle(home, model, issue(renamed, home.key))
    assert not gate(home, model, target=elsewhere).open


def test_the_target_identity_edited_in_the_envelope(home, model):
    document = json.loads(envelope_of(home, model))
    payload = base64.b64decode(document["payload"]).replace(b'"dtype":"bfloat16"', b'"dtype":"float16"')
    document["payload"] = base64.b64encode(payload).decode()
    smuggle(home, model, canonical_json(document))
    assert_tampered(home, model, "bad signature")


def test_a_trusted_key_withdrawn(home, model):
    inspector = home.inspector()
    (attested,) = home.state.attestations[model.key]
    home.trusted._keys.clear()
    with pytest.raises(IntegrityError, match="nobody trusts"):
        inspector.read(attested)


def test_a_poisoned_stat_cache_is_found_out_by_a_full_look(home, model):
    """The cache is made to vouch for bytes nobody measured; only a look that never asks it can tell."""
    path = home.weights / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert gate(home, model).why is Why.TAMPERED
    stat = os.lstat(path)
    stamp = {"size_bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "ctime_ns": stat.st_ctime_ns}
    poison = json.dumps(stamp | {"inode": stat.st_ino}, separators=(",", ":"))
    with closing(sqlite3.connect(home.root / "cache.db")) as cache, cache:
        cache.execute("UPDATE OR REPLACE remembered SET stamp = ? WHERE path = ?", (poison, os.fsencode(path)))
    assert gate(home, model).open, "the poison works on a quick look, or this test proves nothing"
    decision = gate(home, model, Depth(rows=True, full=True))
    assert (decision.open, decision.why) == (False, Why.TAMPERED)
