from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.contracts.probe import (
    check_probes,
    probes_digest,
    probes_from_parquet,
    probes_to_parquet,
    read_probes,
)
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError, NotFoundError

CHAT = {
    "id": "a",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "answer": "Paris.",
    "carrier": "UA",
}


@pytest.fixture
def written(tmp_path):
    def write(*rows):
        path = tmp_path / "chats.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    return write


def digest(table):
    return probes_digest(table, BulkAlgorithm.BLAKE3)


def test_json_lines_and_parquet_of_the_same_rows_are_the_same_probes(written, tmp_path):
    path = written(CHAT, "", CHAT | {"id": "b", "carrier": None})
    table = read_probes(path)
    assert table["id"].to_pylist() == ["a", "b"]
    assert table["carrier"].to_pylist() == ["UA", None]
    pq.write_table(table.slice(1).combine_chunks(), tmp_path / "b.parquet")
    pq.write_table(pa.concat_tables([table.slice(1), table.slice(0, 1)]), tmp_path / "chats.parquet")
    assert digest(read_probes(tmp_path / "chats.parquet")) == digest(table)
    assert digest(probes_from_parquet(probes_to_parquet(table))) == digest(table)
    assert digest(read_probes(tmp_path / "b.parquet")) != digest(table)


@pytest.mark.parametrize(
    ("prompt", "answer"), [("text", "answer_ids"), ("token_ids", "answer"), ("messages", "answer")]
)
def test_any_one_prompt_column_goes_with_any_one_answer_column(written, prompt, answer):
    values = {"text": "Hi", "token_ids": [1, 2], "messages": CHAT["messages"], "answer": "Ho", "answer_ids": [3]}
    table = read_probes(written({"id": 5, prompt: values[prompt], answer: values[answer], "level": 2}))
    assert table.select(["id", prompt, answer]).to_pylist() == [
        {"id": "5", prompt: values[prompt], answer: values[answer]}
    ]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "chats.jsonl: expected at least one probe, found none"),
        ([CHAT, "{"], "chats.jsonl:2: not JSON"),
        ([CHAT, "", "[1]"], r"chats.jsonl:3: expected an object, found \[1\]"),
        ([{"text": "x", "answer": "y"}], "expected exactly one column id, found none"),
        ([CHAT | {"text": "x"}], "exactly one column messages or text or token_ids, found messages and text"),
        ([{"id": "a", "text": "x"}], "exactly one column answer or answer_ids, found none"),
        ([CHAT, CHAT], "chats.jsonl:1: id: 'a' is given to 2 probes"),
        ([CHAT | {"id": 1}, CHAT | {"id": "1"}], "chats.jsonl:1: id: '1' is given to 2 probes"),
        ([CHAT, CHAT | {"id": None}], "chats.jsonl:2: id: expected text or an integer, found None"),
        ([CHAT | {"id": True}], "chats.jsonl:1: id: expected text or an integer, found True"),
        ([CHAT | {"id": 1.5}], "chats.jsonl:1: id: expected text or an integer, found 1.5"),
        ([CHAT | {"id": ""}], "chats.jsonl:1: id:"),
        ([CHAT, CHAT | {"id": "b", "answer": ""}], "chats.jsonl:2: answer: expected text that is not empty"),
        ([CHAT, CHAT | {"id": "b", "answer": 7}], "chats.jsonl:2: answer: expected text that is not empty, found 7"),
        ([CHAT | {"messages": []}], "chats.jsonl:1: messages: expected a list of {role, content}"),
        ([CHAT | {"messages": [{"role": "user"}]}], "chats.jsonl:1: messages:"),
        ([CHAT | {"messages": [{"role": "user", "content": "x", "name": "n"}]}], "chats.jsonl:1: messages:"),
        ([{"id": "a", "token_ids": [1, -1], "answer": "x"}], "chats.jsonl:1: token_ids: expected a list of token ids"),
        ([{"id": "a", "token_ids": [True], "answer": "x"}], "chats.jsonl:1: token_ids:"),
        ([{"id": "a", "text": "x", "answer_ids": []}], "chats.jsonl:1: answer_ids:"),
        ([CHAT | {"prompt_tokens": 3}], "column 'prompt_tokens' is computed when slicing"),
        ([CHAT, CHAT | {"id": "b", "carrier": 5}], "column 'carrier' mixes kinds of values"),
    ],
)
def test_what_is_no_probe_set_is_refused_with_its_place(written, rows, said):
    with pytest.raises(DefinitionError, match=said):
        read_probes(written(*rows))


def test_a_table_from_a_query_is_refused_by_row():
    table = pa.table({"id": [1, 2], "text": ["x", None], "answer": ["y", "z"]})
    with pytest.raises(DefinitionError, match="probes: row 2: text: expected text that is not empty, found None"):
        check_probes(table)
    twice = pa.table([[1], ["x"], ["y"], ["z"]], names=["id", "text", "answer", "answer"])
    with pytest.raises(DefinitionError, match="no column twice"):
        check_probes(twice)


def test_files_that_are_no_probes(tmp_path):
    with pytest.raises(NotFoundError):
        read_probes(tmp_path / "none.jsonl")
    with pytest.raises(NotFoundError):
        read_probes(tmp_path / "none.parquet")
    with pytest.raises(DefinitionError, match=r"expected a \.jsonl or \.parquet file"):
        read_probes(tmp_path / "chats.csv")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(DefinitionError, match="cannot be read as probes"):
        read_probes(tmp_path / "bad.parquet")
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(DefinitionError, match="cannot be read as probes"):
        read_probes(tmp_path / "bad.jsonl")


def test_the_digest_sees_content_and_not_layout():
    plain = pa.table({"id": ["a", "b"], "text": ["x", "y"], "answer": ["1", "2"], "level": [1, 2]})
    same = [
        plain.take([1, 0]),
        plain.select(["level", "answer", "text", "id"]),
        plain.set_column(3, "level", plain["level"].cast(pa.int8())),
        plain.set_column(1, "text", plain["text"].cast(pa.large_string())),
        plain.set_column(1, "text", plain["text"].dictionary_encode()),
    ]
    other = [
        plain.rename_columns(["id", "text", "answer", "grade"]),
        plain.set_column(3, "level", pa.array([1, None])),
        plain.set_column(3, "level", pa.array(["1", "2"])),
        plain.slice(1),
    ]
    assert {digest(check_probes(table)) for table in same} == {digest(plain)}
    assert len({digest(check_probes(table)) for table in [plain, *other]}) == 5


def test_the_digest_names_its_recipe():
    table = pa.table({"id": ["a"], "text": ["x"], "answer": ["1"], "at": [datetime(2013, 1, 1, tzinfo=UTC)]})
    assert digest(table).startswith("blake3-probes-v1:")
    assert probes_digest(table, BulkAlgorithm.SHA256).startswith("sha256-probes-v1:")


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.dictionaries(texts, st.tuples(texts, texts), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_the_digest_survives_storage_in_any_order(rows, random):
    ids = list(rows)

    def table(order):
        return check_probes(
            pa.table({"id": order, "text": [rows[i][0] for i in order], "answer": [rows[i][1] for i in order]})
        )

    stored = probes_from_parquet(probes_to_parquet(table(random.sample(ids, len(ids)))))
    assert digest(stored) == digest(table(ids))
