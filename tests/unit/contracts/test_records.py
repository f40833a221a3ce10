from __future__ import annotations

from pathlib import Path

import pytest
from certificates import AT
from workbench import CONTRACT, chats

from snapline.contracts.records import (
    contract_record,
    digest_now,
    parse_contract,
    read_contract,
    record_probes,
    with_files_as_they_are,
)
from snapline.lineage.cut import parse_instant
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.ledger import Ledger
from snapline.lineage.objects import ObjectStore
from snapline.lineage.signing import SigningKey, TrustedKeys
from snapline.lineage.state import State, fold, unrecorded
from snapline.lineage.stores.memory import MemoryStore

LATER = parse_instant("2027-01-01")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "contract.yaml"
    path.write_text(CONTRACT)
    return path


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "objects", BulkAlgorithm.BLAKE3)


@pytest.fixture
def record(file, objects):
    return contract_record(str(file), State(), objects, AT)


@pytest.fixture
def state(record) -> State:
    return fold([record])


def edit(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_a_file_becomes_a_record_with_its_bytes_kept(file, objects, record):
    assert (record.what, record.name, record.path) == ("contract", "tiny", str(file))
    assert objects.read(record.object) == file.read_bytes()
    assert read_contract(record, objects).digest == record.digest


def test_a_relative_path_is_recorded_where_it_really_is(file, objects, monkeypatch):
    monkeypatch.chdir(file.parent)
    assert contract_record("contract.yaml", State(), objects, AT).path == str(file)


def test_its_name_means_the_file_as_it_is_now(file, objects, state, record):
    assert contract_record("tiny", state, objects, AT) == record
    edit(file, "min_prompts: 60", "min_prompts: 61")
    assert contract_record("tiny", state, objects, AT).digest != record.digest
    file.unlink()
    assert contract_record("tiny", state, objects, AT) == record


def test_a_file_that_is_another_contract_by_now_is_not_this_one(file, objects, state):
    edit(file, "name: tiny", "name: other")
    with pytest.raises(DefinitionError, match="expected contract 'tiny', which was recorded from it, found 'other'"):
        contract_record("tiny", state, objects, AT)
    assert contract_record(str(file), state, objects, AT).name == "other"


def test_neither_file_nor_name_says_what_there_is(objects, state):
    with pytest.raises(NotFoundError, match="no contract 'nobody': no such file, and recorded are: tiny"):
        contract_record("nobody", state, objects, AT)
    with pytest.raises(NotFoundError, match="recorded are: none yet"):
        contract_record("nobody", State(), objects, AT)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"kind: [", "contract.yaml:2: not YAML"),
        (b"\xff\xfe", "contract.yaml: cannot be read as text"),
        (CONTRACT.replace("half_span:", "half_spam:").encode(), "did you mean 'half_span'"),
        (b"", "contract.yaml:1: expected a mapping"),
    ],
)
def test_a_malformed_contract_names_its_place(data, message):
    with pytest.raises(DefinitionError, match=message):
        parse_contract(data, "contract.yaml")


def test_only_what_the_ledger_lacks_is_recorded(record, state):
    assert unrecorded(record, State()) == [record]
    assert unrecorded(record.model_copy(update={"at": LATER}), state) == []
    moved = record.model_copy(update={"path": "/elsewhere/contract.yaml"})
    assert unrecorded(moved, state) == [moved]


@pytest.mark.parametrize(
    ("old", "new"),
    [("kind:", "# a remark\nkind:"), ('limit: "0.01"', "limit: 0.010"), ("name: tiny\n", "name:   tiny\n")],
)
def test_an_edit_that_promises_the_same_changes_nothing(file, objects, state, record, old, new):
    edit(file, old, new)
    assert digest_now(record, objects) == record.digest
    assert with_files_as_they_are(state, objects) == state


def test_a_file_that_is_gone_changes_nothing(file, objects, state):
    file.unlink()
    assert with_files_as_they_are(state, objects) == state


@pytest.mark.parametrize(
    "data", [CONTRACT.replace("min_prompts: 60", "min_prompts: 61").encode(), b"kind: [", b"", b"\xff"]
)
def test_a_changed_promise_and_a_file_beyond_reading_are_changes(file, objects, state, record, data):
    file.write_bytes(data)
    now = with_files_as_they_are(state, objects).records["contract", "tiny"]
    assert now.digest == digest_now(record, objects) != record.digest
    assert now.model_copy(update={"digest": record.digest}) == record
    assert state.records["contract", "tiny"] == record
    file.write_text(CONTRACT)
    assert with_files_as_they_are(state, objects) == state


def test_probes_are_recorded_once_whatever_their_order(tmp_path, objects):
    key = SigningKey.create(tmp_path / "key")
    ledger = Ledger(MemoryStore(), key, TrustedKeys({key.key_id: key.public}), tmp_path / "head.json")
    table = chats(5)
    first = record_probes("chats", table, ledger, objects, AT)
    assert (first.count, first.path, ledger.load().length) == (5, None, 1)
    again = record_probes("chats", table.take([4, 2, 0, 1, 3]), ledger, objects, LATER)
    assert (again.digest, ledger.load().length) == (first.digest, 1)
    record_probes("chats", chats(4), ledger, objects, LATER)
    assert ledger.state().records["probes", "chats"].count == 4
    assert digest_now(first, objects) == first.digest
    with pytest.raises(DefinitionError, match="probe set name 'no spaces'"):
        record_probes("no spaces", table, ledger, objects, AT)


def test_a_namesake_from_another_file_is_refused_and_a_copy_is_not(file, objects, record, state, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(CONTRACT)
    assert contract_record(str(other), state, objects, LATER) == record
    edit(other, 'confidence: "0.95"', 'confidence: "0.9"')
    with pytest.raises(DefinitionError, match="another contract is named 'tiny'"):
        contract_record(str(other), state, objects, LATER)
    file.unlink()
    assert contract_record(str(other), state, objects, LATER).path == str(other)
