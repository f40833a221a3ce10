"""Looking at the snapshots a model was evaluated or calibrated on, and at training rows it was linked to."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lineage_home import DAY, NOW, VIEW, LineageHome

from snapline.lineage.invalidation import Cause, Change, ModelState, Why, effect, worst_state
from snapline.lineage.link import link
from snapline.lineage.model import ModelVersion, parse_reference
from snapline.lineage.observe import Depth, Observation, policy_of
from snapline.lineage.register import Origin
from snapline.lineage.series import CutOptions
from snapline.lineage.staleness import Delta, staleness

ROWS, FULL = Depth(rows=True), Depth(rows=True, full=True)
DEPTHS = pytest.mark.parametrize("depth", [Depth(), ROWS, FULL], ids=["quick", "rows", "full"])
EVALUATION = pytest.mark.parametrize("kind", ["evaluated_on", "calibrated_on"])
TOMORROW = NOW + DAY


@pytest.fixture
def home(tmp_path: Path) -> LineageHome:
    home = LineageHome(tmp_path)
    home.take()
    home.define()
    return home


def changes(observation: Observation) -> list[Change]:
    return [cause.change for cause in observation.causes]


def the(observation: Observation, change: Change) -> Cause:
    (cause,) = (cause for cause in observation.causes if cause.change is change)
    return cause


def record(home: LineageHome, observation: Observation) -> None:
    home.ledger.commit(lambda _state: observation.compared)


@pytest.fixture
def apart(home: LineageHome) -> Path:
    """Another table as it was when a snapshot `apart` was cut from it."""
    file = home.folder / "apart.parquet"
    file.write_bytes(home.source.read_bytes())
    restate(file, 50)
    home.take("apart", home.options(source=str(file)))
    return file


def restate(apart: Path, delay: int = 99) -> None:
    table = pq.read_table(apart)
    delays = pa.array([delay, *table["delay"].to_pylist()[1:]], pa.int64())
    pq.write_table(table.set_column(table.column_names.index("delay"), "delay", delays), apart)


def linked(home: LineageHome, *edges: str) -> ModelVersion:
    """A version with edges recorded before and after it was registered."""
    origin = Origin("delays", ("trips@" + home.state.series["trips"][-1],), edges=edges[:1])
    key = home.register("delays", 1, origin).key
    link(parse_reference(str(key)), edges[1:], home.ledger, NOW)
    return home.state.models[key.name][key.version - 1]


@DEPTHS
@EVALUATION
def test_an_evaluation_set_that_is_as_it_was_says_nothing(
    home: LineageHome, apart: Path, kind: str, depth: Depth
) -> None:
    found = home.observe(linked(home, f"{kind}=apart"), depth)
    assert (found.causes, found.compared, len(found.seen)) == ((), (), 1)


@EVALUATION
@pytest.mark.parametrize("warn", ["", ", on_restatement: warn"], ids=["block", "warn"])
def test_a_restated_evaluation_set_shuts_whatever_the_policy_and_leaves_the_model_fresh(
    home: LineageHome, apart: Path, kind: str, warn: str
) -> None:
    home.define(VIEW.replace("36500d", f"36500d{warn}"))
    model = linked(home, f"{kind}=apart")
    restate(apart)
    assert changes(home.observe(model)) == [Change.SOURCE_UNREAD]
    record(home, home.observe(model, FULL))
    found = home.observe(model)
    cause = the(found, Change.EVALUATION_RESTATED)
    assert changes(found) == [Change.EVALUATION_RESTATED]
    assert cause.details == ("2013-01-01: 1 corrected",)
    used = kind.replace("_", " ")
    assert cause.message.startswith(f"the model was {used} this snapshot: rows inside the cut changed: 1 corrected")
    verb = {"evaluated_on": "evaluate", "calibrated_on": "calibrate"}[kind]
    assert cause.message.endswith(f"; {verb} it on a new take of the window, and link that")
    policy = policy_of(model, home.state)
    assert worst_state(found.causes, policy) is ModelState.FRESH
    assert effect(cause.change, policy).shuts is Why.UNKNOWN


def test_rows_deleted_from_an_evaluation_set_are_none_the_model_was_made_from(home: LineageHome, apart: Path) -> None:
    model = linked(home, "evaluated_on=apart")
    pq.write_table(pq.read_table(apart).slice(1), apart)
    found = home.observe(model, ROWS)
    assert the(found, Change.EVALUATION_RESTATED).details == ("2013-01-01: 1 deleted",)
    assert changes(found) == [Change.EVALUATION_RESTATED]
    assert staleness(found.seen, NOW).delta == Delta(newer=2)


def test_an_evaluation_set_with_other_columns_or_none_to_be_cut_is_restated(home: LineageHome, apart: Path) -> None:
    model = linked(home, "evaluated_on=apart")
    pq.write_table(pq.read_table(apart).rename_columns(["at", "seen", "id", "lateness"]), apart)
    assert "lateness" in the(home.observe(model, ROWS), Change.EVALUATION_RESTATED).message
    apart.write_text("no Parquet")
    assert changes(home.observe(model, ROWS)) == [Change.EVALUATION_RESTATED]
    apart.unlink()
    assert changes(home.observe(model, ROWS)) == [Change.SOURCE_GONE]


def test_an_evaluation_set_put_back_or_grown_outside_its_window_says_nothing_that_shuts(
    home: LineageHome, apart: Path
) -> None:
    model, kept = linked(home, "evaluated_on=apart"), apart.read_bytes()
    restate(apart)
    record(home, home.observe(model, FULL))
    apart.write_bytes(kept)
    assert changes(home.observe(model)) == []
    table = pq.read_table(apart)
    later = pa.array([start + 30 * DAY for start in table["at"].to_pylist()], table["at"].type)
    pq.write_table(pa.concat_tables([table, table.set_column(0, table.schema.field("at"), later)]), apart)
    assert changes(home.observe(model, ROWS)) == [Change.APPENDED_OUTSIDE]


def test_a_later_take_of_the_window_replaces_one_only_where_the_model_was_evaluated_on_it(
    home: LineageHome, apart: Path
) -> None:
    first = home.state.snapshot("apart").id
    model = linked(home, f"evaluated_on=apart@{first}")
    restate(apart)
    home.take("apart", now=TOMORROW)
    assert changes(home.observe(model, ROWS)) == [Change.EVALUATION_RESTATED]
    calibrated = linked(home, f"evaluated_on=apart@{first}", "calibrated_on=apart")
    assert changes(home.observe(calibrated, ROWS)) == [Change.EVALUATION_RESTATED]
    again, _ = link(parse_reference("delays/1"), ["evaluated_on=apart"], home.ledger, NOW)
    assert changes(home.observe(again)) == changes(home.observe(again, FULL)) == []
    restate(apart, 98)
    assert set(changes(home.observe(again, ROWS))) == {Change.EVALUATION_RESTATED}


def test_a_later_take_of_another_window_replaces_nothing(home: LineageHome, apart: Path) -> None:
    first = home.state.snapshot("apart").id
    restate(apart)
    home.take("apart", cut=CutOptions("2013-01-01", "2013-01-03"), now=TOMORROW)
    model = linked(home, f"evaluated_on=apart@{first}", "evaluated_on=apart")
    assert changes(home.observe(model, ROWS)) == [Change.EVALUATION_RESTATED]


def test_a_link_to_training_rows_counts_as_training(home: LineageHome, apart: Path) -> None:
    model = linked(home, "trained_on=apart")
    pq.write_table(pq.read_table(apart).slice(1), apart)
    assert changes(home.observe(model, ROWS)) == [Change.RESTATED, Change.MEMBERS_DELETED]


def test_rows_both_trained_and_evaluated_on_are_read_once_and_both_are_told(home: LineageHome) -> None:
    model = linked(home, "evaluated_on=trips")
    restate(home.source)
    assert changes(home.observe(model)) == [Change.SOURCE_UNREAD]
    found = home.observe(model, ROWS)
    assert changes(found) == [Change.RESTATED, Change.EVALUATION_RESTATED]
    assert len(found.compared) == len(found.seen) == 1


@pytest.mark.parametrize("what", ["manifest", "membership"])
def test_damaged_records_of_an_evaluation_set_are_found_when_every_byte_is_read(
    home: LineageHome, apart: Path, what: str
) -> None:
    model = linked(home, "evaluated_on=apart")
    home.damage(getattr(home.state.snapshot("apart"), what))
    assert changes(home.observe(model, FULL)) == [Change.RECORD_DAMAGED]
