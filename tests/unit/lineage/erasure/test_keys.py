"""Keys of an erasure request are read exactly, or the file is refused at the place that is wrong."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snapline.lineage.erasure.keys import KeyColumn, read_keys
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.rows.encoding import columns_of
from snapline.lineage.rows.hashes import key_hashes

IDS = KeyColumn("trips", "id", "int64")


def keys_in(path: Path, text: str, column: KeyColumn = IDS) -> list[object]:
    path.write_text(text, encoding="utf-8")
    return read_keys(path, [column])[0].to_pylist()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.csv"


@pytest.mark.parametrize(
    "text",
    [
        "id\n1\n2\n",
        "id\r\n1\r\n2\r\n",
        "\ufeffid\n1\n2",
        " id \n 1\n2 \n\n\n",
        'name,id\nx,1\n"a\nb",2\n',
        '"id"\n"1"\n"2"',
    ],
    ids=["plain", "windows", "marked", "spaced", "several columns", "quoted"],
)
def test_csv_as_people_write_it_is_read(file, text):
    assert keys_in(file, text) == [1, 2]


@pytest.mark.parametrize(
    ("logical", "written", "meant"),
    [
        ("int8", "-7", -7),
        ("uint64", "18446744073709551615", 2**64 - 1),
        ("float64", "0.5", 0.5),
        ("bool", "true", True),
        ("string", " a b ", " a b "),
        ("date", "2013-01-02", date(2013, 1, 2)),
        ("decimal(9,2)", "1.50", Decimal("1.50")),
        ("timestamp", "2013-01-02T03:04:05", datetime(2013, 1, 2, 3, 4, 5)),  # noqa: DTZ001
        ("timestamp[utc]", "2013-01-02T03:04:05Z", datetime(2013, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("timestamp[utc]", "2013-01-02T05:04:05+02:00", datetime(2013, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ],
)
def test_text_becomes_the_type_of_the_key(file, logical, written, meant):
    assert keys_in(file, f"id\n{written}\n", KeyColumn("trips", "id", logical)) == [meant]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id\n1\nx\n3\n", r"line 3: 'x' is no int64, as the keys of 'trips' are"),
        ("id\n1\n\n2.5\n", r"line 4: '2\.5' is no int64"),
        ("id\n9223372036854775808\n", r"line 2: '9223372036854775808' is no int64"),
        ("name,id\nx,1\ny,\n", "line 3: expected a key, found nothing"),
        ("name,id\nx,1\ny\n", "line 3: expected 2 cells, found 1"),
        ("identity\n1\n", "expected one column named 'id', as the key is; its columns are identity"),
        ("1\n2\n", "expected one column named 'id'"),
        ("id,id\n1,2\n", "expected one column named 'id'"),
        ("", "its columns are none"),
        ("id\n", "lists no key"),
        ("id\n\n\n", "lists no key"),
        ('id\n"1\n', "line 2: cannot be read as CSV"),
    ],
)
def test_csv_that_is_wrong_is_refused_at_its_line(file, text, message):
    with pytest.raises(DefinitionError, match=message):
        keys_in(file, text)


def test_csv_that_is_not_text_is_refused(file):
    file.write_bytes(b"id\n\xff\xfe\n")
    with pytest.raises(DefinitionError, match="is no UTF-8 text"):
        read_keys(file, [IDS])


@pytest.mark.parametrize("logical", ["binary", "duration", 'extension<"arrow.bool8",int8>'])
def test_types_that_text_cannot_spell_want_parquet(file, logical):
    with pytest.raises(DefinitionError, match="cannot be made from string") as caught:
        keys_in(file, "id\n1\n", KeyColumn("trips", "id", logical))
    assert "Parquet" in caught.value.hint


def parquet(tmp_path: Path, array: pa.Array, name: str = "keys.parquet") -> Path:
    path = tmp_path / name
    pq.write_table(pa.table({"id": array, "more": pa.nulls(len(array))}), path)
    return path


@pytest.mark.parametrize(
    ("array", "logical"),
    [
        (pa.array([1, 2], pa.int64()), "int64"),
        (pa.array([1, 2], pa.int8()), "int64"),
        (pa.array([1.0, 2.0]), "int64"),
        (pa.array(["1", " 2"]), "int64"),
        (pa.array([b"1", b"2"]), "binary"),
        (pa.array(["1", "2"]).dictionary_encode(), "string"),
        (pa.array([1, 2], pa.int64()), "string"),
    ],
)
def test_parquet_of_any_fitting_type_is_read(tmp_path, array, logical):
    (found,) = read_keys(parquet(tmp_path, array), [KeyColumn("trips", "id", logical)])
    assert [str(value) for value in found.to_pylist()] in (["1", "2"], ["b'1'", "b'2'"])


def test_parquet_is_known_by_its_content_whatever_its_name(tmp_path):
    (found,) = read_keys(parquet(tmp_path, pa.array([3]), "keys.csv"), [IDS])
    assert found.to_pylist() == [3]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array([1.0, 2.5]), r"row 2: 2\.5 is no int64"),
        (pa.array([1, None]), "row 2: expected a key, found nothing"),
        (pa.array(["1", "x"]), "row 2: 'x' is no int64"),
        (pa.array([], pa.int64()), "lists no key"),
        (pa.array([2**63], pa.uint64()), "row 1: 9223372036854775808 is no int64"),
    ],
)
def test_parquet_that_is_wrong_is_refused_at_its_row(tmp_path, array, message):
    with pytest.raises(DefinitionError, match=message):
        read_keys(parquet(tmp_path, array), [IDS])


def test_a_file_of_another_kind_or_none_is_refused(tmp_path):
    other = tmp_path / "keys.xlsx"
    other.write_bytes(b"PK\x03\x04")
    with pytest.raises(DefinitionError, match=r"expected a Parquet file or a \.csv file"):
        read_keys(other, [IDS])
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(parquet(tmp_path, pa.array([1])).read_bytes()[:-9])
    with pytest.raises(DefinitionError, match="cannot be read as Parquet"):
        read_keys(cut, [IDS])
    with pytest.raises(NotFoundError, match="no file"):
        read_keys(tmp_path / "gone.csv", [IDS])
    with pytest.raises(DefinitionError, match="cannot be read"):
        read_keys(tmp_path, [IDS])


def test_each_series_takes_its_own_column_in_its_own_type(file):
    file.write_text("id,number\n1,01\n2,02\n")
    found = read_keys(file, [IDS, KeyColumn("others", "number", "string"), KeyColumn("third", "id", "string")])
    assert [keys.to_pylist() for keys in found] == [[1, 2], ["01", "02"], ["1", "2"]]


UUIDS = KeyColumn("trips", "id", 'extension<"arrow.uuid",binary>')


def test_uuids_are_read_from_text_as_a_table_of_uuids_has_them(file):
    written = UUID("67e55044-10b1-426f-9247-bb680e5fe0c8")
    assert keys_in(file, f"id\n {str(written).upper()} \n", UUIDS) == [written]
    table = pa.table({"id": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([written.bytes], pa.binary(16)))})
    assert [column.type for column in columns_of(table.schema)] == [UUIDS.type]
    assert key_hashes(read_keys(file, [UUIDS])[0], "5a" * 32).tolist() == key_hashes(table["id"], "5a" * 32).tolist()


def test_a_text_that_is_no_uuid_is_refused_at_its_line(file):
    with pytest.raises(DefinitionError, match=r"line 3: 'abc' is no uuid, as the keys of 'trips' are"):
        keys_in(file, "id\n67e55044-10b1-426f-9247-bb680e5fe0c8\nabc\n", UUIDS)
