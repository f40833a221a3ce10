"""Files in an S3-compatible object store, through Arrow's own client.

Arrow brings the client that reads Parquet row group by row group, so neither fsspec nor s3fs is needed; it is released
with the reader and takes no Python per block. Credentials, region and endpoint come from the environment and the
configuration files by the rules of the AWS SDK. (Of Arrow 25's two ways to open S3, only the one by URI reads
AWS_ENDPOINT_URL, hence `FileSystem.from_uri`.)

Object stores date objects to the second. An object replaced by one of the same size within a second keeps its stamp, so
a stamp is worth less here than that of a local file. While one source is read, entity tags tell such objects apart;
listings do not carry them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pyarrow as pa
from pyarrow import fs

from snapline.lineage.digest import CHUNK_BYTES, BulkAlgorithm, hasher
from snapline.lineage.errors import ConflictError, NotFoundError
from snapline.lineage.files import FileStamp
from snapline.lineage.sources.location import HIDDEN, SUFFIX, no_files, refuse_value

_SECOND_NS = 10**9


class RemoteFiles:
    """The objects below one prefix.

    Args:
        url: `s3://bucket/prefix`; the key is not percent-encoded.
    """

    def __init__(self, url: str) -> None:
        self.place = url
        self._path = url.removeprefix("s3://").rstrip("/")
        self._root = self._path
        self._fresh: dict[str, FileStamp] = {}
        self._seen: dict[str, tuple[FileStamp, bytes]] = {}
        with self._reaching():
            self._fs, _ = fs.FileSystem.from_uri(f"s3://{self._path.partition('/')[0]}")

    def parquet(self) -> dict[str, FileStamp]:
        """Return the Parquet files and their stamps from one listing; see `Files.parquet`."""
        with self._reaching():
            itself = self._fs.get_file_info(self._path)
        if itself.is_file:
            self._root, _, name = self._path.rpartition("/")
            self._fresh = {name: _stamp(itself.size, itself.mtime_ns)}
            return dict(self._fresh)
        self.look()
        if not self._fresh:
            raise NotFoundError(f"nothing below {self.place}", hint="Put it back, or name the source anew.")
        listed = {name: stamp for name, stamp in sorted(self._fresh.items()) if self._counts(name)}
        if not listed:
            raise no_files(self.place)
        return listed

    def look(self) -> None:
        """Note the stamps of all files from one listing; each is used once."""
        with self._reaching():
            found = self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True, recursive=True))
        self._fresh = {
            info.path.removeprefix(f"{self._root}/"): _stamp(info.size, info.mtime_ns) for info in found if info.is_file
        }

    def _counts(self, name: str) -> bool:
        *folders, last = name.split("/")
        if any(part.startswith(HIDDEN) for part in (*folders, last)):
            return False
        for depth in range(len(folders)):
            refuse_value("/".join([self.place, *folders[: depth + 1]]))
        return last.endswith(SUFFIX)

    def inside(self, folder: str) -> tuple[str, ...]:
        """Return the names of the files right inside a folder."""
        with self._reaching():
            found = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True))
        return tuple(info.base_name for info in found if info.is_file)

    def stamp(self, name: str) -> FileStamp:
        """Return a file's size and modification time; see `open` for when it is refused.

        The first answer after a listing is what that said, so that looking at all files of a table costs one listing.
        """
        listed = self._fresh.pop(name, None)
        if listed is not None:
            return listed
        with self._reaching(), self.open(name):
            return self._seen[name][0]

    def read(self, name: str) -> bytes:
        """Return the bytes of a small file."""
        with self._reaching(), self.open(name) as stream:
            return bytes(stream.read())

    def hexdigest(self, name: str, algorithm: BulkAlgorithm) -> str:
        """Return the hex digest of a file's bytes."""
        before, state = self.stamp(name), hasher(algorithm)
        with self._reaching(), self.open(name) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                state.update(chunk)
        if self.stamp(name) != before:
            raise _changed(name, self.place)
        return state.hexdigest()

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reading anywhere in it.

        Raises:
            ConflictError: It was replaced since it was last opened, and its stamp does not say so.
        """
        stream = self._fs.open_input_file(f"{self._root}/{name}")
        said = stream.metadata()
        written = datetime.fromisoformat(said["Last-Modified"].decode())
        stamp, tag = _stamp(stream.size(), int(written.timestamp()) * _SECOND_NS), said.get("ETag", b"")
        earlier, self._seen[name] = self._seen.get(name), (stamp, tag)
        if earlier is not None and earlier[0] == stamp and earlier[1] != tag:
            stream.close()
            raise _changed(name, self.place)
        return stream

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(
                f"no such file in {self.place}: {error}", hint="Put it back, or read a newer commit."
            ) from error
        except (OSError, pa.ArrowException) as error:
            raise NotFoundError(
                f"{self.place} cannot be reached: {error}",
                hint="Check the URL, and the AWS_* variables: credentials, AWS_REGION, and AWS_ENDPOINT_URL for a "
                "server of your own.",
            ) from error


def _stamp(size: int, modified_ns: int) -> FileStamp:
    """Return an object's stamp, to the second: a listing may say more than opening the object does."""
    return FileStamp(size_bytes=size, mtime_ns=modified_ns // _SECOND_NS * _SECOND_NS, ctime_ns=0, inode=0)


def _changed(name: str, place: str) -> ConflictError:
    return ConflictError(
        f"{name} in {place} changed while it was read", hint="Wait until nothing writes to it and run this again."
    )
