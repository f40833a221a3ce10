"""Ed25519 signatures, and the DSSE envelopes that carry them.

Who may be believed is a folder of public keys: `keys/trusted/`. A signature by any other key counts for nothing. An
envelope is read only in the one spelling `seal` writes, so no byte of it can change unnoticed, not even one that
leaves its meaning alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import Error as SecureSystemsLibError
from securesystemslib.signer import Signature

from snapline.lineage.digest import canonical_json
from snapline.lineage.errors import ConflictError, DefinitionError, IntegrityError, NotFoundError


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return what is really signed: DSSE's pre-authentication encoding, in which no type can pose as another."""
    encoded: bytes = Envelope(payload, payload_type, {}).pae()
    return encoded


class SigningKey:
    """A private key; whoever holds it can speak for this home."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def create(cls, path: Path) -> Self:
        """Return a new key, stored as PEM in a file only its owner can read. The file appears whole or not at all.

        Raises:
            ConflictError: There is a file at `path` already; a key is never overwritten.
        """
        key = cls(Ed25519PrivateKey.generate())
        pem = key._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(pem)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            path.hardlink_to(temporary)
        except FileExistsError as error:
            raise ConflictError(f"there is a key at {path} already", hint="Use it, or move it away first.") from error
        finally:
            temporary.unlink()
        return key

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the key stored at `path`.

        Raises:
            NotFoundError: There is no such file.
            IntegrityError: Others than its owner can read or change it.
            DefinitionError: It is no unencrypted Ed25519 key in PEM.
        """
        try:
            with path.open("rb") as stream:
                mode, pem = os.fstat(stream.fileno()).st_mode & 0o777, stream.read()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"no signing key at {path}", hint="Make one: snapline init.") from error
        if mode & 0o077:
            raise IntegrityError(
                f"{path} must be open to its owner alone (mode 600), found mode {mode:03o}",
                hint=f"Run chmod 600 {path} if nobody else can have read it; otherwise stop trusting it.",
            )
        try:
            private = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise DefinitionError(
                f"{path}: expected an unencrypted private key in PEM: {error}", hint="Restore the key from a copy."
            ) from error
        if not isinstance(private, Ed25519PrivateKey):
            raise DefinitionError(
                f"{path}: expected an Ed25519 key, found {type(private).__name__}", hint="Restore the key from a copy."
            )
        return cls(private)

    @property
    def public(self) -> Ed25519PublicKey:
        """The half that others verify with."""
        return self._private.public_key()

    @cached_property
    def key_id(self) -> str:
        """What signatures name this key by."""
        return key_id_of(self.public)

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of this key's signature; the same message always gives the same ones."""
        return self._private.sign(message)

    def publish(self, folder: Path) -> Path:
        """Write the public half into a folder of trusted keys and return its file. Doing it twice changes nothing."""
        target = folder / f"{self.key_id}.pem"
        temporary = folder / f".{uuid.uuid4().hex}.tmp"
        temporary.write_bytes(self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        temporary.replace(target)
        return target


class TrustedKeys:
    """The public keys whose signatures are believed here, by key id."""

    def __init__(self, keys: Mapping[str, Ed25519PublicKey]) -> None:
        self._keys = dict(keys)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the keys in a folder's `*.pem` files; without such a folder nobody is trusted.

        Raises:
            IntegrityError: One of the files is no Ed25519 public key.
        """
        keys = {}
        for path in sorted(folder.glob("*.pem")):
            hint = f"Replace {path} with an Ed25519 public key in PEM, or remove it."
            try:
                public = load_pem_public_key(path.read_bytes())
            except (OSError, ValueError, UnsupportedAlgorithm) as error:
                raise IntegrityError(f"{path}: expected a public key in PEM: {error}", hint=hint) from error
            if not isinstance(public, Ed25519PublicKey):
                raise IntegrityError(f"{path}: expected an Ed25519 key, found {type(public).__name__}", hint=hint)
            keys[key_id_of(public)] = public
        return cls(keys)

    def __contains__(self, key_id: object) -> bool:
        return key_id in self._keys

    def verify(self, key_id: str, message: bytes, signature: bytes) -> None:
        """Raise unless a trusted key signed `message`.

        Raises:
            IntegrityError: The key is not trusted here, or the signature is not its own over this message.
        """
        public = self._keys.get(key_id)
        if public is None:
            raise IntegrityError(
                f"signed by a key nobody trusts here: {key_id!r}",
                hint="If you do trust its owner, put the public key into keys/trusted/.",
            )
        try:
            public.verify(signature, message)
        except InvalidSignature as error:
            raise IntegrityError(
                f"bad signature: the trusted key {key_id} signed something else than what is here",
                hint="Restore the signed bytes from a copy you trust.",
            ) from error


def key_id_of(public: Ed25519PublicKey) -> str:
    """Return the SHA-256 of the key's SubjectPublicKeyInfo in DER, as 64 hex digits."""
    return hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def seal(payload: bytes, payload_type: str, key: SigningKey) -> bytes:
    """Return a DSSE envelope around `payload`, signed; equal arguments give equal bytes."""
    signature = Signature(key.key_id, key.sign(pae(payload_type, payload)).hex())
    return _spell(Envelope(payload, payload_type, {key.key_id: signature}))


def open_envelope(data: bytes, payload_type: str, trusted: TrustedKeys) -> bytes:
    """Return the exact payload of an envelope of that type, once a trusted key's signature over it is verified.

    Signatures by strangers are ignored beside a trusted one; every trusted key's signature must hold.

    Raises:
        IntegrityError: The bytes are not an envelope as `seal` spells it, its type is another, no trusted key signed
            it, or a signature does not hold.
    """
    hint = "Restore the envelope from a copy you trust, or issue it again."
    try:
        envelope = Envelope.from_dict(json.loads(data))
        canonical = _spell(envelope) == data
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, SecureSystemsLibError) as error:
        raise IntegrityError(f"not a DSSE envelope: {error}", hint=hint) from error
    except DefinitionError as error:
        raise IntegrityError(f"not a DSSE envelope: {error.message}", hint=hint) from error
    if not canonical:
        raise IntegrityError("not a DSSE envelope as it was written: its bytes were changed", hint=hint)
    if envelope.payload_type != payload_type:
        raise IntegrityError(f"expected an envelope of {payload_type}, found {envelope.payload_type!r}", hint=hint)
    if not envelope.signatures:
        raise IntegrityError("the envelope carries no signature", hint=hint)
    believed = [key_id for key_id in envelope.signatures if key_id in trusted] or list(envelope.signatures)
    for key_id in believed:
        trusted.verify(key_id, envelope.pae(), bytes.fromhex(envelope.signatures[key_id].signature))
    payload: bytes = envelope.payload
    return payload


def _spell(envelope: Envelope) -> bytes:
    return canonical_json(envelope.to_dict())
