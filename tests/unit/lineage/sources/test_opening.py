from __future__ import annotations

import sys

import pytest

from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.sources.delta import DeltaSource
from snapline.lineage.sources.opening import normalise, open_source
from snapline.lineage.sources.parquet import ParquetSource

BLAKE3 = BulkAlgorithm.BLAKE3


@pytest.mark.parametrize(
    ("text", "recorded"),
    [
        ("rows.parquet", "HERE/rows.parquet"),
        ("a/../rows", "HERE/rows"),
        ("/data/rows/", "/data/rows"),
        ("./odd:name", "HERE/odd:name"),
        ("a#b", "HERE/a#b"),
        ("delta:rows", "delta:HERE/rows"),
        ("delta:/data/rows", "delta:/data/rows"),
        ("delta:s3://bucket/rows/", "delta:s3://bucket/rows"),
        ("s3://bucket/some rows/", "s3://bucket/some rows"),
        ("s3://bucket", "s3://bucket"),
        ("duckdb:rows.db#flights", "duckdb:HERE/rows.db#flights"),
        ("duckdb:a#b.db#main.flights", "duckdb:HERE/a#b.db#main.flights"),
        ("ducklake:lake.ducklake#flights", "ducklake:HERE/lake.ducklake#flights"),
        ("attach:sqlite:rows.db#flights", "attach:sqlite:HERE/rows.db#flights"),
        ("attach:postgres:host=db user=me#public.flights", "attach:postgres:host=db user=me#public.flights"),
        ("attach:postgres:postgresql://me@db/x#flights", "attach:postgres:postgresql://me@db/x#flights"),
        ("iceberg:catalog.db#air.flights", "iceberg:HERE/catalog.db#air.flights"),
        ("iceberg:prod#air.flights", "iceberg:prod#air.flights"),
        ("iceberg:sqlite:///c.db#air.flights", "iceberg:sqlite:///HERE/c.db#air.flights"),
        ("iceberg:sqlite:////data/c.db#air.flights", "iceberg:sqlite:////data/c.db#air.flights"),
        ("iceberg:https://catalog.example/v1#air.flights", "iceberg:https://catalog.example/v1#air.flights"),
    ],
)
def test_local_paths_become_absolute_and_recorded_spellings_stay(tmp_path, text, recorded):
    expected = recorded.replace("HERE", str(tmp_path))
    assert normalise(text, tmp_path) == expected
    assert normalise(expected, tmp_path / "elsewhere") == expected


def test_links_are_resolved(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert normalise("delta:link/rows", tmp_path) == f"delta:{tmp_path}/real/rows"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "detla:rows",
        "http://example.com/rows",
        "gs://bucket/rows",
        "s3://",
        "s3:bucket/rows",
        "s3://B/rows",
        "delta:",
        "delta:s3:/rows",
        "duckdb:rows.db",
        "duckdb:#flights",
        "duckdb:rows.db#",
        "iceberg:prod",
        "ducklake:lake",
        "attach:rows.db#flights",
        "attach:mysql:rows#flights",
        "attach:sqlite:rows.db",
    ],
)
@pytest.mark.parametrize("ask", [normalise, lambda text, _: open_source(text, BLAKE3)])
def test_what_is_no_source_is_told_every_spelling(tmp_path, wrong, ask):
    with pytest.raises(DefinitionError) as caught:
        ask(wrong, tmp_path)
    for spelling in ("PATH", "delta:PATH", "s3://BUCKET/PREFIX", "iceberg:CATALOG#TABLE", "duckdb:FILE#TABLE"):
        assert spelling in caught.value.message
    for spelling in ("attach:sqlite:FILE#TABLE", "attach:postgres:DSN#TABLE", "ducklake:FILE#TABLE"):
        assert spelling in caught.value.message


@pytest.mark.parametrize(
    "wrong",
    [
        "attach:postgres:postgresql://me:hunter2@db/x#flights",
        "attach:postgres:host=db password=hunter2#flights",
        "attach:postgres:host=db PASSWORD = 'hunter2'#flights",
        "s3://key:hunter2@bucket/rows",
        "iceberg:postgresql+psycopg://me:hunter2@db/x#flights",
        "nonsense:me:hunter2://me:hunter2@db/x",
    ],
)
def test_a_password_is_neither_recorded_nor_shown(tmp_path, wrong):
    with pytest.raises(DefinitionError, match="holds a password") as caught:
        normalise(wrong, tmp_path)
    assert "hunter2" not in caught.value.message + caught.value.hint


def test_each_kind_is_opened_by_its_own_module(tmp_path):
    assert isinstance(open_source(str(tmp_path), BLAKE3), ParquetSource)
    assert isinstance(open_source(f"delta:{tmp_path}", BLAKE3), DeltaSource)


def test_opening_reads_nothing(tmp_path):
    source = open_source(f"delta:{tmp_path}/gone", BLAKE3)
    with pytest.raises(NotFoundError):
        source.commit()


@pytest.mark.parametrize(
    ("spec", "package"), [("delta:/data/rows", "deltalake"), ("iceberg:prod#air.flights", "pyiceberg")]
)
def test_a_package_that_is_missing_is_named_with_what_installs_it(monkeypatch, spec, package):
    monkeypatch.setitem(sys.modules, package, None)  # as an import of a package that is not installed finds it
    with pytest.raises(DefinitionError, match=f"needs the package {package}") as caught:
        open_source(spec, BLAKE3)
    assert caught.value.hint == "pip install 'snapline[lake]'"
