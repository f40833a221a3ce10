"""Iceberg's way to files, with S3 reached by the rules of the AWS SDK: pyiceberg's own ignores AWS_ENDPOINT_URL."""

from __future__ import annotations

from functools import cache

from pyarrow.fs import FileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

_S3 = ("s3", "s3a", "s3n")


class IcebergFiles(PyArrowFileIO):
    """Files as pyiceberg opens them, but for S3 where the table itself names no endpoint."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        others = self.fs_by_scheme

        @cache
        def open_store(scheme: str, place: str | None = None) -> FileSystem:
            if scheme in _S3 and "s3.endpoint" not in properties:
                return FileSystem.from_uri(f"s3://{place}")[0]
            return others(scheme, place)

        self.fs_by_scheme = open_store
