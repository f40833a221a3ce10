"""Open an MLflow client without its side effects: no telemetry, no chatter, no lasting global state.

MLflow is imported here and in the other `mlflow*` modules only, inside functions, because importing it takes seconds.
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from snapline.lineage.registries.protocol import MirrorError

if TYPE_CHECKING:
    from mlflow import MlflowClient

QUIET_ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_DISABLE_AGENT_HINT": "1",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }
)
"""What the process that imports MLflow should have in its environment, so that importing it is quiet as well."""

_CHATTY_LOGGERS = ("mlflow", "alembic")


def require_mlflow() -> None:
    """Raise unless MLflow is installed; does not import it.

    Raises:
        MirrorError: It is not installed.
    """
    if importlib.util.find_spec("mlflow") is None:
        raise MirrorError(
            "MLflow is not installed", hint="Install snapline[mlflow], then run snapline mirror --rebuild."
        )


@contextmanager
def mlflow_client(uri: str, lock: Path) -> Iterator[MlflowClient]:
    """Yield a client of the store at `uri`, alone among the processes that use the same lock file.

    MLflow has no find-or-create, so two processes that mirror one version at once would both create it.

    Raises:
        MirrorError: Whatever went wrong inside, MLflow's own failures included.
    """
    require_mlflow()
    try:
        with lock.open("w") as handle, _quiet_loggers():
            fcntl.flock(handle, fcntl.LOCK_EX)
            _silence_telemetry()
            from mlflow import MlflowClient

            with _global_uri(uri):
                yield MlflowClient(tracking_uri=uri, registry_uri=uri)
    except MirrorError:
        raise
    except Exception as error:
        # MLflow lets the errors of SQLAlchemy, Alembic and the file system through, so no narrower class will do.
        summary = str(error).partition("\n")[0] or type(error).__name__
        raise MirrorError(
            f"MLflow at {uri} failed: {summary}",
            hint="The ledger is not affected. Once MLflow works, run snapline mirror --rebuild.",
        ) from error


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _CHATTY_LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        import mlflow.utils.logging_utils  # noqa: F401 - MLflow sets its loggers' levels on import, so import it first

        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _silence_telemetry() -> None:
    from mlflow.environment_variables import MLFLOW_DISABLE_TELEMETRY
    from mlflow.telemetry import set_telemetry_client

    MLFLOW_DISABLE_TELEMETRY.set(True)
    set_telemetry_client()


@contextmanager
def _global_uri(uri: str) -> Iterator[None]:
    """MLflow's SQL registry resolves `models:/m-…` through the global address, whatever address its client has."""
    import mlflow

    before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)
