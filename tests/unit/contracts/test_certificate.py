from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from certificates import AT, MODEL, certificate, fields, finding
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from pydantic import ValidationError

from snapline.contracts.certificate import (
    EVIDENCE_CLASSES,
    PREDICATE_TYPE,
    Certificate,
    issue,
    read,
    signer_of,
    weaker,
)
from snapline.contracts.verdict import Verdict
from snapline.lineage.digest import BulkAlgorithm, bytes_hex, named
from snapline.lineage.errors import IntegrityError
from snapline.lineage.signing import SigningKey, TrustedKeys, key_id_of, open_envelope, seal
from snapline.lineage.statements import PAYLOAD_TYPE, STATEMENT_TYPE

GOLDEN = Path(__file__).parents[2] / "golden" / "certificate_v1.json"
KEY = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
TRUSTED = TrustedKeys({KEY.key_id: KEY.public})
CERTIFIED, UNDECIDED, REFUTED = Verdict.CERTIFIED, Verdict.UNDECIDED, Verdict.REFUTED


def statement(**changes: Any) -> dict[str, Any]:
    """The statement inside a certificate's envelope, with some of its fields replaced."""
    return json.loads(open_envelope(issue(certificate(), KEY), PAYLOAD_TYPE, TRUSTED)) | changes


def signed(content: object) -> bytes:
    payload = content if isinstance(content, bytes) else json.dumps(content).encode()
    return seal(payload, PAYLOAD_TYPE, KEY)


def predicate(**changes: Any) -> dict[str, Any]:
    return statement()["predicate"] | changes


def test_what_was_issued_is_what_is_read():
    envelope = issue(certificate(), KEY)
    assert read(envelope, TRUSTED) == certificate()
    assert issue(certificate(), KEY) == envelope
    assert signer_of(envelope) == KEY.key_id


def test_it_is_an_in_toto_statement_about_the_weights():
    found = statement()
    assert (found["_type"], found["predicateType"]) == (STATEMENT_TYPE, PREDICATE_TYPE)
    assert found["subject"] == [{"name": "assistant/1", "digest": {"blake3-weights-v1": "a" * 64}}]


def test_every_object_it_binds_is_retained():
    bound = certificate()
    assert bound.retained == (bound.contract.object, bound.probes.object, bound.evidence)


def test_unknown_fields_of_the_predicate_are_tolerated():
    extended = statement(predicate=predicate(colour="red"), remark="by a later version")
    extended["predicate"]["findings"][0]["shape"] = "round"
    assert read(signed(extended), TRUSTED) == certificate()


def test_an_unknown_part_of_what_serves_is_never_dropped():
    """Dropped, it would let a certificate for one target speak for another."""
    extended = statement()
    extended["predicate"]["target_identity"]["speculative_decoding"] = "on"
    with pytest.raises(IntegrityError, match="speculative_decoding"):
        read(signed(extended), TRUSTED)


@pytest.mark.parametrize(
    ("verdict", "found"),
    [
        (CERTIFIED, [CERTIFIED, UNDECIDED]),
        (CERTIFIED, [CERTIFIED, REFUTED]),
        (UNDECIDED, [REFUTED]),
        (CERTIFIED, []),
    ],
)
def test_a_verdict_stronger_than_its_findings_is_refused_though_signed(verdict, found):
    forged = statement(predicate=predicate(verdict=verdict, findings=[finding(one) for one in found]))
    with pytest.raises(IntegrityError, match=f"the verdict {verdict} is stronger than its findings"):
        read(signed(forged), TRUSTED)
    with pytest.raises(ValidationError):
        certificate(verdict, findings=[finding(one) for one in found])


@pytest.mark.parametrize(
    ("verdict", "found"),
    [(REFUTED, [CERTIFIED, REFUTED]), (UNDECIDED, [CERTIFIED]), (UNDECIDED, []), (REFUTED, [UNDECIDED])],
)
def test_a_verdict_weaker_than_its_findings_is_a_no_like_any_other(verdict, found):
    cautious = statement(predicate=predicate(verdict=verdict, findings=[finding(one) for one in found]))
    assert read(signed(cautious), TRUSTED).verdict is verdict


OTHER = {"blake3-weights-v1": "b" * 64}
NOT_CERTIFICATES = {
    "payload is not JSON": b"verdict: CERTIFIED",
    "payload is a list": [],
    "payload is text": "CERTIFIED",
    "no predicate": {name: value for name, value in statement().items() if name != "predicate"},
    "predicate is a list": statement(predicate=[]),
    "a verdict nobody knows": statement(predicate=predicate(verdict="SURELY")),
    "an evidence class nobody knows": statement(
        predicate=predicate(serving=predicate()["serving"] | {"evidence_class": "not-run"})
    ),
    "weights that are no digest": statement(predicate=predicate(weights="abc")),
    "wrong predicateType": statement(predicateType="https://slsa.dev/provenance/v1"),
    "wrong _type": statement(_type="https://in-toto.io/Statement/v0.1"),
    "no subject": statement(subject=[]),
    "subject is a mapping": statement(subject={}),
    "subject has other weights": statement(subject=[{"name": "assistant/1", "digest": OTHER}]),
    "subject has another name": statement(subject=[statement()["subject"][0] | {"name": "assistant/2"}]),
    "two subjects": statement(subject=[*statement()["subject"], {"name": "assistant/2", "digest": OTHER}]),
    "digest is a list": statement(subject=[{"name": "assistant/1", "digest": ["a"]}]),
    "another recipe for the same digits": statement(
        subject=[{"name": "assistant/1", "digest": {"sha256-weights-v1": "a" * 64}}]
    ),
}


@pytest.mark.parametrize("what", NOT_CERTIFICATES)
def test_what_is_signed_but_no_certificate_is_refused(what):
    with pytest.raises(IntegrityError) as caught:
        read(signed(NOT_CERTIFICATES[what]), TRUSTED)
    assert caught.value.hint


def test_no_byte_of_an_envelope_can_change():
    envelope = issue(certificate(), KEY)
    for place in range(0, len(envelope), 7):
        changed = bytearray(envelope)
        changed[place] ^= 1
        with pytest.raises(IntegrityError):
            read(bytes(changed), TRUSTED)


def test_the_weaker_class_of_two_sides_counts():
    assert weaker("cpu", "gpu-native") == "cpu"
    assert weaker("gpu-native", "gpu-emulated") == "gpu-emulated"
    assert all(weaker("not-run", other) == "not-run" for other in EVIDENCE_CLASSES)


def golden() -> dict[str, Any]:
    """An envelope with the objects it retains and the key that signed it: the same ones every time."""
    objects = {name: f"the {name}\n".encode() for name in ("contract", "probes", "evidence")}
    address = {
        n: named(BulkAlgorithm.SHA256, "object-v1", bytes_hex(d, BulkAlgorithm.SHA256)) for n, d in objects.items()
    }
    bound = fields(evidence=address["evidence"])
    for name in ("contract", "probes"):
        bound[name] |= {"object": address[name]}
    return {
        "public_key": KEY.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(),
        "envelope": issue(Certificate.model_validate(bound), KEY).decode(),
        "objects": {address[name]: data.decode() for name, data in objects.items()},
    }


def test_a_certificate_of_the_first_format_verifies_for_ever(request):
    if request.config.getoption("--update-goldens"):
        GOLDEN.write_text(json.dumps(golden(), indent=2) + "\n", encoding="utf-8")
    kept = json.loads(GOLDEN.read_text(encoding="utf-8"))
    public = load_pem_public_key(kept["public_key"].encode())
    found = read(kept["envelope"].encode(), TrustedKeys({key_id_of(public): public}))
    assert (found.verdict, found.model, found.weights) == (CERTIFIED, "assistant/1", MODEL.weights.digest)
    assert (found.issued_at, found.target_identity.digest) == (AT, certificate().target_identity.digest)
    assert set(found.retained) == set(kept["objects"])
    for address, text in kept["objects"].items():
        assert address == f"sha256-object-v1:{bytes_hex(text.encode(), BulkAlgorithm.SHA256)}"


def test_the_first_format_is_still_written_as_it_was():
    assert golden() == json.loads(GOLDEN.read_text(encoding="utf-8"))
