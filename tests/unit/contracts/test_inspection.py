from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journeys import flights
from workbench import NOW, REFERENCE_DTYPE, TARGET, VIEW, Home, Replayed, kinds

from snapline.contracts.gate import GateDecision
from snapline.contracts.inspection import target_now
from snapline.contracts.targets import Target
from snapline.lineage.errors import IntegrityError
from snapline.lineage.invalidation import Why
from snapline.lineage.observe import Depth


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def model(home):
    model = home.register()
    home.certify(model, Replayed())
    return model


def gate(home, model, target: Target = TARGET, inspector=None) -> GateDecision:
    inspector = inspector or home.inspector()
    return inspector.inspect(model, target_now("production", target), inspector.observe(model))[0]


def test_a_clear_yes(home, model):
    decision = gate(home, model)
    assert decision.open
    assert decision.envelope == home.state.attestations[model.key][0].envelope


def test_what_moved_shuts_and_what_is_back_opens(home, model):
    weights = home.weights / "model.safetensors"
    for path, other, why in (
        (weights, b"other", Why.TAMPERED),
        (weights, None, Why.TAMPERED),
        (home.source, None, Why.MISSING),
        (home.contract, home.contract.read_bytes().replace(b'"0.01"', b'"0.02"'), Why.UNKNOWN),
    ):
        kept = path.read_bytes()
        if other is None:
            path.unlink()
        else:
            path.write_bytes(other)
        assert gate(home, model).why is why, path
        path.write_bytes(kept)
        assert gate(home, model).open, path


def test_a_source_whose_bytes_moved_shuts_until_its_rows_are_compared(home, model):
    pq.write_table(flights(100), home.source, compression="none")
    decision = gate(home, model)
    assert (decision.why, kinds(decision.causes)) == (Why.NO, ["SOURCE_UNREAD"])
    seen = home.inspector(Depth(rows=True)).observe(model)
    home.ledger.commit(lambda _state: seen.compared)
    decision = gate(home, model)
    assert (decision.open, kinds(decision.notes)) == (True, ["APPENDED_OUTSIDE"])


def test_a_restatement_shuts_by_policy(home, model):
    delays = [None, *flights()["dep_delay"].to_pylist()[1:]]
    delays[1:9] = [99.0] * 8
    pq.write_table(flights().set_column(3, "dep_delay", pa.array(delays)), home.source)
    seen = home.inspector(Depth(rows=True)).observe(model)
    home.ledger.commit(lambda _state: seen.compared)
    assert gate(home, model).why is Why.NO
    home.define(VIEW.replace("max_delta_rows: 5000", "max_delta_rows: 5000, on_restatement: warn"))
    decision = gate(home, model)
    assert (decision.open, kinds(decision.notes)) == (True, ["RESTATED"])
    home.define(VIEW.replace("max_delta_rows: 5000", "max_delta_rows: 5, on_restatement: warn"))
    assert kinds(gate(home, model).causes) == ["DELTA_EXCEEDED"]


def test_age_is_the_wall_clock(home, model):
    home.define(VIEW.replace("max_delta_rows", "max_age: 36500d, max_delta_rows"))
    assert gate(home, model).open
    much_later = home.inspector(at=NOW + timedelta(days=36500))
    assert kinds(gate(home, model, inspector=much_later).causes) == ["AGED"]


def test_a_version_without_a_cut_never_opens(home):
    from snapline.lineage.register import Origin, Registration, register

    base = home.register()
    external = register(Registration("base", base.weights, Origin(), home.record()), home.ledger, NOW)
    home.certify(external, Replayed())
    assert kinds(gate(home, external).causes) == ["NO_CUT"]


def test_a_target_that_cannot_be_read_is_said_not_raised(home, model):
    broken = TARGET.model_copy(update={"interpreter": "/nowhere/python"})
    now = target_now("production", broken)
    assert now.identity is None
    assert "/nowhere/python" in now.problem
    assert gate(home, model, broken).why is Why.UNKNOWN


def test_another_dtype_has_no_certificate(home, model):
    decision = gate(home, model, TARGET.model_copy(update={"dtype": REFERENCE_DTYPE}))
    assert (decision.why, kinds(decision.causes)) == (Why.UNKNOWN, ["ENGINE_CHANGED"])


def test_reading_a_certificate_reads_everything_it_binds(home, model):
    (attested,) = home.state.attestations[model.key]
    found = home.inspector().read(attested)
    for address in (attested.envelope, *found.retained):
        path = home.objects.path(address)
        aside = path.rename(path.with_suffix(".aside"))
        with pytest.raises(IntegrityError, match="cannot be read"):
            home.inspector().read(attested)
        assert gate(home, model).why is Why.TAMPERED
        aside.rename(path)
    assert gate(home, model).open


def test_an_inspector_reads_each_certificate_once(home, model):
    (attested,) = home.state.attestations[model.key]
    inspector = home.inspector()
    first = inspector.read(attested)
    home.objects.path(attested.envelope).unlink()
    assert inspector.read(attested) is first
