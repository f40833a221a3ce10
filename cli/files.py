"""Files that a person asked for by name."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        DefinitionError: It cannot be written there.
    """
    from snapline.lineage.errors import DefinitionError

    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DefinitionError(f"cannot write {path}: {error.strerror}", hint="Name a file you may write.") from error
