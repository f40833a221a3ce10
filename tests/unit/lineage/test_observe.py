from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lineage_home import DAY, NOW, START, VIEW, WINDOW, LineageHome

from snapline.lineage.erasure.tombstones import encode_tombstones
from snapline.lineage.events import Erased, LeakageChecked, Retired, RuleFinding, SnapshotTaken
from snapline.lineage.invalidation import Cause, Change, ModelState, Why, effect, worst_state
from snapline.lineage.model import ModelVersion
from snapline.lineage.observe import Depth, Observation, policy_of
from snapline.lineage.register import Origin
from snapline.lineage.rows.hashes import key_hashes
from snapline.lineage.series import CutOptions
from snapline.lineage.staleness import Delta, staleness
from snapline.lineage.view import OnRestatement

ROWS, FULL = Depth(rows=True), Depth(rows=True, full=True)
DEPTHS = pytest.mark.parametrize("depth", [Depth(), ROWS, FULL], ids=["quick", "rows", "full"])


@pytest.fixture
def home(tmp_path: Path) -> LineageHome:
    home = LineageHome(tmp_path)
    home.take()
    home.define()
    return home


@pytest.fixture
def model(home: LineageHome) -> ModelVersion:
    return home.register("delays", 1, Origin("delays", ("trips",)))


def changes(observation: Observation) -> list[Change]:
    return [cause.change for cause in observation.causes]


def the(observation: Observation, change: Change) -> Cause:
    (cause,) = (cause for cause in observation.causes if cause.change is change)
    return cause


def correct(home: LineageHome) -> None:
    home.rows[2]["delay"] = 99
    home.write()


def arrive_late(home: LineageHome) -> None:
    home.rows.append({"at": START + 2 * DAY, "seen": NOW + DAY, "id": 50, "delay": 0})
    home.write()


def append_outside(home: LineageHome) -> None:
    home.rows.append({"at": START + 9 * DAY, "seen": START + 9 * DAY, "id": 50, "delay": 0})
    home.write()


def record(home: LineageHome, observation: Observation) -> None:
    home.ledger.commit(lambda _state: observation.compared)


@DEPTHS
def test_nothing_moved_nothing_found(home: LineageHome, model: ModelVersion, depth: Depth) -> None:
    found = home.observe(model, depth)
    assert (found.causes, found.compared) == ((), ())
    assert [one.delta for one in found.seen] == [Delta(newer=2)]


@DEPTHS
def test_a_source_put_back_under_new_stamps_is_unchanged(home: LineageHome, model: ModelVersion, depth: Depth) -> None:
    kept = home.source.read_bytes()
    home.source.unlink()
    home.source.write_bytes(kept)
    found = home.observe(model, depth)
    assert (found.causes, found.compared) == ((), ())


def test_a_model_without_a_cut_says_so(home: LineageHome) -> None:
    base = home.register("base", 1)
    assert changes(home.observe(base)) == [Change.NO_CUT]


def test_moved_bytes_are_unread_until_somebody_reads_them(home: LineageHome, model: ModelVersion) -> None:
    append_outside(home)
    cause = the(home.observe(model), Change.SOURCE_UNREAD)
    assert "snapline verify" in cause.message
    assert cause.details == ("trips.parquet",)


@pytest.mark.parametrize("depth", [ROWS, FULL], ids=["rows", "full"])
def test_rows_outside_the_window_leave_the_cut_alone(home: LineageHome, model: ModelVersion, depth: Depth) -> None:
    append_outside(home)
    assert changes(home.observe(model, depth)) == [Change.APPENDED_OUTSIDE]


@pytest.mark.parametrize("depth", [ROWS, FULL], ids=["rows", "full"])
def test_a_correction_and_a_late_row_are_named_by_bucket(home: LineageHome, model: ModelVersion, depth: Depth) -> None:
    correct(home)
    arrive_late(home)
    cause = the(home.observe(model, depth), Change.RESTATED)
    assert cause.details == ("2013-01-02: 1 corrected", "2013-01-03: 1 late")
    assert cause.message == (
        "rows inside the cut changed: 1 corrected, 1 late in 2 buckets; "
        "it keeps no history, so what it no longer holds of the cut is orphaned"
    )


def test_a_comparison_speaks_for_the_bytes_it_read_and_no_others(home: LineageHome, model: ModelVersion) -> None:
    append_outside(home)
    record(home, home.observe(model, FULL))
    home.rows.pop(0)  # were the rows parsed again, this would show
    assert changes(home.observe(model)) == [Change.APPENDED_OUTSIDE]
    home.write()
    assert changes(home.observe(model)) == [Change.SOURCE_UNREAD]
    record(home, home.observe(model, FULL))
    assert changes(home.observe(model)) == [Change.RESTATED, Change.MEMBERS_DELETED]


def test_looking_twice_records_once(home: LineageHome, model: ModelVersion) -> None:
    append_outside(home)
    first = home.observe(model, FULL)
    assert len(first.compared) == 1
    record(home, first)
    again = home.observe(model, FULL)
    assert (again.causes, again.compared) == (first.causes, ())


def test_a_recorded_restatement_is_gone_once_the_source_is_back(home: LineageHome, model: ModelVersion) -> None:
    kept = home.source.read_bytes()
    correct(home)
    record(home, home.observe(model, FULL))
    assert changes(home.observe(model)) == [Change.RESTATED]
    home.source.write_bytes(kept)
    assert changes(home.observe(model)) == []


@DEPTHS
def test_rows_that_an_early_as_of_left_out_are_not_late(home: LineageHome, depth: Depth) -> None:
    snapshot = home.take(cut=CutOptions(WINDOW.since, WINDOW.until, "2013-01-02"))
    model = home.register("delays", 1, Origin("delays", ("trips",)))
    assert snapshot.rows < 6
    assert changes(home.observe(model, depth)) == []


def test_taking_the_same_cut_again_does_not_hide_a_late_row(home: LineageHome) -> None:
    cut = CutOptions(WINDOW.since, WINDOW.until, "2013-02-01")
    home.take(cut=cut)
    model = home.register("delays", 1, Origin("delays", ("trips",)))
    arrive_late(home)
    home.take(cut=cut)
    assert changes(home.observe(model)) == [Change.RESTATED]
    assert changes(home.observe(model, FULL)) == [Change.RESTATED]


def test_rows_left_out_at_the_take_are_not_late_when_the_source_grows_elsewhere(home: LineageHome) -> None:
    cut = CutOptions(WINDOW.since, WINDOW.until, "2013-01-02")
    home.take(cut=cut)
    model = home.register("delays", 1, Origin("delays", ("trips",)))
    append_outside(home)
    assert changes(home.observe(model, ROWS)) == [Change.APPENDED_OUTSIDE]
    arrive_late(home)
    assert the(home.observe(model, ROWS), Change.RESTATED).details == ("2013-01-03: 1 late",)


def test_cutting_again_settles_what_moved_outside_the_window(home: LineageHome, model: ModelVersion) -> None:
    append_outside(home)
    assert changes(home.observe(model)) == [Change.SOURCE_UNREAD]
    home.take()
    assert changes(home.observe(model)) == [Change.APPENDED_OUTSIDE]


def test_without_a_known_column_every_difference_is_a_restatement(home: LineageHome) -> None:
    home.take("plain", home.options(known=None))
    home.define(VIEW.replace("{trips: trips}", "{trips: plain}"))
    model = home.register("delays", 1, Origin("delays", ("plain",)))
    arrive_late(home)
    assert the(home.observe(model, ROWS), Change.RESTATED).details == ("2013-01-03: 1 late",)


@DEPTHS
def test_a_source_that_is_gone(home: LineageHome, model: ModelVersion, depth: Depth) -> None:
    home.source.rename(home.folder / "away")
    assert "trips.parquet" in the(home.observe(model, depth), Change.SOURCE_GONE).message


@pytest.mark.parametrize("depth", [ROWS, FULL], ids=["rows", "full"])
def test_a_source_that_can_no_longer_be_cut_is_a_restatement(
    home: LineageHome, model: ModelVersion, depth: Depth
) -> None:
    home.rows[0]["seen"] = None
    home.write()
    assert "can no longer be cut" in the(home.observe(model, depth), Change.RESTATED).message
    home.source.write_text("no Parquet")
    assert "read as Parquet" in the(home.observe(model, depth), Change.RESTATED).message


def test_a_source_with_other_bytes_and_the_same_rows_is_no_restatement(home: LineageHome, model: ModelVersion) -> None:
    home.rows.reverse()
    home.write()
    assert changes(home.observe(model)) == [Change.SOURCE_UNREAD]
    record(home, home.observe(model, FULL))
    assert not worst_causes(home, model)


def worst_causes(home: LineageHome, model: ModelVersion) -> list[Cause]:
    policy = policy_of(model, home.state)
    return [cause for cause in home.observe(model).causes if effect(cause.change, policy).shuts]


def test_age_counts_from_the_end_of_the_window_and_the_limit_is_still_allowed(
    home: LineageHome, model: ModelVersion
) -> None:
    home.define(VIEW.replace("36500d", "36h"))
    end = START + 3 * DAY
    assert changes(home.observe(model, now=end + timedelta(hours=36))) == []
    cause = the(home.observe(model, now=end + timedelta(hours=36, seconds=1)), Change.AGED)
    assert "2013-01-04" in cause.message
    assert "1 day, 12:00:00" in cause.message


def test_the_policy_in_force_is_that_of_the_newest_definition(home: LineageHome, model: ModelVersion) -> None:
    correct(home)
    assert worst_causes(home, model)
    record(home, home.observe(model, FULL))
    home.define(VIEW.replace("36500d", "36500d, on_restatement: warn"))
    assert policy_of(model, home.state).on_restatement is OnRestatement.WARN
    assert changes(home.observe(model)) == [Change.RESTATED]
    assert not worst_causes(home, model)
    home.define(VIEW.replace("36500d", "36500d, on_restatement: warn, max_delta_rows: 1"))
    assert not worst_causes(home, model)
    home.define(VIEW.replace("36500d", "36500d, on_restatement: warn, max_delta_rows: 0"))
    cause = the(home.observe(model), Change.DELTA_EXCEEDED)
    assert cause.message == "1 rows changed (1 corrected); the policy allows 0"
    assert worst_causes(home, model)


def test_unread_bytes_shut_even_where_a_restatement_would_only_warn(home: LineageHome, model: ModelVersion) -> None:
    home.define(VIEW.replace("36500d", "36500d, on_restatement: warn"))
    correct(home)
    assert [cause.change for cause in worst_causes(home, model)] == [Change.SOURCE_UNREAD]


def test_a_view_defined_anew_is_told_and_shuts_nothing(home: LineageHome, model: ModelVersion) -> None:
    home.define(VIEW.replace("seed: 7", "seed: 8"))
    assert changes(home.observe(model)) == [Change.VIEW_CHANGED]
    assert not worst_causes(home, model)
    home.define()
    assert changes(home.observe(model)) == []


@DEPTHS
def test_weights_that_changed_name_the_tensor(home: LineageHome, model: ModelVersion, depth: Depth) -> None:
    file = Path(model.weights.path) / "model.safetensors"
    kept = file.read_bytes()
    file.write_bytes(kept[:-1] + b"!")
    cause = the(home.observe(model, depth), Change.WEIGHTS_CHANGED)
    assert cause.details == ("model.safetensors: tensor w changed",)
    file.write_bytes(kept)
    assert changes(home.observe(model, depth)) == []
    file.with_name("extra.json").write_text("{}")
    assert the(home.observe(model, depth), Change.WEIGHTS_CHANGED).details == ("file extra.json is extra",)


@DEPTHS
def test_weights_that_are_gone(home: LineageHome, model: ModelVersion, depth: Depth) -> None:
    folder = Path(model.weights.path)
    folder.rename(home.folder / "away")
    assert changes(home.observe(model, depth)) == [Change.WEIGHTS_GONE]
    folder.symlink_to(home.folder / "away")
    assert changes(home.observe(model, depth)) == [Change.WEIGHTS_CHANGED]


@DEPTHS
@pytest.mark.parametrize("what", ["snapshot", "weights", "code"])
@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_bound_record_that_differs_is_tampering(
    home: LineageHome, model: ModelVersion, depth: Depth, what: str, how: str
) -> None:
    state = home.state
    address = {
        "snapshot": state.snapshots[model.snapshots[0]].manifest,
        "weights": model.weights.manifest,
        "code": state.views["delays"].code[0].object,
    }[what]
    if how == "damaged":
        home.damage(address)
    else:
        home.objects.path(address).unlink()
    assert changes(home.observe(model, depth)) == [Change.RECORD_DAMAGED]


def test_a_damaged_comparison_is_not_believed(home: LineageHome, model: ModelVersion) -> None:
    append_outside(home)
    record(home, home.observe(model, FULL))
    home.damage(home.state.comparisons[model.snapshots[0]].files)
    assert changes(home.observe(model)) == [Change.RECORD_DAMAGED]


def test_a_damaged_membership_index_is_found_when_every_byte_is_read(home: LineageHome, model: ModelVersion) -> None:
    home.damage(home.state.snapshots[model.snapshots[0]].membership)
    assert changes(home.observe(model)) == []
    assert changes(home.observe(model, FULL)) == [Change.RECORD_DAMAGED]


def test_columns_that_changed_are_named(home: LineageHome, model: ModelVersion) -> None:
    table = pq.read_table(home.source)
    pq.write_table(table.rename_columns(["at", "seen", "id", "lateness"]), home.source)
    found = home.observe(model, ROWS)
    message = the(found, Change.RESTATED).message
    assert "column 'delay' was int64, is missing; column 'lateness' was missing, is int64" in message
    assert found.seen[0].delta is None


def test_a_row_that_was_deleted_shuts_whatever_the_policy(home: LineageHome, model: ModelVersion) -> None:
    home.define(VIEW.replace("36500d", "36500d, on_restatement: warn"))
    home.rows.pop(0)
    home.write()
    found = home.observe(model, ROWS)
    assert "1 of the rows" in the(found, Change.MEMBERS_DELETED).message
    policy = policy_of(model, home.state)
    assert effect(Change.MEMBERS_DELETED, policy).shuts is Why.NO
    assert worst_state(found.causes, policy) is ModelState.ERASURE_PENDING


def test_what_was_not_read_has_no_known_delta(home: LineageHome, model: ModelVersion) -> None:
    correct(home)
    assert staleness(home.observe(model).seen, NOW).delta is None
    record(home, home.observe(model, ROWS))
    assert staleness(home.observe(model).seen, NOW).delta == Delta(corrected=1, newer=2)


def test_what_was_recorded_of_a_version_keeps_it_from_being_served(home: LineageHome, model: ModelVersion) -> None:
    digest = model.weights.manifest
    findings = (RuleFinding(rule="label after prediction", rows=0), RuleFinding(rule="embargo", rows=3))
    checked = LeakageChecked(at=NOW, model=model.key, name="pit", rules=digest, rows=digest, findings=findings)
    home.ledger.commit(lambda _state: [checked, Retired(at=NOW, model=model.key, reason="replaced")])
    found = home.observe(model)
    assert the(found, Change.LEAKED).details == ("embargo: 3 rows",)
    assert the(found, Change.RETIRED).message.endswith("replaced")
    assert worst_state(found.causes, policy_of(model, home.state)) is ModelState.LEAKED
    clean = checked.model_copy(update={"findings": findings[:1]})
    home.ledger.commit(lambda _state: [clean])
    assert changes(home.observe(model)) == [Change.RETIRED]


def test_an_erasure_shuts_the_gate_and_is_settled_by_a_version_without_the_rows(
    home: LineageHome, model: ModelVersion
) -> None:
    hashes = key_hashes(pa.array([2]), home.state.salt)
    tombstones = home.objects.put(encode_tombstones(hashes, home.state.salt))
    erased = Erased(
        at=NOW, erasure="e" * 64, series=("trips",), tombstones=tombstones, keys=1, absent=0, snapshots=model.snapshots
    )
    home.ledger.commit(lambda _state: [erased])
    cause = the(home.observe(model), Change.ERASURE_PENDING)
    assert "eeeeeeeeeeee" in cause.message
    retrained = home.register("delays", 2, Origin("delays", (f"trips@{home.take().id}",)))
    assert home.state.snapshots[retrained.snapshots[0]].rows == 5
    assert changes(home.observe(retrained, FULL)) == []
    assert changes(home.observe(model)) == [Change.ERASED]
    assert "delays/2 was made without them" in the(home.observe(model), Change.ERASED).message


def test_a_source_this_machine_cannot_open_is_unread_and_not_restated(home: LineageHome) -> None:
    snapshot = home.take()
    series = snapshot.series.model_copy(update={"source": "nonsense:somewhere"})
    moved = snapshot.model_copy(update={"series": series})
    home.ledger.commit(lambda _state: [SnapshotTaken(at=NOW, snapshot=moved)])
    model = home.register("delays", 1, Origin("delays", (f"trips@{moved.id}",)))
    assert changes(home.observe(model)) == [Change.SOURCE_UNREAD]


def test_everything_wrong_is_found_at_once(home: LineageHome, model: ModelVersion) -> None:
    correct(home)
    (Path(model.weights.path) / "model.safetensors").unlink()
    home.damage(home.state.views["delays"].code[0].object)
    home.define(VIEW.replace("36500d", "1d").replace("seed: 7", "seed: 8"), trainer="print('other')\n")
    assert set(changes(home.observe(model, ROWS))) == {
        Change.WEIGHTS_CHANGED,
        Change.RECORD_DAMAGED,
        Change.RESTATED,
        Change.AGED,
        Change.VIEW_CHANGED,
    }


def test_looking_changes_nothing(home: LineageHome, model: ModelVersion) -> None:
    correct(home)
    before = home.ledger.load()
    home.observe(model, FULL)
    assert home.ledger.load() == before
