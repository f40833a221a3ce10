"""What an object store adds to a source: what counts as a file, dates to the second, and servers that are not there."""

from __future__ import annotations

import json
import logging
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_logs import inline_deletion_vector
from source_rows import flights
from source_tables import ALLOW_HTTP, BUCKET, bucket, put_object

from snapline.lineage.digest import BulkAlgorithm, bytes_hex
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.sources.opening import open_source
from snapline.lineage.sources.protocol import Source

BLAKE3 = BulkAlgorithm.BLAKE3


@pytest.fixture
def prefix(s3: str) -> str:
    """A prefix of this test's own."""
    return f"t{uuid.uuid4().hex}"


def opened(prefix: str) -> Source:
    return open_source(f"s3://{BUCKET}/{prefix}", BLAKE3)


def written(key: str, table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data: bytes = sink.getvalue().to_pybytes()
    put_object(key, data)
    return data


def read(source: Source, name: str) -> pa.Table:
    return pa.concat_tables(source.scan(source.commit(), name, "time", None, None))


def test_the_objects_of_a_prefix_count_as_files_of_a_folder_do(prefix: str) -> None:
    for name in ("b.parquet", "a/z.parquet", "_log/c.parquet", ".d.parquet", "_e.parquet", "a/notes.txt"):
        written(f"{prefix}/{name}", flights([1]))
    written(f"{prefix}2/other.parquet", flights([2]))
    source = opened(prefix)
    assert source.names(source.commit()) == ("a/z.parquet", "b.parquet")


def test_one_object_is_a_table(prefix: str) -> None:
    data = written(f"{prefix}/rows", flights([1]))
    source = opened(f"{prefix}/rows")
    assert source.names(source.commit()) == ("rows",)
    assert source.hexdigest("rows") == bytes_hex(data, BLAKE3)
    assert read(source, "rows").equals(flights([1]).cast(read(source, "rows").schema))


def test_keys_may_hold_spaces_signs_and_percents(prefix: str) -> None:
    name = "sp ace %20+&?#é/rows.parquet"
    written(f"{prefix}/{name}", flights([1]))
    source = opened(prefix)
    assert source.names(source.commit()) == (name,)
    assert read(source, name)["key"].to_pylist() == [1]
    assert len(source.hexdigest(name)) == 64


def test_a_prefix_that_holds_values_of_a_column_is_refused(prefix: str) -> None:
    written(f"{prefix}/year=2013/a.parquet", flights([1]))
    with pytest.raises(DefinitionError, match="year=2013 holds the value of a column"):
        opened(prefix).commit()


def test_nothing_and_no_parquet_below_a_prefix_are_not_found(prefix: str) -> None:
    with pytest.raises(NotFoundError, match="nothing below"):
        opened(prefix).commit()
    put_object(f"{prefix}/notes.txt", b"not rows")
    with pytest.raises(NotFoundError, match=r"no \.parquet file"):
        opened(prefix).commit()
    with pytest.raises(NotFoundError):
        open_source("s3://nowhere/rows", BLAKE3).commit()


def test_a_stamp_is_size_and_date_and_the_same_however_it_is_asked_for(prefix: str) -> None:
    data = written(f"{prefix}/a.parquet", flights([1]))
    source = opened(prefix)
    source.commit()
    listed, asked = source.stamp("a.parquet"), source.stamp("a.parquet")
    assert listed == asked
    assert (listed.size_bytes, listed.ctime_ns, listed.inode) == (len(data), 0, 0)
    assert listed.mtime_ns > 0


def test_an_object_of_the_same_size_and_second_is_told_apart_while_it_is_read(prefix: str) -> None:
    data = written(f"{prefix}/a.parquet", flights([1]))
    source = opened(prefix)
    commit = source.commit()
    hexdigest = source.hexdigest("a.parquet")
    other = flights([2])
    while True:  # until the server's clock gave both the same second
        assert len(written(f"{prefix}/a.parquet", other)) == len(data)
        if opened(prefix).commit() == commit:
            break
        put_object(f"{prefix}/a.parquet", data)
        source = opened(prefix)
        commit, hexdigest = source.commit(), source.hexdigest("a.parquet")
    with pytest.raises(ConflictError, match=r"a\.parquet .*changed while it was read"):
        list(source.scan(commit, "a.parquet", "time", None, None))
    assert source.hexdigest("a.parquet") != hexdigest


def test_an_object_that_was_removed_is_not_found(prefix: str) -> None:
    written(f"{prefix}/a.parquet", flights([1]))
    written(f"{prefix}/b.parquet", flights([2]))
    source = opened(prefix)
    source.stamp(source.names(source.commit())[0])
    bucket().delete_object(Bucket=BUCKET, Key=f"{prefix}/a.parquet")
    for look in (source.stamp, source.hexdigest):
        with pytest.raises(NotFoundError, match="no such file"):
            look("a.parquet")


@pytest.mark.parametrize("kind", ["", "delta:"])
def test_looking_at_every_file_costs_no_request_beyond_the_listing(
    prefix: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    from deltalake import write_deltalake

    url = f"s3://{BUCKET}/{prefix}"
    for key in range(3):
        write_deltalake(url, flights([key]), mode="append", storage_options=ALLOW_HTTP)
    source = open_source(f"{kind}{url}", BLAKE3)
    names = source.names(source.commit())
    with caplog.at_level(logging.INFO, logger="werkzeug"):
        listed = [source.stamp(name) for name in names]
        assert len(names) == 3
        assert caplog.messages == []
        assert [source.stamp(name) for name in names] == listed
        assert len(caplog.messages) == 3


def test_deletion_vectors_of_a_table_in_the_store_are_read(prefix: str) -> None:
    from deltalake import write_deltalake

    url = f"s3://{BUCKET}/{prefix}"
    options = {"configuration": {"delta.enableDeletionVectors": "true"}, "partition_by": ["carrier"]}
    write_deltalake(url, flights(range(4), "a b%"), storage_options=ALLOW_HTTP, **options)
    log = f"{prefix}/_delta_log/{0:020}.json"
    actions = [json.loads(line) for line in bucket().get_object(Bucket=BUCKET, Key=log)["Body"].read().splitlines()]
    next(action["add"] for action in actions if "add" in action)["deletionVector"] = inline_deletion_vector([1, 2])
    put_object(log, "\n".join(map(json.dumps, actions)).encode())
    source = open_source(f"delta:{url}", BLAKE3)
    (name,) = source.names(source.commit())
    assert read(source, name)["key"].to_pylist() == [0, 3]


def test_a_server_that_is_not_there_is_not_found(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(NotFoundError, match="cannot be reached") as caught:
        open_source(f"s3://{BUCKET}/rows", BLAKE3).commit()
    assert "AWS_ENDPOINT_URL" in caught.value.hint


@pytest.mark.parametrize("name", ["a b", "a%20b", "a#b", "a?b", "ü"])
def test_a_key_that_deltalake_takes_for_another_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="reads another place"):
        open_source(f"delta:s3://{BUCKET}/{name}", BLAKE3)


@pytest.mark.parametrize("kind", ["", "delta:"])
def test_a_folder_of_a_bucket_is_not_a_table_of_another_kind(prefix: str, kind: str) -> None:
    put_object(f"{prefix}/a.csv", b"key\n1\n")
    with pytest.raises(NotFoundError):
        open_source(f"{kind}s3://{BUCKET}/{prefix}", BLAKE3).commit()
