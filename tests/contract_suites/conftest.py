"""A private PostgreSQL server for the suites that run against one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest


def _program(name: str) -> str:
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    found = shutil.which(name) or (str(installed[0]) if installed else None)
    assert found, f"{name} is not installed; deselect these tests with -m 'not postgres'"
    return found


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """The folder of a running server's socket. The server is ours, listens to nothing else, and ends with the tests."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    # PostgreSQL refuses to run as root.
    unprivileged = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    if unprivileged:
        shutil.chown(folder, "postgres")
    data, log = folder / "data", folder / "log"

    def run(*command: str) -> None:
        subprocess.run([*unprivileged, *command], check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=60)

    run(_program("initdb"), "-D", str(data), "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8")
    options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
    run(_program("pg_ctl"), "-D", str(data), "-l", str(log), "-o", options, "-w", "start")
    yield folder
    run(_program("pg_ctl"), "-D", str(data), "-m", "immediate", "stop")
    shutil.rmtree(folder)


@pytest.fixture
def postgres_url(postgres_server: Path) -> str:
    """The URL of a new, empty schema."""
    import psycopg

    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(f"host={postgres_server} user=postgres dbname=postgres", autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    return f"postgresql+psycopg://postgres@/postgres?host={postgres_server}&options=-csearch_path%3D{name}"
