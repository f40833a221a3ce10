from __future__ import annotations

from pathlib import Path

import pytest
from lineage_home import DAY, START, TRAINER, VIEW, LineageHome

from snapline.lineage.errors import (
    ConflictError,
    DefinitionError,
    IntegrityError,
    NotFoundError,
    SnaplineError,
    TrainerError,
)
from snapline.lineage.series import CutOptions

BASED = VIEW.replace("seed: 7}", "seed: 7}\nbase_model: base")


@pytest.fixture
def home(tmp_path: Path) -> LineageHome:
    home = LineageHome(tmp_path)
    home.take()
    return home


def left_in_work(home: LineageHome) -> list[Path]:
    return list((home.folder / "work").iterdir()) if (home.folder / "work").exists() else []


def refused(home: LineageHome, error: type[SnaplineError], message: str) -> None:
    with pytest.raises(error, match=message):
        home.materialize()
    assert "delays" not in home.state.models
    assert left_in_work(home) == []


def test_what_the_trainer_wrote_is_registered_with_what_made_it(home: LineageHome) -> None:
    view = home.define()
    model = home.materialize(cut=CutOptions(until="2013-01-03"))
    assert (str(model.key), model.view) == ("delays/1", view.digest)
    (snapshot,) = (home.state.snapshots[identifier] for identifier in model.snapshots)
    assert (snapshot.cut.until, snapshot.rows) == (START + 2 * DAY, 4)
    folder = Path(model.weights.path)
    assert folder.parent == (home.folder / "weights").resolve()
    assert [file.name for file in folder.iterdir()] == ["model.safetensors"]
    assert home.heard == ["training"]
    assert model.materialize_seconds is not None
    assert home.observe(model).causes == ()
    assert left_in_work(home) == []


def test_the_same_rows_and_trainer_give_the_same_version(home: LineageHome) -> None:
    home.define()
    cut = CutOptions(as_of="2013-05-01")
    assert home.materialize(cut=cut) == home.materialize(cut=cut)


def test_a_view_may_read_one_snapshot_under_two_names(home: LineageHome) -> None:
    text = VIEW.replace("{trips: trips}", "{trips: trips, again: trips}")
    home.define(text.replace("* FROM trips", "trips.* FROM trips JOIN again USING (id)"))
    model = home.materialize()
    assert model.snapshots == (home.state.snapshot("trips").id,)


def test_an_unknown_view_is_not_found(home: LineageHome) -> None:
    refused(home, NotFoundError, "no view 'delays'; there are: none yet")


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ("import sys; print('no luck'); sys.exit(3)", r"exit status 3(.|\n)*no luck"),
        ("print('idle')", "wrote nothing to SNAPLINE_OUTPUT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
        ("import os; os.rmdir(os.environ['SNAPLINE_OUTPUT'])", "replaced the folder SNAPLINE_OUTPUT"),
    ],
)
def test_a_trainer_that_fails_registers_nothing(home: LineageHome, trainer: str, message: str) -> None:
    home.define(trainer=trainer)
    refused(home, TrainerError, message)


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ("open(os.environ['SNAPLINE_OUTPUT'] + '/notes.txt', 'w').write('x')", "holds no weights"),
        ("open(os.environ['SNAPLINE_OUTPUT'] + '/model.bin', 'wb').write(b'\\x80\\x02x')", "is a pickle"),
        ("os.symlink('/etc/hostname', os.environ['SNAPLINE_OUTPUT'] + '/w.safetensors')", "a symbolic link"),
    ],
)
def test_output_that_is_no_weights_registers_nothing(home: LineageHome, trainer: str, message: str) -> None:
    home.define(trainer=f"import os; {trainer}")
    refused(home, DefinitionError, message)
    assert not (home.folder / "weights").exists()


def test_a_query_that_selects_nothing_or_is_none_never_starts_the_trainer(home: LineageHome) -> None:
    home.define(VIEW.replace("FROM trips", "FROM trips WHERE id > 99"))
    refused(home, DefinitionError, "selects no row")
    home.define(VIEW.replace("* FROM trips", "nothing FROM trips"))
    refused(home, DefinitionError, "nothing")
    assert home.heard == []


def test_a_source_that_moves_while_its_rows_are_read_back_is_a_conflict(home: LineageHome) -> None:
    home.define()

    readings = []

    def meddle(what: str, done: int, total: int) -> None:
        readings.append(what)
        if readings.count("reading trips") == 2:
            home.rows[2]["delay"] = 99
            home.write()

    with pytest.raises(ConflictError, match="changed while it was read"):
        home.materialize(on_progress=meddle)
    assert not home.state.models
    assert home.heard == []
    assert left_in_work(home) == []


def test_a_source_that_is_gone_is_not_found(home: LineageHome) -> None:
    home.define()
    home.source.unlink()
    refused(home, NotFoundError, r"trips\.parquet")


def test_a_base_model_is_verified_before_anything_runs(home: LineageHome) -> None:
    base = home.register("base", 1)
    home.define(BASED)
    file = Path(base.weights.path) / "model.safetensors"
    kept = file.read_bytes()
    file.write_bytes(kept[:-1] + b"!")
    length = home.ledger.load().length
    refused(home, IntegrityError, "base/1 holds other bytes than registered: model.safetensors: tensor w changed")
    file.unlink()
    refused(home, IntegrityError, "is missing")
    Path(base.weights.path).rmdir()
    refused(home, NotFoundError, "no weights folder")
    assert home.heard == []
    assert home.ledger.load().length == length
    file.parent.mkdir()
    file.write_bytes(kept)
    assert [str(parent.model) for parent in home.materialize().parents] == ["base/1"]


def test_damaged_trainer_code_is_not_run(home: LineageHome) -> None:
    home.damage(home.define().code[0].object)
    refused(home, IntegrityError, "holds other bytes")


def test_a_view_redefined_while_its_trainer_runs_does_not_claim_the_weights(home: LineageHome) -> None:
    ran = home.define()
    model = home.materialize(on_output=lambda _line: _redefine(home))
    assert home.state.views["delays"].digest != ran.digest
    assert model.view == ran.digest


def _redefine(home: LineageHome) -> None:
    home.define(VIEW.replace("seed: 7", "seed: 8"), TRAINER)


def test_a_base_model_that_gets_a_new_version_while_the_trainer_runs_is_not_confused(home: LineageHome) -> None:
    home.register("base", 1)
    home.define(BASED)
    with pytest.raises(DefinitionError, match="the view's base model is base/2, the parent given is base/1"):
        home.materialize(on_output=lambda _line: home.register("base", 2) and None)
    assert "delays" not in home.state.models
    assert left_in_work(home) == []
    assert [str(parent.model) for parent in home.materialize().parents] == ["base/2"]


def test_a_view_may_build_on_its_own_newest_version(home: LineageHome) -> None:
    home.register("delays", 1)
    home.define(VIEW.replace("seed: 7}", "seed: 7}\nbase_model: delays"))
    model = home.materialize()
    assert (str(model.key), [str(parent.model) for parent in model.parents]) == ("delays/2", ["delays/1"])
