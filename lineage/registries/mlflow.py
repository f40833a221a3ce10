"""The MLflow mirror: registered models, versions, logged models, data-set inputs and aliases.

One version of ours becomes a run (with the snapshots and the probe set as its data-set inputs), a logged model (with
the documents, and the metrics linked to the probe set) and a registered version whose source is the logged model. Each
is found again by two tags, the version's name and the home's id, and never by MLflow's own numbers, which other tools
and deletions move.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from snapline.lineage.digest import hex_part
from snapline.lineage.model import VersionKey
from snapline.lineage.registries.mlflow_session import mlflow_client
from snapline.lineage.registries.protocol import (
    HOME_TAG,
    TAG_PREFIX,
    VERSION_TAG,
    MirrorError,
    MirrorRecord,
    ProbeSet,
    Shown,
    not_mirrored,
    snapshot_label,
    source_document,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, LoggedModel, Run
    from mlflow.entities.model_registry import ModelVersion as RegisteredVersion
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

_SNAPSHOT_SOURCE = "snapline-snapshot"
_PROBES_SOURCE = "snapline-probes"
_SNAPSHOT_METRIC = "snapshot/"
_ALIAS_ATTEMPTS = 3


class MlflowRegistry:
    """A `Registry` over an MLflow store.

    Args:
        tracking_uri: The store, such as `sqlite:////path/mlflow.db`; made by the first `mirror`.
        artifacts: Absolute folder for the documents; made by the first `mirror`.
        home: Stable id of the ledger it mirrors: lower-case letters, digits and dashes.
    """

    def __init__(self, tracking_uri: str, artifacts: Path, home: str) -> None:
        self._tracking_uri = tracking_uri
        self._artifacts = artifacts
        self._home = home

    def mirror(self, record: MirrorRecord) -> str:
        """Make MLflow show `record`, and return `models:/name/number` with MLflow's number."""
        key = record.model.key
        try:
            self._artifacts.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MirrorError(f"cannot make the folder {self._artifacts}: {error}", hint="Check the path.") from error
        with self._pages(key) as pages:
            experiment = pages.find_or_create_experiment(self._artifacts)
            run = pages.find_or_create_run(experiment, record)
            model = pages.find_or_create_logged_model(run, record)
            version = pages.find_or_create_version(model, record)
            pages.log_metrics(model, record)
            pages.write_artifacts(model, record)
            pages.set_tags(version, model, record)
        return f"models:/{version.name}/{version.version}"

    def set_alias(self, model: VersionKey, alias: str) -> None:
        """Move an alias onto a mirrored version, and read it back."""
        if not self._artifacts.exists():
            raise not_mirrored(model)
        with self._pages(model) as pages:
            version = pages.version()
            if version is None:
                raise not_mirrored(model)
            pages.set_alias(version, alias)

    def show(self, model: VersionKey) -> Shown | None:
        """Return what MLflow shows of a version; None when it shows nothing."""
        if not self._artifacts.exists():
            return None
        with self._pages(model) as pages:
            version = pages.version()
            return pages.read(version) if version else None

    @contextmanager
    def _pages(self, key: VersionKey) -> Iterator[_Pages]:
        with mlflow_client(self._tracking_uri, self._artifacts.with_name(f"{self._artifacts.name}.lock")) as client:
            yield _Pages(client, key, {VERSION_TAG: str(key), HOME_TAG: self._home})


@dataclass(frozen=True, slots=True)
class _Pages:
    """The MLflow entities that show one version; `labels` are the tags each is found by."""

    client: MlflowClient
    key: VersionKey
    labels: Mapping[str, str]

    @property
    def _labelled(self) -> str:
        return " and ".join(f"tags.`{name}` = '{value}'" for name, value in self.labels.items())

    def find_or_create_experiment(self, artifacts: Path) -> str:
        """Return the id of the model's experiment, restored when somebody deleted it."""
        name = f"snapline/{self.key.name}"
        found = self.client.get_experiment_by_name(name)
        if found is None:
            return str(self.client.create_experiment(name, artifact_location=(artifacts / self.key.name).as_uri()))
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def find_or_create_run(self, experiment: str, record: MirrorRecord) -> Run:
        """Return the version's run, with the record's data sets among its inputs."""
        found = self.client.search_runs([experiment], filter_string=self._labelled, max_results=1)
        run = found[0] if found else self.client.create_run(experiment, tags=self.labels, run_name=str(self.key))
        inputs = [_snapshot_input(snapshot_label(found), source_document(found)) for found in record.snapshots]
        if record.probes:
            inputs.append(_probes_input(record.probes))
        if inputs:
            self.client.log_inputs(run.info.run_id, inputs)
        if run.info.status != "FINISHED":
            self.client.set_terminated(run.info.run_id)
        return run

    def find_or_create_logged_model(self, run: Run, record: MirrorRecord) -> LoggedModel:
        """Return the version's logged model; its parameters are the facts that never change.

        One whose run was deleted is replaced, because its source run cannot be changed.
        """
        experiment, run_id = run.info.experiment_id, run.info.run_id
        for found in self.client.search_logged_models([experiment], filter_string=self._labelled):
            if found.source_run_id == run_id:
                return found
            self.client.delete_logged_model(found.model_id)
        return self.client.create_logged_model(
            experiment,
            name=f"{self.key.name}-{self.key.version}",
            source_run_id=run_id,
            tags=dict(self.labels),
            params=_parameters(record),
        )

    def find_or_create_version(self, model: LoggedModel, record: MirrorRecord) -> RegisteredVersion:
        """Return the registered version whose source is the logged model, made anew with its aliases when it is not."""
        source, found = f"models:/{model.model_id}", self.version()
        if found and found.source == source:
            return found
        aliases = found.aliases if found else []
        if found:
            self.client.delete_model_version(found.name, found.version)
        self._ensure_registered_model()
        version = self.client.create_model_version(
            self.key.name, source, model.source_run_id, tags={**record.tags, **self.labels}
        )
        for alias in aliases:
            self.set_alias(version, alias)
        return version

    def version(self) -> RegisteredVersion | None:
        """Return the registered version, aliases included; None when there is none."""
        found = self.client.search_model_versions(f"name = '{self.key.name}' and {self._labelled}")
        if not found:
            return None
        # Copying a version in MLflow copies its tags, so the oldest is ours. A search never returns aliases.
        oldest = min(found, key=lambda version: int(version.version))
        return self.client.get_model_version(oldest.name, oldest.version)

    def log_metrics(self, model: LoggedModel, record: MirrorRecord) -> None:
        """Log the metrics that differ from the newest logged ones, as their next step."""
        newest = _newest_metrics(model)
        for name, value, measured_on in _metrics(record):
            step, before, measured_on_before = newest.get(name, (-1, None, (None, None)))
            if (before, measured_on_before) != (value, measured_on):
                self.client.log_metric(
                    model.source_run_id,
                    name,
                    value,
                    step=step + 1,
                    model_id=model.model_id,
                    dataset_name=measured_on[0],
                    dataset_digest=measured_on[1],
                )

    def write_artifacts(self, model: LoggedModel, record: MirrorRecord) -> None:
        """Make the logged model's files the record's documents, no more and no fewer."""
        repository = _repository(model)
        for stale in {file.path for file in repository.list_artifacts()} - set(record.artifacts):
            repository.delete_artifacts(stale)
        with tempfile.TemporaryDirectory() as folder:
            for name, data in record.artifacts.items():
                Path(folder, name).write_bytes(data)
            repository.log_artifacts(folder)
        if model.status != "READY":
            self.client.finalize_logged_model(model.model_id, "READY")

    def set_tags(self, version: RegisteredVersion, model: LoggedModel, record: MirrorRecord) -> None:
        """Make the `snapline.*` tags and the description of version and logged model the record's."""
        wanted = {**record.tags, **self.labels}
        registered = json.dumps([{"name": version.name, "version": int(version.version)}])
        noted = wanted | {"mlflow.note.content": record.description, "mlflow.modelVersions": registered}
        for name in _stale(version.tags, wanted):
            self.client.delete_model_version_tag(version.name, version.version, name)
        for name in _stale(model.tags, wanted):
            self.client.delete_logged_model_tag(model.model_id, name)
        for name, value in wanted.items():
            if version.tags.get(name) != value:
                self.client.set_model_version_tag(version.name, version.version, name, value)
        if any(model.tags.get(name) != value for name, value in noted.items()):
            self.client.set_logged_model_tags(model.model_id, noted)
        if version.description != record.description:
            self.client.update_model_version(version.name, version.version, record.description)

    def set_alias(self, version: RegisteredVersion, alias: str) -> None:
        """Set an alias and read it back; of two writers that first set an alias at once, MLflow lets one fail."""
        from mlflow.exceptions import MlflowException

        for attempt in range(1, _ALIAS_ATTEMPTS + 1):
            try:
                self.client.set_registered_model_alias(version.name, alias, version.version)
                break
            except MlflowException:
                if attempt == _ALIAS_ATTEMPTS:
                    raise
        holder = self.client.get_model_version_by_alias(version.name, alias)
        if int(holder.version) != int(version.version):
            raise MirrorError(
                f"alias {alias} of {version.name}: expected MLflow version {version.version}, found {holder.version}",
                hint="Something else moves it in MLflow. The ledger's alias holds; run snapline mirror --rebuild.",
            )

    def read(self, version: RegisteredVersion) -> Shown:
        """Return what the pages say now."""
        model = self.client.get_logged_model(version.source.removeprefix("models:/"))
        inputs = self.client.get_run(model.source_run_id).inputs.dataset_inputs
        datasets = [found.dataset for found in inputs if found.dataset.source_type == _SNAPSHOT_SOURCE]
        return Shown(
            uri=f"models:/{version.name}/{version.version}",
            tags=dict(version.tags),
            description=version.description or "",
            aliases=frozenset(version.aliases),
            sources=tuple(json.loads(dataset.source) for dataset in datasets),
            metrics={
                name: value
                for name, (_, value, _) in _newest_metrics(model).items()
                if not name.startswith(_SNAPSHOT_METRIC)
            },
            artifacts=_read_artifacts(model),
        )

    def _ensure_registered_model(self) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self.client.create_registered_model(self.key.name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise


def _snapshot_input(label: str, document: Mapping[str, str]) -> DatasetInput:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(
        name=document["snapshot"],
        digest=label,
        source_type=_SNAPSHOT_SOURCE,
        source=json.dumps(document),
        profile=json.dumps({"rows": int(document["rows"]), "buckets": int(document["buckets"])}),
    )
    tags = {"mlflow.data.context": "training", "snapline.data": document["digest"], "snapline.snapshot": document["id"]}
    return DatasetInput(dataset, [InputTag(name, value) for name, value in tags.items()])


def _probes_input(probes: ProbeSet) -> DatasetInput:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    document = {"probes": probes.name, "digest": probes.digest, "count": str(probes.count)}
    dataset = Dataset(
        name=probes.name,
        digest=_probes_label(probes),
        source_type=_PROBES_SOURCE,
        source=json.dumps(document),
        profile=json.dumps({"prompts": probes.count}),
    )
    tags = {"mlflow.data.context": "certification", "snapline.probes": probes.digest}
    return DatasetInput(dataset, [InputTag(name, value) for name, value in tags.items()])


def _probes_label(probes: ProbeSet) -> str:
    return hex_part(probes.digest)[:32]


def _parameters(record: MirrorRecord) -> dict[str, str]:
    model = record.model
    parameters = {
        "weights": model.weights.digest,
        "weights_path": model.weights.path,
        "weights_size_bytes": str(model.weights.size_bytes),
        "view": model.view_name,
        "view_digest": model.view,
        "parents": ", ".join(f"{parent.kind} {parent.model}" for parent in model.parents),
        "contract": model.contract,
    }
    return {name: value for name, value in parameters.items() if value}


_MeasuredOn = tuple[str | None, str | None]


def _metrics(record: MirrorRecord) -> Iterator[tuple[str, float, _MeasuredOn]]:
    """Yield each metric with its data set; MLflow's model pages list only data sets that have one."""
    for found in record.snapshots:
        yield f"{_SNAPSHOT_METRIC}{found.series.name}/rows", found.rows, (found.series.name, snapshot_label(found))
    probes = (record.probes.name, _probes_label(record.probes)) if record.probes else (None, None)
    for name, value in record.metrics.items():
        yield name, value, probes


def _newest_metrics(model: LoggedModel) -> dict[str, tuple[int, float, _MeasuredOn]]:
    """Return step, value and data set of each metric's last step."""
    ordered = sorted(model.metrics or (), key=lambda metric: (metric.step, metric.timestamp))
    return {found.key: (found.step, found.value, (found.dataset_name, found.dataset_digest)) for found in ordered}


def _stale(tags: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    return [name for name in tags if name.startswith(TAG_PREFIX) and name not in wanted]


def _repository(model: LoggedModel) -> ArtifactRepository:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(model.artifact_location)


def _read_artifacts(model: LoggedModel) -> dict[str, bytes]:
    repository = _repository(model)
    with tempfile.TemporaryDirectory() as folder:
        return {
            file.path: Path(repository.download_artifacts(file.path, folder)).read_bytes()
            for file in repository.list_artifacts()
        }
