"""Makers of the same table in every place a source reads, and of what happens to tables there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

KEY, TIME, BUCKET = "key", "time", "tables"
ALLOW_HTTP = {"allow_http": "true"}


class Maker(Protocol):
    """One table in one place. A fresh maker is made for each test, and `create` is called once, before the rest.

    Attributes:
        name: What the tests call it.
        travels: Whether commits before the newest can be read.
        appends: Whether an append leaves the files that are there as they are.
        remote: Whether it needs the S3 server (then the environment says where that is).
        cannot_hold: Columns of `source_rows.every_type` whose type the format has no place for.
    """

    name: ClassVar[str]
    travels: ClassVar[bool]
    appends: ClassVar[bool]
    remote: ClassVar[bool]
    cannot_hold: ClassVar[frozenset[str]]

    def create(self, folder: Path, table: pa.Table) -> str:
        """Make the table with its first rows, in an empty folder or under that folder's name; return its spec."""

    def append(self, table: pa.Table) -> None:
        """Add rows of the same columns, in one commit."""

    def overwrite(self, table: pa.Table) -> None:
        """Put each row in the place of the one with its key, in one commit as a reader sees it."""

    def delete(self, keys: Sequence[int]) -> None:
        """Delete the rows of some keys."""

    def replace(self, table: pa.Table) -> None:
        """Put a whole table, whose columns may be other ones, in the place of the one that is there."""

    def expire(self) -> None:
        """Make the first commit unreadable; called only after it was overwritten, and only if the source travels."""

    def drop(self) -> None:
        """Take the whole table away."""


def without(table: pa.Table, keys: Sequence[int]) -> pa.Table:
    """Return the rows of other keys."""
    return table.filter(pc.invert(pc.is_in(table.column(KEY), pa.array(keys, table.schema.field(KEY).type))))


def corrected(table: pa.Table, rows: pa.Table) -> pa.Table:
    """Return a table in which each row was put in the place of the one with its key."""
    return pa.concat_tables([without(table, rows.column(KEY).to_pylist()), rows])


class ParquetFile:
    """One local file, written anew for every change."""

    name = "parquet file"
    travels = False
    appends = False
    remote = False
    cannot_hold: ClassVar[frozenset[str]] = frozenset()

    def create(self, folder: Path, table: pa.Table) -> str:
        self.path = folder / "table.parquet"
        self.replace(table)
        return str(self.path)

    def append(self, table: pa.Table) -> None:
        rows = self._rows()
        self.replace(pa.concat_tables([rows, table.cast(rows.schema)]))

    def overwrite(self, table: pa.Table) -> None:
        self.replace(corrected(self._rows(), table))

    def delete(self, keys: Sequence[int]) -> None:
        self.replace(without(self._rows(), keys))

    def replace(self, table: pa.Table) -> None:
        pq.write_table(table, self.path, row_group_size=4)

    def drop(self) -> None:
        self.path.unlink()

    def expire(self) -> None:
        raise NotImplementedError

    def _rows(self) -> pa.Table:
        with pq.ParquetFile(self.path) as file:
            return file.read()


class ParquetFolder:
    """A local folder of files; what changes a row rewrites the files that hold it."""

    name = "parquet folder"
    travels = False
    appends = True
    remote = False
    cannot_hold: ClassVar[frozenset[str]] = frozenset()

    def create(self, folder: Path, table: pa.Table) -> str:
        self.folder, self.files = folder / "table", {}
        self._write("a/0.parquet", table.slice(0, table.num_rows // 2))
        self._write("b/1.parquet", table.slice(table.num_rows // 2))
        return str(self.folder)

    def append(self, table: pa.Table) -> None:
        self._write(f"c/{len(self.files)}.parquet", table)

    def overwrite(self, table: pa.Table) -> None:
        keys = table.column(KEY).to_pylist()
        for name, rows in self.files.items():
            there = rows.filter(pc.is_in(rows.column(KEY), pa.array(keys))).column(KEY)
            if len(there):
                self._write(name, corrected(rows, table.filter(pc.is_in(table.column(KEY), there))))

    def delete(self, keys: Sequence[int]) -> None:
        for name, rows in self.files.items():
            if without(rows, keys).num_rows < rows.num_rows:
                self._write(name, without(rows, keys))

    def replace(self, table: pa.Table) -> None:
        self.drop()
        self.files = {}
        self._write("d/0.parquet", table)

    def drop(self) -> None:
        shutil.rmtree(self.folder)

    def expire(self) -> None:
        raise NotImplementedError

    def _write(self, name: str, table: pa.Table) -> None:
        self.files[name] = table
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=4)


class ParquetOnS3(ParquetFolder):
    """The same files as objects below a prefix."""

    name = "parquet on s3"
    remote = True

    def create(self, folder: Path, table: pa.Table) -> str:
        self.prefix = folder.name
        super().create(folder, table)
        return f"s3://{BUCKET}/{self.prefix}"

    def drop(self) -> None:
        client = bucket()
        for name in self.files:
            client.delete_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")

    def _write(self, name: str, table: pa.Table) -> None:
        self.files[name] = table
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=4)
        put_object(f"{self.prefix}/{name}", sink.getvalue().to_pybytes())


class DeltaTables:
    """A local Delta table."""

    name = "delta"
    travels = True
    appends = True
    remote = False
    cannot_hold: ClassVar[frozenset[str]] = frozenset(
        {"uint8", "uint16", "uint32", "uint64", "float16", "time_of_day", "duration", "decimal256", "nanoseconds"}
    )

    def create(self, folder: Path, table: pa.Table) -> str:
        self.url = self._url(folder)
        self._write(table, mode="error")
        return f"delta:{self.url}"

    def append(self, table: pa.Table) -> None:
        self._write(table, mode="append")

    def overwrite(self, table: pa.Table) -> None:
        merge = self._table().merge(table, f"old.{KEY} = new.{KEY}", source_alias="new", target_alias="old")
        merge.when_matched_update_all().execute()

    def delete(self, keys: Sequence[int]) -> None:
        self._table().delete(f"{KEY} IN ({', '.join(map(str, keys))})")

    def replace(self, table: pa.Table) -> None:
        self._write(table, mode="overwrite", schema_mode="overwrite")

    def expire(self) -> None:
        self._table().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    def drop(self) -> None:
        shutil.rmtree(self.url)

    def _url(self, folder: Path) -> str:
        return str(folder / "table")

    def _table(self):
        from deltalake import DeltaTable

        return DeltaTable(self.url, storage_options=ALLOW_HTTP)

    def _write(self, table: pa.Table, **options: str) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.url, table, storage_options=ALLOW_HTTP, **options)


class DeltaOnS3(DeltaTables):
    """A Delta table in the object store."""

    name = "delta on s3"
    remote = True

    def drop(self) -> None:
        client, prefix = bucket(), self.url.removeprefix(f"s3://{BUCKET}/")
        for item in client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/")["Contents"]:
            client.delete_object(Bucket=BUCKET, Key=item["Key"])

    def _url(self, folder: Path) -> str:
        return f"s3://{BUCKET}/{folder.name}"


def bucket():
    """Return a client of the server that the environment names, which has the bucket."""
    import boto3

    return boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])


def put_object(key: str, data: bytes) -> None:
    bucket().put_object(Bucket=BUCKET, Key=key, Body=data)


MAKERS: list[type[Maker]] = [ParquetFile, ParquetFolder, ParquetOnS3, DeltaTables, DeltaOnS3]
