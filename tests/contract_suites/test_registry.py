"""What every registry must do; then what only MLflow can get wrong."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from snapline.lineage.cut import Bucket, Cut, parse_instant
from snapline.lineage.model import EdgeKind, ModelVersion, Parent, VersionKey, Weights
from snapline.lineage.registries.memory import MemoryRegistry
from snapline.lineage.registries.mlflow import MlflowRegistry
from snapline.lineage.registries.mlflow_session import QUIET_ENVIRONMENT, require_mlflow
from snapline.lineage.registries.protocol import (
    MirrorError,
    MirrorRecord,
    ProbeSet,
    Registry,
    snapshot_label,
    source_document,
)
from snapline.lineage.snapshot import Commit, Series, Snapshot

if TYPE_CHECKING:
    from mlflow import MlflowClient

HOME = "3f1c9a"
NAMESPACE = Path(__file__).parents[2] / ".namespace"
PROBES = ProbeSet("chats", f"sha256-probes-v1:{'e' * 64}", 200)


def key(name: str, version: int = 1) -> VersionKey:
    return VersionKey(name=name, version=version)


def snapshot(source: str = "/data/flights.parquet") -> Snapshot:
    return Snapshot(
        series=Series(name="flights", source=source, time="dep_time", known="arr_known", key="id", bucket=Bucket.DAY),
        cut=Cut(
            since=parse_instant("2013-01-01"), until=parse_instant("2013-07-01"), as_of=parse_instant("2013-08-01")
        ),
        digest=f"blake3-rows-v2:{'c' * 64}",
        rows=166_158,
        buckets=181,
        manifest=f"blake3-object-v1:{'d' * 64}",
        taken_at=parse_instant("2026-01-01"),
        commit=Commit(id="1"),
        membership=f"blake3-object-v1:{'d' * 64}",
    )


def record(model: VersionKey, source: str = "/data/flights.parquet") -> MirrorRecord:
    return MirrorRecord(
        model=ModelVersion(
            key=model,
            weights=Weights(
                digest=f"blake3-weights-v1:{'a' * 64}",
                path="/models/w",
                manifest=f"blake3-object-v1:{'b' * 64}",
                size_bytes=269_000_000,
            ),
            view_name="delay-assistant",
            view=f"sha256-view-v1:{'f' * 64}",
            parents=(Parent(kind=EdgeKind.FINE_TUNED_FROM, model=key("smollm2")),),
        ),
        snapshots=(snapshot(source),),
        tags={"snapline.verdict": "UNDECIDED", "snapline.cut": "2013-01-01 to 2013-07-01"},
        description="UNDECIDED · no certificate yet\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
        metrics={"tv_token/upper/prefill/all/chat-bf16": 0.0421},
        probes=PROBES,
        artifacts={"report.md": b"# Report\n", "draft.md": b"draft"},
    )


def certified(before: MirrorRecord) -> MirrorRecord:
    return replace(
        before,
        tags={"snapline.verdict": "CERTIFIED", "snapline.certificate": "4f2a00112233"},
        description="CERTIFIED · certificate 4f2a00112233\n",
        metrics={"tv_token/upper/prefill/all/chat-bf16": 0.0133},
        artifacts={"report.md": b"# Certified\n", "certificate.json": b"{}"},
    )


@pytest.fixture(scope="module")
def mlflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mlflow-home")


def open_mlflow(folder: Path, home: str = HOME) -> MlflowRegistry:
    return MlflowRegistry(f"sqlite:///{folder}/mlflow.db", folder / "artifacts", home)


@pytest.fixture(params=["memory", pytest.param("mlflow", marks=pytest.mark.mlflow)])
def registry(request: pytest.FixtureRequest) -> Registry:
    """The registry under test; MLflow's is shared by the module, so each test names its own model."""
    if request.param == "memory":
        return MemoryRegistry(HOME)
    return open_mlflow(request.getfixturevalue("mlflow_home"))


def test_shows_what_was_mirrored(registry: Registry) -> None:
    wanted = record(key("shown"))
    assert registry.show(key("shown")) is None
    assert registry.mirror(wanted) == "models:/shown/1"
    shown = registry.show(key("shown"))
    assert shown is not None
    assert shown.uri == "models:/shown/1"
    assert shown.tags == {**wanted.tags, "snapline.version": "shown/1", "snapline.home": HOME}
    assert shown.description == wanted.description
    assert shown.sources == (source_document(wanted.snapshots[0]),)
    assert shown.metrics == wanted.metrics
    assert shown.artifacts == wanted.artifacts
    assert shown.aliases == frozenset()


def test_mirroring_twice_changes_nothing(registry: Registry) -> None:
    registry.mirror(record(key("twice")))
    before = registry.show(key("twice"))
    assert registry.mirror(record(key("twice"))) == "models:/twice/1"
    assert registry.show(key("twice")) == before


def test_a_changed_certificate_is_shown_in_place(registry: Registry) -> None:
    first = record(key("changed"))
    registry.mirror(first)
    registry.set_alias(key("changed"), "champion")
    assert registry.mirror(certified(first)) == "models:/changed/1"
    shown = registry.show(key("changed"))
    assert shown is not None
    assert shown.tags["snapline.verdict"] == "CERTIFIED"
    assert "snapline.cut" not in shown.tags
    assert shown.description == "CERTIFIED · certificate 4f2a00112233\n"
    assert shown.metrics == {"tv_token/upper/prefill/all/chat-bf16": 0.0133}
    assert shown.artifacts == {"report.md": b"# Certified\n", "certificate.json": b"{}"}
    assert shown.aliases == {"champion"}


def test_versions_mirrored_in_order_keep_our_numbers(registry: Registry) -> None:
    assert [registry.mirror(record(key("ordered", number))) for number in (1, 2, 3)] == [
        "models:/ordered/1",
        "models:/ordered/2",
        "models:/ordered/3",
    ]


def test_two_sources_with_the_same_rows_each_show_their_own(registry: Registry) -> None:
    for number, source in enumerate(("/data/a.parquet", "/data/b.parquet"), start=1):
        registry.mirror(record(key("sources", number), source))
    shown = [registry.show(key("sources", number)) for number in (1, 2)]
    first, second = (found.sources[0] for found in shown if found)
    assert first["digest"] == second["digest"]
    assert first["id"] != second["id"]
    assert (first["source"], second["source"]) == ("/data/a.parquet", "/data/b.parquet")


def test_an_alias_moves_and_moves_back(registry: Registry) -> None:
    def holders() -> list[bool]:
        return ["champion" in shown.aliases for number in (1, 2) if (shown := registry.show(key("alias", number)))]

    for number in (1, 2):
        registry.mirror(record(key("alias", number)))
    for number in (1, 2, 2, 1):
        registry.set_alias(key("alias", number), "champion")
        assert holders() == [number == 1, number == 2]


def test_an_alias_needs_a_mirrored_version(registry: Registry) -> None:
    with pytest.raises(MirrorError, match="unseen/1 is not in the registry") as refused:
        registry.set_alias(key("unseen"), "champion")
    assert "mirror --rebuild" in refused.value.hint


def test_an_external_model_without_snapshots_or_probes_is_shown(registry: Registry) -> None:
    bare = MirrorRecord(record(key("external")).model, description="UNDECIDED · no cut\n")
    registry.mirror(bare)
    shown = registry.show(key("external"))
    assert shown is not None
    assert (shown.sources, shown.metrics, shown.artifacts) == ((), {}, {})


# MLflow only.


@pytest.fixture
def client(mlflow_home: Path) -> Iterator[MlflowClient]:
    from mlflow import MlflowClient

    uri = f"sqlite:///{mlflow_home}/mlflow.db"
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def delete_version(client: MlflowClient, name: str) -> None:
    client.delete_model_version(name, "1")


def delete_registered_model(client: MlflowClient, name: str) -> None:
    client.delete_registered_model(name)


def delete_logged_model(client: MlflowClient, name: str) -> None:
    client.delete_logged_model(client.get_model_version(name, "1").source.removeprefix("models:/"))


def delete_run(client: MlflowClient, name: str) -> None:
    client.delete_run(client.get_model_version(name, "1").run_id)


def delete_experiment(client: MlflowClient, name: str) -> None:
    client.delete_experiment(client.get_experiment_by_name(f"snapline/{name}").experiment_id)


@pytest.mark.mlflow
@pytest.mark.parametrize(
    "delete", [delete_version, delete_registered_model, delete_logged_model, delete_run, delete_experiment]
)
def test_mlflow_shows_again_what_somebody_deleted(
    delete: Callable[[MlflowClient, str], None], mlflow_home: Path, client: MlflowClient
) -> None:
    registry, name = open_mlflow(mlflow_home), delete.__name__
    wanted = record(key(name))
    registry.mirror(wanted)
    delete(client, name)
    registry.mirror(wanted)
    registry.set_alias(key(name), "champion")
    shown = registry.show(key(name))
    assert shown is not None
    assert shown.sources == (source_document(wanted.snapshots[0]),)
    assert (shown.metrics, shown.artifacts, shown.aliases) == (wanted.metrics, wanted.artifacts, {"champion"})
    assert len(client.search_model_versions(f"name = '{name}'")) == 1


@pytest.mark.mlflow
def test_mlflow_versions_of_other_tools_and_homes_are_left_alone(mlflow_home: Path, client: MlflowClient) -> None:
    ours, theirs = open_mlflow(mlflow_home), open_mlflow(mlflow_home, home="another")
    client.create_registered_model("shared")
    client.create_model_version("shared", "/elsewhere", tags={"snapline.version": "shared/1"})
    assert ours.mirror(record(key("shared"))) == "models:/shared/2"
    assert theirs.mirror(record(key("shared"))) == "models:/shared/3"
    assert ours.mirror(certified(record(key("shared")))) == "models:/shared/2"
    assert client.get_model_version("shared", "1").tags == {"snapline.version": "shared/1"}
    assert client.get_model_version("shared", "3").tags["snapline.verdict"] == "UNDECIDED"


@pytest.mark.mlflow
def test_mlflow_never_holds_the_weights(mlflow_home: Path, client: MlflowClient) -> None:
    registry = open_mlflow(mlflow_home)
    registry.mirror(record(key("weightless")))
    version = client.get_model_version("weightless", "1")
    model = client.get_logged_model(version.source.removeprefix("models:/"))
    assert model.params["weights_path"] == "/models/w"
    assert model.params["weights"] == f"blake3-weights-v1:{'a' * 64}"
    assert {file.path for file in client.list_logged_model_artifacts(model.model_id)} == {"report.md", "draft.md"}


@pytest.mark.mlflow
def test_mlflow_metrics_belong_to_the_probe_set(mlflow_home: Path, client: MlflowClient) -> None:
    registry = open_mlflow(mlflow_home)
    registry.mirror(record(key("measured")))
    registry.mirror(certified(record(key("measured"))))
    registry.mirror(certified(record(key("measured"))))
    version = client.get_model_version("measured", "1")
    model = client.get_logged_model(version.source.removeprefix("models:/"))
    history = [(metric.step, metric.value, metric.dataset_name, metric.dataset_digest) for metric in model.metrics]
    assert sorted(history) == [
        (0, 0.0421, "chats", "e" * 32),
        (0, 166_158, "flights", snapshot_label(snapshot())),
        (1, 0.0133, "chats", "e" * 32),
    ]


@pytest.mark.mlflow
@pytest.mark.parametrize("alias", ["latest", "v1"])
def test_mlflow_aliases_it_reserves_are_refused(alias: str, mlflow_home: Path) -> None:
    registry = open_mlflow(mlflow_home)
    registry.mirror(record(key("reserved")))
    with pytest.raises(MirrorError, match="reserved"):
        registry.set_alias(key("reserved"), alias)


@pytest.mark.mlflow
def test_a_broken_store_is_one_error_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"not a database" * 100)
    with pytest.raises(MirrorError, match="not a database") as failed:
        open_mlflow(tmp_path).mirror(record(key("broken")))
    assert "mirror --rebuild" in failed.value.hint


def test_a_folder_that_cannot_be_made_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_text("a file")
    with pytest.raises(MirrorError, match="cannot make the folder"):
        open_mlflow(tmp_path).mirror(record(key("blocked")))


def test_a_missing_mlflow_is_one_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.path", [])
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    with pytest.raises(MirrorError, match="MLflow is not installed"):
        require_mlflow()
    with pytest.raises(MirrorError, match="MLflow is not installed"):
        open_mlflow(tmp_path).mirror(record(key("absent")))
    assert not (tmp_path / "mlflow.db").exists()


@pytest.mark.mlflow
def test_asking_makes_no_store(tmp_path: Path) -> None:
    registry = open_mlflow(tmp_path)
    assert registry.show(key("nothing")) is None
    with pytest.raises(MirrorError):
        registry.set_alias(key("nothing"), "champion")
    assert list(tmp_path.iterdir()) == []


MIRROR = """
import sys
from pathlib import Path
import mlflow
from snapline.lineage.model import ModelVersion
from snapline.lineage.registries.mlflow import MlflowRegistry
from snapline.lineage.registries.protocol import MirrorRecord
folder, model = Path(sys.argv[1]), ModelVersion.model_validate_json(sys.argv[2])
MlflowRegistry(f"sqlite:///{folder}/mlflow.db", folder / "artifacts", "home").mirror(MirrorRecord(model))
assert not mlflow.is_tracking_uri_set()
assert mlflow.telemetry.get_telemetry_client() is None
"""


def start_a_process_that_mirrors(name: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MIRROR, str(folder), record(key(name)).model.model_dump_json()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(NAMESPACE), "PATH": "/usr/bin:/bin", **QUIET_ENVIRONMENT},
    )


@pytest.mark.mlflow
def test_processes_that_mirror_one_version_at_once_show_it_once_and_say_nothing(tmp_path: Path) -> None:
    started = [start_a_process_that_mirrors("parallel", tmp_path) for _ in range(3)]
    for process in started:
        said, _ = process.communicate(timeout=120)
        assert (process.returncode, said) == (0, "")
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        assert database.execute("select name, version from model_versions").fetchall() == [("parallel", 1)]
