"""Laws of the whole: what shuts an open gate, what never does, and what is recorded once however often it is said.

The laws of lineage, and where each is put to the test:

    1  any one-bit change in data, weights, contract or engine shuts the gate       here
    2  edits of what is said about them never do                                    here
    3  a digest depends on rows alone, however they are stored                      test_digest_laws.py
    4  a decision depends on causes alone, and another cause never opens a gate     test_invalidation.py, test_gate.py
    5  saying the same content again records nothing                                here
    6  concurrent registrations get versions of their own, and none is lost         here
    7  the closure of an erasure is transitive and idempotent                       test_erasure.py
    8  a cut as of an instant reads the same whenever it is read                    test_repeatable_reads.py
    9  the solver of refresh frequencies agrees with brute force, in every corner   test_refresh.py
"""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from journeys import replaced
from lineage_home import WINDOW, LineageHome
from workbench import CONTRACT, NOW, TARGET, VIEW, Home, Replayed

from snapline.contracts.contract import KernelContract
from snapline.contracts.gate import GateDecision, TargetNow
from snapline.contracts.records import contract_record, parse_contract
from snapline.contracts.targets import TargetIdentity, identify
from snapline.lineage.errors import DefinitionError
from snapline.lineage.events import Promoted
from snapline.lineage.invalidation import Change
from snapline.lineage.ledger import Ledger
from snapline.lineage.link import link
from snapline.lineage.model import ModelVersion, parse_reference
from snapline.lineage.observe import Depth
from snapline.lineage.register import Origin, Registration, register
from snapline.lineage.series import CutOptions
from snapline.lineage.signing import SigningKey, TrustedKeys
from snapline.lineage.state import unrecorded
from snapline.lineage.stores.sql import SqlStore

IDENTITY = identify(TARGET)
QUICK, ROWS, FULL = Depth(), Depth(rows=True), Depth(rows=True, full=True)
DEPTHS = st.sampled_from([QUICK, ROWS, FULL])
few = settings(max_examples=30, deadline=None)


class Served(NamedTuple):
    """A version whose gate is open, and its home."""

    home: Home
    model: ModelVersion

    def decide(self, depth: Depth = QUICK, identity: TargetIdentity = IDENTITY) -> GateDecision:
        inspector = self.home.inspector(depth)
        target = TargetNow("production", identity)
        return inspector.inspect(self.model, target, inspector.observe(self.model))[0]

    def verify(self) -> None:
        """Compare the rows of every source with its cut and record that, as `snapline verify` does."""
        observation = self.home.inspector(FULL).observe(self.model)
        self.home.ledger.commit(lambda _state: observation.compared)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    home = Home(tmp_path_factory.mktemp("served"))
    model = home.register()
    home.certify(model, Replayed())
    served = Served(home, model)
    assert all(served.decide(depth).open for depth in (QUICK, FULL))
    return served


@contextmanager
def holding(path: Path, data: bytes) -> Iterator[None]:
    """Let a file hold other bytes for a while, its times put back as a careful forger would."""
    kept, stat, mode = path.read_bytes(), path.stat(), path.stat().st_mode
    path.chmod(0o644)
    try:
        path.write_bytes(data)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        yield
    finally:
        path.write_bytes(kept)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        path.chmod(mode)


def flip(data: bytes, bit: int) -> bytes:
    """Return bytes with one bit, counted from the first byte's lowest, turned over."""
    turned = bytearray(data)
    turned[bit // 8] ^= 1 << bit % 8
    return bytes(turned)


def stored(table: pa.Table) -> bytes:
    """Return the Parquet file of a table."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


# Law 1


def with_one_bit(table: pa.Table, row: int, name: str, bit: int) -> pa.Table:
    """Return a table with one bit of one cell turned over: of its eight bytes, or the one that says it is null."""
    column = table[name].combine_chunks()
    present = column.is_valid().to_numpy(zero_copy_only=False).copy()
    values = np.frombuffer(column.buffers()[1], np.uint8, 8 * len(column)).copy()
    if bit == 64 or not present[row]:
        present[row] ^= True
    else:
        values[8 * row + bit // 8] ^= 1 << bit % 8
    buffers = [pa.py_buffer(np.packbits(present, bitorder="little").tobytes()), pa.py_buffer(values.tobytes())]
    changed = pa.Array.from_buffers(column.type, len(column), buffers)
    return table.set_column(table.column_names.index(name), table.schema.field(name), changed)


@few
@given(
    row=st.integers(0, 99), name=st.sampled_from(["flight_id", "dep_time", "arr_known", "dep_delay"]), data=st.data()
)
def test_any_bit_of_any_cell_inside_the_window_shuts_the_gate(
    served: Served, row: int, name: str, data: st.DataObject
) -> None:
    home, table = served.home, pq.read_table(served.home.source)
    changed = with_one_bit(table, row, name, data.draw(st.integers(0, 64), "bit"))
    with holding(home.source, stored(changed)):
        assert not served.decide().open
        for depth in (ROWS, FULL):
            decision = served.decide(depth)
            assert not decision.open
            assert Change.RESTATED in {cause.change for cause in decision.causes}
    assert served.decide(FULL).open


@few
@given(data=st.data(), depth=DEPTHS)
def test_any_bit_of_the_weights_shuts_the_gate(served: Served, data: st.DataObject, depth: Depth) -> None:
    path = served.home.weights / "model.safetensors"
    kept = path.read_bytes()
    with holding(path, flip(kept, data.draw(st.integers(0, 8 * len(kept) - 1), "bit"))):
        assert not served.decide(depth).open
    assert served.decide(depth).open


@few
@given(data=st.data(), depth=DEPTHS)
def test_any_bit_of_any_record_a_yes_rests_on_shuts_the_gate(served: Served, data: st.DataObject, depth: Depth) -> None:
    home, model = served.home, served.model
    (attested,) = home.state.attestations[model.key]
    snapshots = [home.state.snapshots[identifier].manifest for identifier in model.snapshots]
    address = data.draw(st.sampled_from([attested.envelope, *attested.retained, model.weights.manifest, *snapshots]))
    path = home.objects.path(address)
    kept = path.read_bytes()
    with holding(path, flip(kept, data.draw(st.integers(0, 8 * len(kept) - 1), "bit"))):
        assert not served.decide(depth).open
    assert served.decide(depth).open


def same_contract(text: str) -> bool:
    """Whether a text spells the very contract that was certified; one that spells none does not."""
    try:
        return parse_contract(text.encode(), "contract.yaml") == CERTIFIED
    except DefinitionError:
        return False


CERTIFIED: KernelContract = parse_contract(CONTRACT.encode(), "contract.yaml")
CHARACTERS = st.sampled_from(string.ascii_letters + string.digits + " .,:#\"'{}[]-\n")


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, len(CONTRACT) - 1), taken=st.integers(0, 1), put=st.just("") | CHARACTERS)
def test_any_character_of_the_contract_shuts_the_gate_unless_it_says_the_same(
    served: Served, place: int, taken: int, put: str
) -> None:
    edited = CONTRACT[:place] + put + CONTRACT[place + taken :]
    with replaced(served.home.contract, edited):
        assert served.decide().open == same_contract(edited)
    assert served.decide().open


SIGNIFICANT = [
    ('confidence: "0.95"', 'confidence: "0.951"'),
    ("probes: chats", "probes: chat"),
    ("reference: {engine: transformers, dtype: float32}", "reference: {engine: transformers, dtype: float64}"),
    ('version: ">=5"', 'version: ">=4"'),
    ("dtype: [bfloat16, float16]", "dtype: [bfloat16]"),
    ("paths: [prefill, decode-forced]", "paths: [prefill]"),
    ("min_prompts: 60", "min_prompts: 59"),
    ('quantile: "0.8"', 'quantile: "0.81"'),
    ('limit: "0.01"', 'limit: "0.011"'),
    ('greedy_flip_rate: "0.2"', 'greedy_flip_rate: "0.3"'),
    ('at_most: "0.2"', 'at_most: "0.21"'),
    ("statistical:", 'temperature: "0.9"\nstatistical:'),
]


@pytest.mark.parametrize(("said", "other"), SIGNIFICANT, ids=[other for _, other in SIGNIFICANT])
def test_every_promise_of_the_contract_counts(served: Served, said: str, other: str) -> None:
    assert said in CONTRACT
    with replaced(served.home.contract, CONTRACT.replace(said, other)):
        assert not served.decide().open
    assert served.decide().open


@few
@given(field=st.sampled_from(sorted(IDENTITY.model_dump())), data=st.data())
def test_anything_else_installed_or_set_at_the_target_shuts_the_gate(
    served: Served, field: str, data: st.DataObject
) -> None:
    text = st.text(string.printable, min_size=1, max_size=1)

    def edited(said: str) -> str:
        place = data.draw(st.integers(0, len(said)), "place")
        return said[:place] + data.draw(text, "put") + said[place + data.draw(st.integers(0, 1), "taken") :]

    known = getattr(IDENTITY, field)
    other: object = not known if isinstance(known, bool) else data.draw(st.integers(1, 64), "number")
    if isinstance(known, dict):
        library = data.draw(st.sampled_from(sorted(known)), "library")
        other = known | {library: edited(known[library])}
    elif isinstance(known, str):
        other = edited(known)
    assume(other != known)
    assert not served.decide(identity=IDENTITY.model_copy(update={field: other})).open
    assert served.decide().open


# Law 2

Edit = Callable[[Served, st.DataObject], None]


def comment_the_contract(served: Served, data: st.DataObject) -> None:
    lines = served.home.contract.read_text().splitlines()
    place = data.draw(st.integers(0, len(lines)), "line")
    lines.insert(place, data.draw(st.sampled_from(["", "  ", "# a remark", "   # one more: {or: less}"]), "remark"))
    ends = data.draw(st.sampled_from(["", "   ", "  # at the end"]), "line's end")
    served.home.contract.write_text("\n".join(f"{line}{ends}" for line in lines) + "\n")


def reorder_the_contract(served: Served, data: st.DataObject) -> None:
    heads = [line for line in CONTRACT.splitlines() if not line.startswith(("slices:", "  - "))]
    slices = [line for line in CONTRACT.splitlines() if line not in heads]
    served.home.contract.write_text("\n".join([*data.draw(st.permutations(heads), "order"), *slices, ""]))


def rewrite_the_source(served: Served, data: st.DataObject) -> None:
    table = pq.read_table(served.home.source)
    order = data.draw(st.randoms(use_true_random=False), "order").sample(range(table.num_rows), table.num_rows)
    how = data.draw(st.fixed_dictionaries({"compression": st.sampled_from(["none", "snappy", "zstd", "gzip"])}), "how")
    sizes = data.draw(st.sampled_from([7, 50, 1000]), "rows in a group")
    pq.write_table(table.take(order), served.home.source, row_group_size=sizes, **how)


def touch(served: Served, data: st.DataObject) -> None:
    home = served.home
    for path in (home.source, home.contract, home.weights / "model.safetensors"):
        at = data.draw(st.integers(0, 2**61), "mtime")
        os.utime(path, ns=(at, at))


def ask_for_other_limits(served: Served, data: st.DataObject) -> None:
    limits = data.draw(st.sampled_from(["{}", "{max_delta_rows: 0}", "{max_age: 36500d, on_restatement: warn}"]))
    served.home.define(VIEW.replace("{max_delta_rows: 5000}", limits) + "# in other words\n")


def move_an_alias(served: Served, data: st.DataObject) -> None:
    alias = data.draw(st.sampled_from(["champion", "challenger"]), "alias")
    envelope = served.home.state.attestations[served.model.key][0].envelope
    moved = Promoted(at=NOW, model=served.model.key, alias=alias, target="production", envelope=envelope)
    served.home.ledger.commit(lambda _state: [moved])


EDITS: list[Edit] = [comment_the_contract, reorder_the_contract, touch, ask_for_other_limits, move_an_alias]


@few
@given(edits=st.lists(st.sampled_from([*EDITS, rewrite_the_source]), min_size=1, max_size=4), data=st.data())
def test_edits_of_what_is_said_about_it_never_shut_the_gate(
    served: Served, edits: list[Edit], data: st.DataObject
) -> None:
    served.home.contract.write_text(CONTRACT)
    for edit in edits:
        edit(served, data)
        if edit is rewrite_the_source:
            # Its bytes moved, which nobody may take on trust: the gate opens once the rows were compared.
            served.verify()
        decision = served.decide()
        assert decision.open, decision.reasons
    assert served.decide(FULL).open


# Law 5


class Known(NamedTuple):
    """A home in which one of everything is recorded."""

    home: LineageHome
    repeats: dict[str, Callable[[], object]]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    home = LineageHome(tmp_path_factory.mktemp("known"))
    contract = home.folder / "contract.yaml"
    contract.write_text(CONTRACT)
    as_of = CutOptions(WINDOW.since, WINDOW.until, "2013-02-01")

    def bound() -> ModelVersion:
        record = contract_record(str(contract), home.state, home.objects, NOW)
        return home.register("delays", 1, Origin("delays", ("trips",), edges=("evaluated_on=trips",)), record)

    def written_again() -> None:
        home.write()
        home.take(cut=as_of)

    repeats: dict[str, Callable[[], object]] = {
        "take": lambda: home.take(cut=as_of),
        "take of a file written again": written_again,
        "define": home.define,
        "base": lambda: home.register("base", 2),
        "register": bound,
        "register from elsewhere": lambda: register(
            Registration("base", home.weights(2, "elsewhere"), Origin()), home.ledger, NOW
        ),
        "link": lambda: link(parse_reference("delays"), ["distilled_from=base"], home.ledger, NOW),
        "contract": lambda: home.ledger.commit(
            lambda state: unrecorded(contract_record(str(contract), state, home.objects, NOW), state)
        ),
    }
    for repeat in repeats.values():
        repeat()
    return Known(home, repeats)


@few
@given(data=st.data())
def test_saying_the_same_content_again_records_nothing(known: Known, data: st.DataObject) -> None:
    before = known.home.ledger.load()
    for name in data.draw(st.lists(st.sampled_from(sorted(known.repeats)), min_size=1, max_size=6)):
        known.repeats[name]()
        assert known.home.ledger.load() == before, name


@few
@given(contents=st.lists(st.integers(0, 3), max_size=10))
def test_a_model_has_as_many_versions_as_contents_whatever_is_registered_again(
    tmp_path_factory: pytest.TempPathFactory, contents: list[int]
) -> None:
    home = LineageHome(tmp_path_factory.mktemp("contents"))
    made = [home.register("base", content).key.version for content in contents]
    distinct = list(dict.fromkeys(contents))
    assert made == [distinct.index(content) + 1 for content in contents]
    assert len(home.ledger.entries()) == len(distinct)


# Law 6


@settings(max_examples=8, deadline=None)
@given(contents=st.lists(st.integers(0, 5), min_size=2, max_size=8))
def test_concurrent_registrations_get_versions_of_their_own_and_none_is_lost(
    tmp_path_factory: pytest.TempPathFactory, contents: list[int]
) -> None:
    home = LineageHome(tmp_path_factory.mktemp("race"))
    weights = {content: home.weights(content) for content in contents}
    url = f"sqlite:///{home.folder / 'ledger.db'}"
    trusted = TrustedKeys({home.key.key_id: home.key.public})

    def opened() -> Ledger:
        return Ledger(SqlStore(url), SigningKey.load(home.folder / "signing.key"), trusted, home.folder / "raced.json")

    def race(content: int) -> ModelVersion:
        return register(Registration("base", weights[content], Origin()), opened(), NOW)

    with ThreadPoolExecutor(len(contents)) as pool:
        made = list(pool.map(race, contents))
    versions = opened().state().models["base"]
    assert [version.key.version for version in versions] == list(range(1, len(set(contents)) + 1))
    assert {version.weights.digest for version in versions} == {weights[content].digest for content in contents}
    assert all(version == versions[version.key.version - 1] for version in made)
    assert [version.weights for version in made] == [weights[content] for content in contents]
    assert opened().verify() == len(versions)
