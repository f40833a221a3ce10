"""Where the files of a source lie: all a gate needs of a source, so nothing here imports what reads rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.files import FileStamp, hash_file, stamp_of

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".parquet"
HIDDEN = (".", "_")


class Files(Protocol):
    """The files below one place, named by their paths there.

    Methods raise NotFoundError when the place or a file is gone or cannot be reached.
    """

    @property
    def place(self) -> str:
        """The place, as people know it."""

    def parquet(self) -> dict[str, FileStamp]:
        """Return the Parquet files and their stamps, by name, sorted.

        At any depth, the files that end in `.parquet` count; names that begin with `.` or `_` do not. Where the place
        is a file itself, it is the only one, whatever its name.

        Raises:
            DefinitionError: Rows or columns would be missed: a folder is a link, or is named `column=value`.
        """

    def look(self) -> None:
        """Note the stamps of all files at once, where asking for each takes long."""

    def inside(self, folder: str) -> tuple[str, ...]:
        """Return the names of the files right inside a folder, without the folder; none when it is not there."""

    def stamp(self, name: str) -> FileStamp:
        """Return a file's stamp."""

    def read(self, name: str) -> bytes:
        """Return the bytes of a small file."""

    def hexdigest(self, name: str, algorithm: BulkAlgorithm) -> str:
        """Return the hex digest of a file's bytes.

        Raises:
            ConflictError: The file changed while it was read.
        """

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reading anywhere in it; raises OSError as Arrow does."""


def files_at(place: str) -> Files:
    """Return the files of a local path or an `s3://` URL."""
    if place.startswith("s3://"):
        from snapline.lineage.sources.remote import RemoteFiles

        return RemoteFiles(place)
    return LocalFiles(Path(place))


class LocalFiles:
    """Files on this machine.

    Args:
        path: A folder, or a file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._root = path.parent if path.is_file() else path

    @property
    def place(self) -> str:
        """The path."""
        return str(self.path)

    def parquet(self) -> dict[str, FileStamp]:
        """Return the Parquet files and their stamps; see `Files.parquet`."""
        folder, names = locate(self.path)
        return {name: stamp_of(f"{folder}/{name}") for name in names}

    def look(self) -> None:
        """Do nothing: a local file's stamp is at hand."""

    def inside(self, folder: str) -> tuple[str, ...]:
        """Return the names of the files right inside a folder."""
        try:
            return tuple(path.name for path in (self._root / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def stamp(self, name: str) -> FileStamp:
        """Return what a file's stat says."""
        return stamp_of(f"{self._root}/{name}")

    def read(self, name: str) -> bytes:
        """Return the bytes of a small file."""
        path = self._root / name
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"no file {path}", hint="Put it back, or read a newer commit.") from error

    def hexdigest(self, name: str, algorithm: BulkAlgorithm) -> str:
        """Return the hex digest of a file's bytes."""
        return hash_file(self._root, name, algorithm).hexdigest

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reading anywhere in it."""
        import pyarrow as pa

        return pa.OSFile(str(self._root / name))


def locate(source: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the folder of a Parquet source and its files: paths below that folder, sorted.

    Raises:
        NotFoundError: The source is gone, or the folder has no Parquet file.
        DefinitionError: Rows or columns would be missed: a folder inside is a link, or is named `column=value`.
    """
    if source.is_file():
        return source.parent, (source.name,)
    if not source.is_dir():
        raise NotFoundError(f"no Parquet file or folder {source}", hint="Put it back, or name the source anew.")
    found: list[str] = []
    for folder, below, names in os.walk(source):
        below[:] = [name for name in below if not name.startswith(HIDDEN)]
        for name in below:
            if Path(folder, name).is_symlink():
                raise DefinitionError(
                    f"{Path(folder, name)} is a link to a folder", hint="Put the files there themselves."
                )
            refuse_value(f"{folder}/{name}")
        visible = (name for name in names if name.endswith(SUFFIX) and not name.startswith(HIDDEN))
        inside = os.path.relpath(folder, source)
        found += [name if inside == os.curdir else f"{inside}/{name}" for name in visible]
    if not found:
        raise no_files(str(source))
    return source, tuple(sorted(found))


def refuse_value(folder: str) -> None:
    """Pass when a folder's name holds no value of a column.

    Raises:
        DefinitionError: It is named `column=value`.
    """
    if "=" in folder.rpartition("/")[2]:
        raise DefinitionError(
            f"the folder name {folder} holds the value of a column, and only files are read",
            hint="Write that column into the files.",
        )


def no_files(place: str) -> NotFoundError:
    """Return the error of a folder without Parquet files."""
    return NotFoundError(f"no .parquet file in the folder {place}", hint="Name a folder that holds the table.")
