"""A plan computes again what its causes touch, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journeys import flights
from workbench import NOW, TARGET, Home, Replayed, chats, kinds

from snapline.contracts.gate import TargetNow
from snapline.contracts.plan import StepKind, live, plan_model
from snapline.contracts.targets import identify
from snapline.lineage.events import Promoted
from snapline.lineage.link import link
from snapline.lineage.model import ModelVersion, parse_reference
from snapline.lineage.observe import Depth
from snapline.lineage.series import CutOptions, Desk, SeriesOptions, take_and_record
from snapline.lineage.state import State

PRODUCTION = TargetNow("production", identify(TARGET))
STAGING = TargetNow("staging", identify(TARGET.model_copy(update={"dtype": "float16"})))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def model(home):
    """A version bound to a contract and certified for production."""
    model = home.register()
    home.certify(model, Replayed())
    return model


def plan(home, model, *targets):
    return plan_model(model, targets or (PRODUCTION,), home.inspector(Depth(rows=True)))


def steps(home, model, *targets):
    return [(step.kind.value, step.target, step.contract) for step in plan(home, model, *targets).steps]


def test_nothing_moved_nothing_to_do(home, model):
    found = plan(home, model)
    assert (found.causes, found.steps, found.by_hand) == ((), (), ())


def test_what_was_never_certified_is_measured_at_an_unknown_cost(home):
    (step,) = plan(home, home.register()).steps
    assert (step.kind, step.seconds, step.contract) == (StepKind.CERTIFY, None, "tiny")
    assert kinds(step.causes) == ["NEVER_CERTIFIED"]


def test_another_contract_is_judged_again_at_no_cost(home, model):
    home.edit(('limit: "0.01"', 'limit: "0.02"'))
    (step,) = plan(home, model).steps
    assert (step.kind, step.seconds) == (StepKind.REJUDGE, 0)
    assert kinds(step.causes) == ["CONTRACT_CHANGED"]


def test_other_probes_are_measured_again_at_the_cost_of_last_time(home, model):
    home.probes(chats(61))
    (step,) = plan(home, model).steps
    assert (step.kind, kinds(step.causes)) == (StepKind.CERTIFY, ["PROBES_CHANGED"])
    assert step.seconds == home.state.attestations[model.key][0].seconds >= 1


def test_a_comment_in_the_contract_needs_nothing(home, model):
    home.edit(("kind:", "# a remark\nkind:"))
    assert plan(home, model).causes == ()


def test_another_identity_is_measured_only_there(home, model):
    assert steps(home, model, PRODUCTION, STAGING) == [("certify", "staging", "tiny")]


def test_a_verdict_is_nothing_a_plan_can_mend(home):
    model = home.register()
    home.certify(model, Replayed(serving={}))
    found = plan(home, model)
    assert (kinds(found.causes), found.steps, found.by_hand) == (["UNDECIDED"], (), ())


def test_restated_rows_rebuild_and_then_certify(home, model):
    pq.write_table(flights(90), home.source)
    found = plan(home, model)
    rebuild, again = found.steps
    assert (rebuild.kind, rebuild.target, again.kind) == (StepKind.MATERIALIZE, None, StepKind.CERTIFY)
    assert kinds(rebuild.causes) == kinds(again.causes) == ["RESTATED", "MEMBERS_DELETED"]
    assert "2013-01-01: 10 deleted" in rebuild.causes[0].details[0]
    assert again.contract == "tiny"


def test_an_evaluation_to_repeat_is_left_to_a_person_and_holds_nothing_up(home, model):
    evaluated = home.root / "evaluation.parquet"
    pq.write_table(flights(100), evaluated)
    columns = SeriesOptions(str(evaluated), "dep_time", "arr_known", None, "flight_id", "day")
    window = CutOptions("2013-01-01", "2013-01-05")
    take_and_record("evaluation", columns, window, home.ledger, Desk(home.objects, NOW))
    link(parse_reference("assistant"), ["evaluated_on=evaluation"], home.ledger, NOW)
    (linked,) = home.state.models["assistant"]
    pq.write_table(flights(90), evaluated)
    found = plan(home, linked)
    assert (kinds(found.causes), found.steps, kinds(found.by_hand)) == (
        ["EVALUATION_RESTATED"],
        (),
        ["EVALUATION_RESTATED"],
    )
    home.probes(chats(61))
    pq.write_table(flights(90), home.source)
    found = plan(home, linked)
    assert [step.kind for step in found.steps] == [StepKind.MATERIALIZE, StepKind.CERTIFY]
    assert kinds(found.by_hand) == ["EVALUATION_RESTATED"]


def test_a_source_that_is_gone_is_left_to_a_person_and_nothing_is_computed(home, model):
    home.edit(('limit: "0.01"', 'limit: "0.02"'))
    home.source.unlink()
    found = plan(home, model)
    assert (found.steps, kinds(found.by_hand)) == ((), ["SOURCE_GONE"])
    assert "CONTRACT_CHANGED" in kinds(found.causes)


def test_tampered_weights_are_left_to_a_person(home, model):
    (home.weights / "model.safetensors").write_bytes(b"other")
    found = plan(home, model)
    assert (found.steps, kinds(found.by_hand)) == ((), ["WEIGHTS_CHANGED"])


def test_a_model_without_a_contract_is_planned_where_it_was_certified(home):
    model = home.register(bound=False)
    assert steps(home, model) == []
    home.certify(model, Replayed())
    home.probes(chats(61))
    assert steps(home, model, PRODUCTION, STAGING) == [("certify", "production", "tiny")]


def test_a_plan_changes_nothing(home, model):
    pq.write_table(flights(90), home.source)
    before = home.ledger.load().head
    plan(home, model)
    assert home.ledger.load().head == before


def test_plans_look_at_the_newest_versions_and_at_whoever_holds_an_alias(home, model):
    assert live(State()) == ()
    second = home.register(home.write_weights("second", 2))
    assert live(home.state) == (second,)
    envelope = home.state.attestations[model.key][0].envelope
    held = Promoted(at=NOW, model=model.key, alias="champion", target="production", envelope=envelope)
    home.ledger.commit(lambda _state: [held])
    assert live(home.state) == (model, second)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, ModelVersion]:
    home = Home(tmp_path_factory.mktemp("certified"))
    model = home.register()
    home.certify(model, Replayed())
    return home, model


@contextmanager
def holding(path: Path, data: bytes) -> Iterator[None]:
    kept = path.read_bytes()
    path.write_bytes(data)
    yield
    path.write_bytes(kept)


MOVES = ("comment", "contract", "probes", "target", "restated")


@pytest.mark.parametrize("moved", [set(c) for n in range(6) for c in combinations(MOVES, n)], ids=sorted)
def test_for_every_set_of_changes_just_what_they_touch(certified, moved):
    home, model = certified
    text = home.contract.read_bytes()
    text = b"# a remark\n" + text if "comment" in moved else text
    text = text.replace(b'"0.01"', b'"0.02"') if "contract" in moved else text
    home.probes(chats(61 if "probes" in moved else 60))
    target = replace(STAGING, name="production") if "target" in moved else PRODUCTION
    source = pa.BufferOutputStream()
    pq.write_table(flights(90), source)
    rows = source.getvalue().to_pybytes() if "restated" in moved else home.source.read_bytes()
    with holding(home.contract, text), holding(home.source, rows):
        found = steps(home, model, target)
    again = [("certify", "production", "tiny")]
    if "restated" in moved:
        assert found == [("materialize", None, None), *again]
    elif moved & {"probes", "target"}:
        assert found == again
    else:
        assert found == ([("rejudge", "production", "tiny")] if "contract" in moved else [])
