from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from snapline.cli.output import Output
from snapline.cli.promote import _move, promote
from snapline.cli.wiring import Home, initialise
from snapline.contracts.gate import GateDecision, basis_of
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import ConflictError, DefinitionError, RequirementError
from snapline.lineage.events import Attested, LineageEvent, ModelRegistered, Promoted
from snapline.lineage.invalidation import Why
from snapline.lineage.model import ModelVersion, VersionKey, Weights

AT = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "blake3-object-v1:" + "a" * 64


def key(version: int) -> VersionKey:
    return VersionKey(name="model", version=version)


def version(number: int) -> ModelVersion:
    return ModelVersion(key=key(number), weights=Weights(digest=DIGEST, path="/w", manifest=DIGEST, size_bytes=1))


def promoted(number: int) -> Promoted:
    return Promoted(at=AT, model=key(number), alias="champion", target="production", envelope=DIGEST)


def decision(home: Home, number: int, why: Why | None = None) -> GateDecision:
    model = version(number)
    return GateDecision(model, "production", (), (), why, DIGEST, basis_of(model, home.state()))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Three attested versions, of which 1, then 2, was promoted."""
    initialise(tmp_path / "home", BulkAlgorithm.BLAKE3, "sqlite:///{home}/ledger.db")
    home = Home.open(tmp_path / "home")
    history: list[LineageEvent] = []
    for number in (1, 2, 3):
        history.append(ModelRegistered(at=AT, model=version(number)))
        history.append(Attested(at=AT, model=key(number), predicate_type="x", envelope=DIGEST))
    home.ledger.commit(lambda _state: [*history, promoted(1), promoted(2)])
    return home


def holders(home: Home) -> list[int]:
    return [held.model.version for held in home.state().holders["model", "champion"]]


def test_a_rollback_that_somebody_overtook_is_refused(home: Home) -> None:
    """Version 1 was looked at, then 3 was promoted: what is underneath now is 2, and nobody looked at that."""
    home.ledger.commit(lambda _state: [promoted(3)])
    with pytest.raises(ConflictError, match="somebody moved model@champion meanwhile"):
        _move(home, Output(False), decision(home, 1), "champion", rollback=True)
    assert holders(home) == [1, 2, 3]


def test_two_rollbacks_at_once_go_back_once(home: Home) -> None:
    rolled_back = Promoted(at=AT, model=key(1), alias="champion", target="production", envelope=DIGEST, rollback=True)
    home.ledger.commit(lambda _state: [rolled_back])
    with pytest.raises(ConflictError):
        _move(home, Output(False), decision(home, 1), "champion", rollback=True)
    assert holders(home) == [1]


@pytest.mark.parametrize("rollback", [True, False])
def test_a_shut_gate_moves_nothing(home: Home, rollback: bool) -> None:
    with pytest.raises(RequirementError, match="is shut"):
        _move(home, Output(False), decision(home, 1, Why.NO), "champion", rollback=rollback)
    assert holders(home) == [1, 2]


@pytest.mark.parametrize("alias", ["latest", "v1", "V22"])
def test_what_mlflow_takes_for_a_version_number_is_no_alias(home: Home, alias: str) -> None:
    with pytest.raises(DefinitionError, match="not an alias"):
        promote("model/3", to=alias, home=home.root)
    assert holders(home) == [1, 2]


def test_an_alias_that_cannot_be_a_name_is_refused(home: Home) -> None:
    with pytest.raises(DefinitionError, match="alias 'no/slash'"):
        _move(home, Output(False), decision(home, 3), "no/slash", rollback=False)
    assert holders(home) == [1, 2]
