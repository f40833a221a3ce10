from __future__ import annotations

import json
from pathlib import Path

import pytest

from snapline.cli.wiring import SETTINGS, Home, initialise, located
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.events import Recorded

LEDGER = "sqlite:///{home}/ledger.db"
DIGEST = "sha256-object-v1:" + "0" * 64


def init(root: Path, algorithm: BulkAlgorithm = BulkAlgorithm.BLAKE3, ledger: str = LEDGER) -> bool:
    return initialise(root, algorithm, ledger)


def content(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    init(tmp_path / "home")
    return tmp_path / "home"


def test_a_new_home_has_its_parts_and_one_entry(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "home"
    assert init(root, BulkAlgorithm.SHA256) is True
    home = Home.open(root)
    assert home.state().algorithm is BulkAlgorithm.SHA256
    assert home.ledger.verify() == 1
    assert (root / "keys" / "signing.key").stat().st_mode & 0o777 == 0o600
    assert home.key.key_id in home.trusted
    assert not (root / "mlflow.db").exists()
    assert not list(root.rglob("*.tmp"))


def test_twice_changes_nothing(root: Path) -> None:
    before = content(root)
    assert init(root) is False
    assert content(root) == before


@pytest.mark.parametrize(
    "other", [{"algorithm": BulkAlgorithm.SHA256}, {"ledger": "sqlite:///{home}/other.db"}], ids=["hash", "ledger"]
)
def test_other_settings_are_refused_and_change_nothing(root: Path, other: dict[str, object]) -> None:
    before = content(root)
    with pytest.raises(DefinitionError, match="was initialised with") as caught:
        init(root, **other)
    assert "another" in caught.value.hint
    assert content(root) == before


@pytest.mark.parametrize("crashed_after", ["key", "trust", "settings"])
def test_a_home_half_made_by_a_crash_is_completed(tmp_path: Path, crashed_after: str) -> None:
    whole, root = tmp_path / "whole", tmp_path / "home"
    init(whole)
    kept = {
        "key": ["keys/signing.key"],
        "trust": ["keys/signing.key", *(f"keys/trusted/{p.name}" for p in (whole / "keys/trusted").iterdir())],
    }
    for name in kept.get(crashed_after, [*kept["trust"], SETTINGS]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes((whole / name).read_bytes())
    (root / "keys" / "signing.key").chmod(0o600)
    with pytest.raises(NotFoundError, match="half made" if crashed_after == "settings" else "no Snapline home"):
        Home.open(root).state()
    assert init(root) is True
    assert Home.open(root).ledger.verify() == 1
    assert Home.open(root).key.key_id == Home.open(whole).key.key_id


def test_init_does_not_trust_again_a_key_its_owner_stopped_trusting(root: Path) -> None:
    (public,) = (root / "keys" / "trusted").iterdir()
    public.unlink()
    with pytest.raises(IntegrityError):
        init(root)
    assert not list((root / "keys" / "trusted").iterdir())
    with pytest.raises(IntegrityError):
        Home.open(root).state()


def test_a_folder_that_is_no_home_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no Snapline home") as caught:
        Home.open(tmp_path)
    assert "snapline init" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_where_the_home_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert located(None) == tmp_path / ".snapline"
    assert located(Path("other")) == tmp_path / "other"


def test_a_copy_without_the_signing_key_reads_and_cannot_write(root: Path) -> None:
    (root / "keys" / "signing.key").unlink()
    home = Home.open(root)
    assert home.state().algorithm is BulkAlgorithm.BLAKE3
    home.ledger.commit(lambda _state: [])
    event = Recorded(at=home.lens(home.state()).now, what="probes", name="x", digest=DIGEST, object=DIGEST)
    with pytest.raises(NotFoundError, match="without a signing key"):
        home.ledger.commit(lambda _state: [event])
    assert home.ledger.verify() == 1


def test_a_private_key_open_to_others_is_not_used(root: Path) -> None:
    (root / "keys" / "signing.key").chmod(0o644)
    with pytest.raises(IntegrityError, match="600"):
        Home.open(root).ledger.commit(lambda _state: [])


def test_the_ledger_may_lie_elsewhere(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    init(tmp_path / "home", ledger=url)
    assert (tmp_path / "team.db").exists()
    assert not (tmp_path / "home" / "ledger.db").exists()
    assert json.loads((tmp_path / "home" / SETTINGS).read_text())["ledger"] == url
    with pytest.raises(DefinitionError, match=r"cannot be used|expected the URL"):
        init(tmp_path / "third", ledger="nonsense")


def test_targets_come_from_the_home_or_from_the_option(root: Path, tmp_path: Path) -> None:
    home = Home.open(root)
    with pytest.raises(NotFoundError, match=r"targets\.yaml"):
        home.targets(None)
    other = tmp_path / "other.yaml"
    other.write_text("here: {engine: vllm, dtype: float32}\n")
    assert list(home.targets(other)) == ["here"]


def test_the_lens_sees_one_instant_and_may_leave_the_cache_out(root: Path) -> None:
    home = Home.open(root)
    lens = home.lens(home.state())
    assert lens.cache is not None
    assert lens.cache.now_ns == pytest.approx(lens.now.timestamp() * 1e9, abs=1000)
    assert home.lens(home.state(), use_cache=False).cache is None
