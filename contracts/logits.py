"""Full logits of a measurement, kept on request and only for a while.

Evidence keeps a dozen figures per position; the logits behind them are thousands of times larger and can be measured
again, so they never become objects and never enter a certificate. They lie in a folder of their own as safetensors
files, one for each run of prompts that fills a chunk, with a manifest that says what is where and until when:

    {"expires": "2026-12-07T12:00:00Z", "evidence": "blake3-object-v1:...",
     "files": {"serving/prefill/p1": "0.safetensors"}}
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from snapline.lineage.cut import Instant
from snapline.lineage.documents import Received
from snapline.lineage.errors import DefinitionError

MANIFEST = "manifest.json"
LOGITS = "logits"
"""Where a home keeps them."""
CHUNK_BYTES = 1 << 28


class LogitsManifest(Received):
    """What a folder of logits holds.

    Attributes:
        expires: When it may be removed.
        evidence: Address of the evidence they were measured with; None while they are being measured.
        files: The file of each array by its key, `SIDE/PATH/PROMPT`, which is also its name in the file.
    """

    expires: Instant
    evidence: str | None = None
    files: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """One folder of logits and how large it is."""

    folder: Path
    manifest: LogitsManifest
    size_bytes: int


class LogitsKeeper:
    """Writes the logits of one measurement.

    The manifest is written before any logits, so that what an interrupted measurement leaves behind expires too.

    Args:
        folder: Where they go; it must not exist yet.
        expires: When they may be removed.
        chunk: How many bytes are held before a file is written, about.

    Raises:
        DefinitionError: The folder is there already, or cannot be made.
    """

    def __init__(self, folder: Path, expires: datetime, chunk: int = CHUNK_BYTES) -> None:
        self.folder = folder
        self._manifest = LogitsManifest(expires=expires)
        self._chunk = chunk
        self._waiting: dict[str, Any] = {}
        self._waiting_bytes = 0
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise DefinitionError(f"cannot make {folder}: {error.strerror}", hint="Name a new folder.") from error
        self._write_manifest()

    def keep(self, prompt: str, side: str, path: str, logits: Any) -> None:
        """Keep one prompt's logits, a tensor on the CPU of shape (positions, vocabulary), in its own dtype.

        Raises:
            DefinitionError: Those of that prompt, side and path were kept before.
        """
        key = f"{side}/{path}/{prompt}"
        if key in self._manifest.files or key in self._waiting:
            raise DefinitionError(f"the logits {key} were kept before", hint="Keep each comparison's logits once.")
        # A copy: rows are views into a batch that would otherwise stay in memory as a whole.
        self._waiting[key] = logits.detach().contiguous().clone()
        self._waiting_bytes += logits.numel() * logits.element_size()
        if self._waiting_bytes >= self._chunk:
            self._flush()

    def close(self, evidence: str | None = None) -> LogitsManifest:
        """Write what is left, and the address of the evidence they belong to."""
        self._flush()
        self._manifest = self._manifest.model_copy(update={"evidence": evidence})
        self._write_manifest()
        return self._manifest

    def discard(self) -> None:
        """Remove the folder and whatever was kept in it."""
        shutil.rmtree(self.folder)

    def _flush(self) -> None:
        from safetensors.torch import save_file

        if not self._waiting:
            return
        name = f"{len(set(self._manifest.files.values()))}.safetensors"
        save_file(self._waiting, self.folder / name)
        files = self._manifest.files | dict.fromkeys(self._waiting, name)
        self._manifest = self._manifest.model_copy(update={"files": files})
        self._write_manifest()
        self._waiting, self._waiting_bytes = {}, 0

    def _write_manifest(self) -> None:
        temporary = self.folder / f".{MANIFEST}.tmp"
        temporary.write_text(self._manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        temporary.replace(self.folder / MANIFEST)


def kept(root: Path) -> list[Kept]:
    """Return the folders of logits under a root, those that expire first at the head; other folders are left out."""
    found = []
    for manifest in root.glob(f"*/{MANIFEST}"):
        try:
            read = LogitsManifest.model_validate_json(manifest.read_bytes())
        except ValidationError:
            continue
        size = sum(file.stat().st_size for file in manifest.parent.iterdir() if file.is_file())
        found.append(Kept(manifest.parent, read, size))
    return sorted(found, key=lambda one: (one.manifest.expires, one.folder))


def expire(root: Path, now: datetime) -> list[Kept]:
    """Remove every folder of logits under a root that has expired by `now`, and return what was removed."""
    expired = [one for one in kept(root) if one.manifest.expires <= now]
    for one in expired:
        # The manifest goes last, so that what an interrupted removal leaves is found again.
        for file in one.folder.glob("*.safetensors"):
            file.unlink()
        shutil.rmtree(one.folder)
    return expired
