from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lineage_home import NOW, VIEW, LineageHome

from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.events import Recorded
from snapline.lineage.ledger import Ledger
from snapline.lineage.link import link
from snapline.lineage.model import ModelVersion, Weights, parse_reference
from snapline.lineage.register import Origin, Registration, measure, register
from snapline.lineage.stores.sql import SqlStore

MADE = Origin("delays", ("trips",))


@pytest.fixture
def home(tmp_path: Path) -> LineageHome:
    return LineageHome(tmp_path)


@pytest.fixture
def defined(home: LineageHome) -> LineageHome:
    home.take()
    home.define()
    return home


def contract(name: str, content: str = "one") -> Recorded:
    digest = f"sha256-contract-v1:{content.encode().hex():0<64}"
    return Recorded(at=NOW, what="contract", name=name, digest=digest, object=digest, path=f"/{name}.yaml")


def test_the_same_again_is_the_version_there_is(defined: LineageHome) -> None:
    first = defined.register("delays", 1, MADE)
    length = defined.ledger.load().length
    again = defined.register("delays", 1, Origin("delays", (f"trips@{first.snapshots[0][:12]}",)))
    assert again == first
    assert defined.ledger.load().length == length
    elsewhere = Registration("delays", defined.weights(1, "copy"), MADE)
    assert register(elsewhere, defined.ledger, NOW) == first


def test_other_weights_view_snapshots_or_parents_are_another_version(defined: LineageHome) -> None:
    made = [defined.register("delays", 1, MADE), defined.register("delays", 2, MADE)]
    defined.define(VIEW.replace("seed: 7", "seed: 8"))
    made.append(defined.register("delays", 1, MADE))
    defined.rows[0]["delay"] = 9
    defined.write()
    defined.take()
    made.append(defined.register("delays", 1, MADE))
    defined.register("base", 3)
    made.append(defined.register("delays", 1, Origin("delays", ("trips",), ("base/1",))))
    made.append(defined.register("delays", 1))
    assert [model.key.version for model in made] == [1, 2, 3, 4, 5, 6]
    assert defined.state.models["delays"] == tuple(made)


def test_a_changed_policy_is_not_another_view(defined: LineageHome) -> None:
    first = defined.register("delays", 1, MADE)
    defined.define(VIEW.replace("36500d", "1d"))
    assert defined.register("delays", 1, MADE) == first


def test_an_external_base_model_has_no_cut(home: LineageHome) -> None:
    model = home.register("base", 1)
    assert (model.view, model.view_name, model.snapshots, model.parents) == (None, None, (), ())
    assert Path(model.weights.path).is_absolute()


@pytest.mark.parametrize("different", [True, False], ids=["different", "identical"])
def test_eight_at_once_lose_nothing_and_repeat_nothing(home: LineageHome, tmp_path: Path, different: bool) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'ledger.db'}")
    weights = [home.weights(n if different else 0, f"w{n}") for n in range(8)]

    def record(one: Weights) -> ModelVersion:
        ledger = Ledger(store, home.key, home.ledger._trusted, tmp_path / "head.json")
        return register(Registration("many", one, Origin()), ledger, NOW)

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(record, weights))
    expected = set(range(1, 9)) if different else {1}
    assert {model.key.version for model in made} == expected
    ledger = Ledger(store, home.key, home.ledger._trusted, tmp_path / "head.json")
    assert [model.key.version for model in ledger.state().models["many"]] == sorted(expected)
    assert {model.weights.digest for model in made} == {one.digest for one in weights}
    assert ledger.verify() == len(expected)


@pytest.mark.parametrize(
    ("origin", "error", "message"),
    [
        (Origin(view="delays"), DefinitionError, "found a view without a snapshot"),
        (Origin(snapshots=("trips",)), DefinitionError, "found a snapshot without a view"),
        (Origin("nope", ("trips",)), NotFoundError, "no view 'nope'; there are: delays"),
        (Origin("delays", ("nope",)), NotFoundError, "no snapshot 'nope'"),
        (Origin("delays", ("trips@123",)), NotFoundError, "names 0 snapshots"),
        (Origin("delays", ("trips", "trips")), DefinitionError, "reads the snapshots trips; given: trips, trips"),
        (Origin("delays", ("other",)), DefinitionError, "reads the snapshots trips; given: other"),
        (Origin("delays", ("other", "trips")), DefinitionError, "given: other, trips"),
        (Origin(parents=("nobody/1",)), NotFoundError, "no model 'nobody'"),
        (Origin(parents=("a b",)), DefinitionError, "expected a model, found 'a b'"),
    ],
)
def test_an_origin_that_cannot_be_is_refused(
    defined: LineageHome, origin: Origin, error: type[Exception], message: str
) -> None:
    defined.take("other", defined.options())
    with pytest.raises(error, match=message):
        defined.register("delays", 1, origin)
    assert not defined.state.models


@pytest.mark.parametrize("name", ["", "a b", "a/b", "-x", "x" * 101])
def test_a_name_that_cannot_be_one_is_refused(home: LineageHome, name: str) -> None:
    with pytest.raises(DefinitionError, match="model name"):
        home.register(name, 1)


def test_the_parent_is_the_views_base_model_and_no_other(defined: LineageHome) -> None:
    defined.register("base", 10)
    defined.register("base", 11)
    defined.define(VIEW.replace("seed: 7}", "seed: 7}\nbase_model: base/1"))
    implied = defined.register("delays", 1, MADE)
    assert [(str(p.model), p.kind.value) for p in implied.parents] == [("base/1", "fine_tuned_from")]
    for spelling in ("base/1", "models:/base/1"):
        assert defined.register("delays", 1, Origin("delays", ("trips",), (spelling,))) == implied
    for parents in [("base/2",), ("base",), ("base/1", "base/2")]:
        with pytest.raises(DefinitionError, match="the view's base model is base/1, the parent given is base/"):
            defined.register("delays", 1, Origin("delays", ("trips",), parents))


def test_a_parent_named_by_the_models_own_bare_name_is_the_version_before(home: LineageHome) -> None:
    home.register("m", 1)
    second = home.register("m", 2, Origin(parents=("m",)))
    assert (second.key.version, [str(parent.model) for parent in second.parents]) == (2, ["m/1"])
    assert home.state.models["m"][1] == second


def test_a_definition_that_really_ran_is_recorded_though_the_view_has_another(defined: LineageHome) -> None:
    ran = defined.state.views["delays"].digest
    newer = defined.define(VIEW.replace("seed: 7", "seed: 8"))
    model = defined.register("delays", 1, Origin("delays", ("trips",), view_digest=ran))
    assert model.view == ran != newer.digest
    assert defined.register("delays", 2, MADE).view == newer.digest


def test_a_contract_is_recorded_once_and_bound_to_the_version_there_is(home: LineageHome) -> None:
    first = home.register("m", 1, contract=contract("chat"))
    assert first.contract == "chat"
    assert [record.event.kind for record in home.ledger.entries()] == ["recorded", "model-registered"]
    assert home.register("m", 1, contract=contract("chat")) == first
    assert home.register("m", 1) == first
    assert home.ledger.load().length == 2
    rebound = home.register("m", 1, contract=contract("strict"))
    assert (rebound.key, rebound.contract) == (first.key, "strict")
    edited = contract("strict", "two")
    home.register("m", 1, contract=edited)
    assert home.state.records["contract", "strict"] == edited
    assert len(home.state.models["m"]) == 1


def test_edges_given_at_registration_are_recorded_and_part_of_what_was_given(home: LineageHome) -> None:
    home.take()
    home.register("base", 1)
    plain = home.register("m", 2)
    edges = Origin(edges=("adapter_of=base", "evaluated_on=trips", "adapter_of=base/1"))
    made = home.register("m", 2, edges)
    assert (plain.key.version, made.key.version) == (1, 2)
    assert [(p.kind.value, str(p.model)) for p in made.parents] == [("adapter_of", "base/1")]
    assert [(use.kind.value, use.snapshot) for use in made.uses] == [("evaluated_on", home.state.snapshot("trips").id)]
    assert home.register("m", 2, edges) == made
    assert home.register("m", 2) == plain


def test_a_version_that_was_linked_later_is_the_same_version(home: LineageHome) -> None:
    home.register("base", 1)
    made = home.register("m", 2)
    linked, _ = link(parse_reference("m"), ["distilled_from=base"], home.ledger, NOW)
    assert home.register("m", 2) == linked
    assert linked.key == made.key
    assert home.register("m", 2, Origin(edges=("distilled_from=base",))) == linked


@pytest.mark.parametrize("edge", ["made_of=base", "adapter_of=nobody", "evaluated_on=base", "adapter_of"])
def test_an_edge_that_cannot_be_registers_nothing(home: LineageHome, edge: str) -> None:
    home.register("base", 1)
    with pytest.raises((DefinitionError, NotFoundError)):
        home.register("m", 2, Origin(edges=("adapter_of=base", edge)))
    assert "m" not in home.state.models


def test_a_snapshot_of_the_view_is_no_edge_besides(defined: LineageHome) -> None:
    assert defined.register("delays", 1, Origin("delays", ("trips",), edges=("trained_on=trips",))).uses == ()


def test_registering_moves_no_alias(home: LineageHome) -> None:
    home.register("m", 1)
    home.register("m", 2)
    assert not home.state.holders


def test_weights_are_referenced_where_they_really_lie(home: LineageHome, tmp_path: Path) -> None:
    there = home.weights(1)
    link = tmp_path / "link"
    link.symlink_to(there.path)
    through = measure(link, home.objects, None, False, lambda *_: None)
    assert through == there
    assert through.path == str((tmp_path / "weights1").resolve())
    (tmp_path / "empty").mkdir()
    with pytest.raises(DefinitionError, match="holds no weights"):
        measure(tmp_path / "empty", home.objects, None, False, lambda *_: None)
    with pytest.raises(NotFoundError):
        measure(tmp_path / "gone", home.objects, None, False, lambda *_: None)
