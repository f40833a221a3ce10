"""What a folder of weights may hold: regular files, at least one of them weights, and no pickle unless admitted."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.files import FileStamp, stamp_of

SAFETENSORS = ".safetensors"
_WEIGHT_SUFFIXES = (SAFETENSORS, ".gguf", ".onnx")
_PICKLE_SUFFIXES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib"}
# Pickle protocols 2 to 5, and the zip archive that PyTorch and NumPy put pickles in. Protocols 0 and 1 have no magic.
_PICKLE_MAGIC = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")
_IRREGULAR = {"l": "a symbolic link", "p": "a named pipe", "s": "a socket", "b": "a device", "c": "a device"}


def require_folder(folder: Path) -> None:
    """Raise unless `folder` is a real folder, named without links at its end and without `..`.

    Raises:
        NotFoundError: There is none.
        DefinitionError: It is a link, a file, or named by a detour.
    """
    if ".." in folder.parts or folder.is_symlink():
        raise DefinitionError(
            f"{folder} is a symbolic link or holds '..'", hint="Name the folder that really holds the weights."
        )
    if not folder.exists():
        raise NotFoundError(f"no folder {folder}", hint="Check the path.")
    if not folder.is_dir():
        raise DefinitionError(f"{folder} is not a folder", hint="Name the folder that holds the weights.")


def scan(folder: Path) -> tuple[dict[str, FileStamp], dict[str, str]]:
    """Return the stamps of the regular files under a folder, and what is wrong with everything else, by path."""

    def unreadable(error: OSError) -> None:
        raise DefinitionError(
            f"{error.filename} cannot be read: {error.strerror}", hint="Make the folder readable, or name another."
        ) from error

    stamps, refused = {}, {}
    for parent, folders, names in os.walk(folder, onerror=unreadable):
        for path in (Path(parent, name) for name in (*folders, *names)):
            relative, mode = path.relative_to(folder).as_posix(), os.lstat(path).st_mode
            if not _is_text(relative):
                refused[os.fsencode(relative).decode("utf-8", "backslashreplace")] = "has a name that is not UTF-8"
            elif stat.S_ISREG(mode) and os.access(path, os.R_OK):
                stamps[relative] = stamp_of(path)
            elif not stat.S_ISDIR(mode):
                refused[relative] = f"is {_IRREGULAR.get(stat.filemode(mode)[0], 'not readable')}"
    return stamps, refused


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def refuse_unusable(folder: Path, files: Iterable[str], refused: Mapping[str, str], *, allow_pickle: bool) -> None:
    """Raise unless what `scan` found is a folder of weights that may be registered.

    Raises:
        DefinitionError: It is not; the message names the file.
    """
    for path, what in sorted(refused.items()):
        raise DefinitionError(f"{folder / path} {what}", hint="A weights folder may hold regular files only.")
    paths = set(files)
    pickles = {path for path in paths if _may_unpickle(folder / path)}
    if pickles and not allow_pickle:
        raise DefinitionError(
            f"{folder / min(pickles)} is a pickle, or an archive that may hold one; loading it runs its code",
            hint="Save the weights as safetensors, or pass --allow-pickle if you trust whoever wrote it.",
        )
    if not pickles and not any(PurePosixPath(path).suffix.lower() in _WEIGHT_SUFFIXES for path in paths):
        raise DefinitionError(
            f"{folder} holds no weights: expected a file named *{', *'.join(_WEIGHT_SUFFIXES)}",
            hint="Name the folder the weights were written to.",
        )
    for path in sorted(paths):
        if path.endswith(f"{SAFETENSORS}.index.json"):
            _check_index(folder, path, paths)


def _may_unpickle(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix == SAFETENSORS:  # its first bytes are a length, which may well look like a pickle's
        return False
    with path.open("rb") as stream:
        head = stream.read(4096)
    return suffix in _PICKLE_SUFFIXES or head.startswith(_PICKLE_MAGIC) or _numpy_objects(head)


def _numpy_objects(head: bytes) -> bool:
    # A .npy file of dtype object is a pickle behind a header that says so.
    return head.startswith(b"\x93NUMPY") and b"|O" in head


def _check_index(folder: Path, path: str, paths: set[str]) -> None:
    """Refuse an index of shards that would send a loader to a file that is not hashed, such as `../other`."""
    try:
        content = json.loads((folder / path).read_bytes())
        shards = set(content["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DefinitionError(
            f"{folder / path} is not an index of shards: {error!r}", hint="Restore it from where the weights came from."
        ) from error
    for shard in sorted(map(str, shards)):
        if str(PurePosixPath(path).parent / shard) not in paths:
            raise DefinitionError(
                f"{folder / path} names {shard!r}, which is no file of the folder", hint="Put every shard beside it."
            )
