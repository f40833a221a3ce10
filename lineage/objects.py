"""Content-addressed objects: manifests, documents, evidence and envelopes, kept beside the ledger.

An object's address is the digest of its bytes, so reading one verifies it, and writing one twice writes it once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from snapline.lineage.digest import BulkAlgorithm, bytes_hex, file_hex, hex_part, mapped_hex, named
from snapline.lineage.errors import IntegrityError

_WORK = ".work"
_HELD = "held"


class ObjectStore:
    """A folder of immutable objects.

    Args:
        root: The folder; made when missing.
        algorithm: The hash that new addresses use.
    """

    def __init__(self, root: Path, algorithm: BulkAlgorithm) -> None:
        self.root = root
        self.algorithm = algorithm

    def put(self, data: bytes) -> str:
        """Store bytes and return their address."""
        address = named(self.algorithm, "object-v1", bytes_hex(data, self.algorithm))
        target = self.path(address)
        if not self._holds(address):
            temporary = self._temporary()
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            self._publish(temporary, target)
        return address

    def put_file(self, source: Path) -> str:
        """Store a copy of a file and return its address."""
        temporary = self._temporary()
        with source.open("rb") as incoming, temporary.open("wb") as stream:
            shutil.copyfileobj(incoming, stream)
            stream.flush()
            os.fsync(stream.fileno())
        address = named(self.algorithm, "object-v1", file_hex(temporary, self.algorithm))
        self._publish(temporary, self.path(address))
        return address

    def read(self, address: str) -> bytes:
        """Return an object's bytes, verified.

        Raises:
            IntegrityError: The object is missing, unreadable, or its bytes do not hash to its address.
        """
        try:
            data = self.path(address).read_bytes()
        except OSError as error:
            raise _unreadable(address, self.path(address), error) from error
        found = bytes_hex(data, BulkAlgorithm(address.partition("-")[0]))
        if found != hex_part(address):
            raise _other_bytes(address, found)
        return data

    def verified(self, address: str) -> Path:
        """Return where an object lies, once its bytes are verified; for objects too large to hold.

        Raises:
            IntegrityError: The object is missing, unreadable, or its bytes do not hash to its address.
        """
        path, algorithm = self.path(address), BulkAlgorithm(address.partition("-")[0])
        try:
            found = mapped_hex(path, algorithm)
        except OSError as error:
            raise _unreadable(address, path, error) from error
        if found != hex_part(address):
            raise _other_bytes(address, found)
        return path

    def path(self, address: str) -> Path:
        """Return where an object lies; says nothing of whether it is there or whole."""
        name = hex_part(address)
        return self.root / name[:2] / name[2:]

    def _holds(self, address: str) -> bool:
        try:
            self.read(address)
        except IntegrityError:
            return False
        return True

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """Yield an empty folder in which to put together what may become an object; it is gone afterwards.

        Rows may lie there, so what killed processes left is removed first. Whoever works in a folder holds its lock,
        which the system frees with the process; folders are made under one lock more, so that none is found before its
        own is held.
        """
        from filelock import FileLock, Timeout  # no gate works here

        self.root.mkdir(parents=True, exist_ok=True)
        with FileLock(self.root.with_name(f"{self.root.name}.lock")):
            for left in self.root.glob(f"{_WORK}-*"):
                with suppress(Timeout), FileLock(left / _HELD, timeout=0):
                    shutil.rmtree(left, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=f"{_WORK}-", dir=self.root))
            held = FileLock(folder / _HELD)
            held.acquire()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            held.release()

    def _temporary(self) -> Path:
        self.root.mkdir(parents=True, exist_ok=True)
        return self.root / f".{uuid.uuid4().hex}.tmp"

    def _publish(self, temporary: Path, target: Path) -> None:
        target.parent.mkdir(exist_ok=True)
        temporary.chmod(0o444)
        temporary.replace(target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _unreadable(address: str, path: Path, error: OSError) -> IntegrityError:
    return IntegrityError(
        f"object {address} cannot be read: {error.strerror}", hint=f"Restore {path} from a copy of this home."
    )


def _other_bytes(address: str, found: str) -> IntegrityError:
    return IntegrityError(
        f"object {address} holds other bytes: they hash to {found}", hint="Restore it from a copy of this home."
    )
