"""The command that serves MLflow's pages over the store the mirror writes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from snapline.lineage.registries.mlflow_session import QUIET_ENVIRONMENT, require_mlflow


def server_command(tracking_uri: str, artifacts: Path, host: str, port: int) -> tuple[list[str], Mapping[str, str]]:
    """Return the arguments that start MLflow's server, and what to add to its environment.

    One worker and no background jobs: a person browses it. The documents of mirrored versions are read from where the
    mirror wrote them; what somebody uploads through the server goes under `artifacts` too.

    Args:
        tracking_uri: The store, as in `MlflowRegistry`.
        artifacts: The artifact folder, as in `MlflowRegistry`.
        host: The address to listen on.
        port: The port to listen on.

    Raises:
        MirrorError: MLflow is not installed.
    """
    require_mlflow()
    argv = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri]
    argv += ["--artifacts-destination", str(artifacts), "--host", host, "--port", str(port), "--workers", "1"]
    return argv, {**QUIET_ENVIRONMENT, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
