"""The witness: a signed file beside the database that remembers the longest history this home has seen."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from snapline.lineage.digest import Digest, canonical_json
from snapline.lineage.documents import Value
from snapline.lineage.errors import IntegrityError
from snapline.lineage.signing import SigningKey, TrustedKeys, open_envelope, pae, seal

_TYPE = "application/vnd.snapline.ledger-head.v1+json"


class Head(Value):
    """How long a history is, and the digest of its last entry."""

    length: int
    digest: Digest

    def message(self) -> bytes:
        """Return the bytes a signature over this head signs, in an entry as in the witness."""
        return pae(_TYPE, self.document())

    def document(self) -> bytes:
        """Return its canonical JSON."""
        return canonical_json(self.model_dump())


class Witness:
    """The witness at a path. It only moves forward, however many processes move it."""

    def __init__(self, path: Path, trusted: TrustedKeys) -> None:
        self._path = path
        self._trusted = trusted

    def read(self) -> Head | None:
        """Return the head it remembers; None where there is no witness.

        Raises:
            IntegrityError: It is not what a trusted key signed.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return Head.model_validate_json(open_envelope(data, _TYPE, self._trusted))
        except IntegrityError as error:
            raise IntegrityError(f"{self._path}: {error.message}", hint=error.hint) from error
        except ValidationError as error:
            raise IntegrityError(f"{self._path}: not a ledger's head", hint="Restore it from a copy.") from error

    def advance(self, head: Head, key: SigningKey) -> None:
        """Remember `head`, durably, unless a head as long or longer is remembered already.

        Raises:
            IntegrityError: What is there is not what a trusted key signed.
        """
        with self._locked():
            known = self.read()
            if known is not None and known.length >= head.length:
                return
            temporary = self._path.with_name(f"{self._path.name}.tmp")
            with temporary.open("wb") as stream:
                stream.write(seal(head.document(), _TYPE, key))
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._path.with_name(f"{self._path.name}.lock").open("wb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield
