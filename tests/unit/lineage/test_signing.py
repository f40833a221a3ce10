from __future__ import annotations

import base64
import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from snapline.lineage.digest import canonical_json
from snapline.lineage.errors import ConflictError, DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.signing import SigningKey, TrustedKeys, key_id_of, open_envelope, pae, seal

TYPE = "application/vnd.test+json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def key(folder: Path) -> SigningKey:
    return SigningKey.create(folder / "signing.key")


@pytest.fixture(scope="module")
def stranger(folder: Path) -> SigningKey:
    return SigningKey.create(folder / "stranger.key")


@pytest.fixture(scope="module")
def trusted(key: SigningKey) -> TrustedKeys:
    return TrustedKeys({key.key_id: key.public})


def test_a_key_is_for_its_owner_only_and_comes_back_the_same(tmp_path: Path) -> None:
    made = SigningKey.create(tmp_path / "signing.key")
    assert stat.S_IMODE((tmp_path / "signing.key").stat().st_mode) == 0o600
    assert SigningKey.load(tmp_path / "signing.key").key_id == made.key_id
    assert [path.name for path in tmp_path.iterdir()] == ["signing.key"]


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    SigningKey.create(tmp_path / "signing.key")
    before = (tmp_path / "signing.key").read_bytes()
    with pytest.raises(ConflictError, match="there is a key"):
        SigningKey.create(tmp_path / "signing.key")
    assert (tmp_path / "signing.key").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_of_eight_who_make_a_key_at_once_one_does(tmp_path: Path) -> None:
    def make(_: int) -> str | None:
        try:
            return SigningKey.create(tmp_path / "signing.key").key_id
        except ConflictError:
            return None

    with ThreadPoolExecutor(8) as pool:
        made = [key_id for key_id in pool.map(make, range(8)) if key_id]
    assert made == [SigningKey.load(tmp_path / "signing.key").key_id]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_key_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    SigningKey.create(tmp_path / "signing.key")
    (tmp_path / "signing.key").chmod(mode)
    with pytest.raises(IntegrityError, match=f"found mode {mode:03o}") as caught:
        SigningKey.load(tmp_path / "signing.key")
    assert "chmod 600" in caught.value.hint


def test_a_missing_key_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no signing key"):
        SigningKey.load(tmp_path / "signing.key")


@pytest.mark.parametrize("crime", ["garbage", "elliptic", "encrypted"])
def test_what_is_no_plain_ed25519_key_is_refused(tmp_path: Path, crime: str) -> None:
    path = tmp_path / "signing.key"
    SigningKey.create(path)
    if crime == "garbage":
        path.write_bytes(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    elif crime == "elliptic":
        other = ec.generate_private_key(ec.SECP256R1())
        path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    else:
        plain = load_pem_private_key(path.read_bytes(), None)
        path.write_bytes(plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    with pytest.raises(DefinitionError, match=r"signing\.key: expected an"):
        SigningKey.load(path)


def test_publishing_makes_a_key_trusted_and_twice_changes_nothing(tmp_path: Path, key: SigningKey) -> None:
    assert key.key_id not in TrustedKeys.load(tmp_path)
    assert key.publish(tmp_path) == key.publish(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    TrustedKeys.load(tmp_path).verify(key.key_id, b"message", key.sign(b"message"))


def test_without_a_folder_nobody_is_trusted(tmp_path: Path, key: SigningKey) -> None:
    with pytest.raises(IntegrityError, match="signed by a key nobody trusts here"):
        TrustedKeys.load(tmp_path / "none").verify(key.key_id, b"message", key.sign(b"message"))


def test_a_trusted_file_that_is_no_ed25519_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "junk.pem").write_text("junk")
    with pytest.raises(IntegrityError, match=r"junk\.pem: expected a public key"):
        TrustedKeys.load(tmp_path)
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    (tmp_path / "junk.pem").write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(IntegrityError, match="expected an Ed25519 key"):
        TrustedKeys.load(tmp_path)


@given(message=st.binary(max_size=64), other=st.binary(max_size=64))
def test_a_signature_speaks_of_one_message(key: SigningKey, trusted: TrustedKeys, message: bytes, other: bytes) -> None:
    signature = key.sign(message)
    trusted.verify(key.key_id, message, signature)
    if other != message:
        with pytest.raises(IntegrityError, match="bad signature"):
            trusted.verify(key.key_id, other, signature)


@pytest.mark.parametrize("signature", [b"", b"short", b"\0" * 64, b"\xff" * 65])
def test_what_is_no_signature_is_a_bad_one(key: SigningKey, trusted: TrustedKeys, signature: bytes) -> None:
    with pytest.raises(IntegrityError, match="bad signature"):
        trusted.verify(key.key_id, b"message", signature)


def test_the_signed_bytes_are_those_of_the_dsse_specification() -> None:
    # https://github.com/secure-systems-lab/dsse/blob/master/protocol.md, "Test Vectors"
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pae("http://example.com/HelloWorld", b"hello world") == expected


@given(payload=st.binary(max_size=200), payload_type=st.text(max_size=20).filter(str.isascii))
def test_opening_undoes_sealing(key: SigningKey, trusted: TrustedKeys, payload: bytes, payload_type: str) -> None:
    sealed = seal(payload, payload_type, key)
    assert open_envelope(sealed, payload_type, trusted) == payload
    assert seal(payload, payload_type, key) == sealed


def test_others_can_verify_our_envelopes(key: SigningKey) -> None:
    envelope = Envelope.from_dict(json.loads(seal(b"{}", TYPE, key)))
    theirs = SSlibKey.from_crypto(key.public, keyid=key.key_id)
    assert set(envelope.verify([theirs], threshold=1)) == {key.key_id}


def test_another_type_is_refused(key: SigningKey, trusted: TrustedKeys) -> None:
    with pytest.raises(IntegrityError, match="expected an envelope of text/other, found 'application/vnd"):
        open_envelope(seal(b"{}", TYPE, key), "text/other", trusted)


def test_a_strangers_envelope_is_refused(stranger: SigningKey, trusted: TrustedKeys) -> None:
    with pytest.raises(IntegrityError, match="signed by a key nobody trusts here"):
        open_envelope(seal(b"{}", TYPE, stranger), TYPE, trusted)


def respelt(sealed: bytes, **changes: object) -> bytes:
    return canonical_json(json.loads(sealed) | changes)


def test_a_strangers_signature_beside_ours_is_ignored(
    key: SigningKey, stranger: SigningKey, trusted: TrustedKeys
) -> None:
    sealed = seal(b"{}", TYPE, key)
    both = json.loads(seal(b"{}", TYPE, stranger))["signatures"] + json.loads(sealed)["signatures"]
    assert open_envelope(respelt(sealed, signatures=both), TYPE, trusted) == b"{}"


def test_a_good_signature_does_not_excuse_a_bad_one(key: SigningKey, stranger: SigningKey) -> None:
    sealed, both_trusted = seal(b"{}", TYPE, key), TrustedKeys({k.key_id: k.public for k in (key, stranger)})
    bad = json.loads(seal(b"[]", TYPE, stranger))["signatures"] + json.loads(sealed)["signatures"]
    with pytest.raises(IntegrityError, match="bad signature"):
        open_envelope(respelt(sealed, signatures=bad), TYPE, both_trusted)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'"payload"',
        b"[" * 100_000,
        b'{"payload":1,"payloadType":"t","signatures":[]}',
        b'{"payload":"","payloadType":"t","signatures":{}}',
        b'{"payload":"","payloadType":"t","signatures":[1]}',
        b'{"payload":"","payloadType":"t","signatures":[{"keyid":[],"sig":""}]}',
        b'{"payload":"","payloadType":1.5,"signatures":[]}',
        b'{"payload":"","payloadType":"\\ud800","signatures":[]}',
    ],
)
def test_what_is_no_envelope_is_refused(data: bytes, trusted: TrustedKeys) -> None:
    with pytest.raises(IntegrityError, match="not a DSSE envelope"):
        open_envelope(data, TYPE, trusted)


def test_an_envelope_nobody_signed_is_refused(key: SigningKey, trusted: TrustedKeys) -> None:
    with pytest.raises(IntegrityError, match="no signature"):
        open_envelope(respelt(seal(b"{}", TYPE, key), signatures=[]), TYPE, trusted)


def test_the_same_meaning_in_another_spelling_is_refused(key: SigningKey, trusted: TrustedKeys) -> None:
    sealed = seal(b"hi", TYPE, key)
    content = json.loads(sealed)
    assert content["payload"] == "aGk="
    loose = sealed.replace(b"aGk=", b"aGl=")
    assert base64.b64decode("aGl=") == b"hi"
    for other in (json.dumps(content, indent=1).encode(), sealed + b"\n", loose, respelt(sealed, extra="field")):
        with pytest.raises(IntegrityError, match="its bytes were changed"):
            open_envelope(other, TYPE, trusted)


def test_a_key_id_names_the_key_and_nothing_else(key: SigningKey, stranger: SigningKey) -> None:
    assert key.key_id == key_id_of(key.public)
    assert key.key_id != stranger.key_id
    assert len(bytes.fromhex(key.key_id)) == 32
