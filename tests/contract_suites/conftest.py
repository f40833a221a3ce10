"""A private PostgreSQL server and a private S3 server for the suites that run against them."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_suite import EVERY, Place
from source_tables import BUCKET, Maker

S3_IDENTITY = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret"}


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


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The endpoint of a running S3-compatible server with an empty bucket; it is ours, and ends with the tests."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    identity = {name.lower(): value for name, value in S3_IDENTITY.items()}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **identity)
    client.create_bucket(Bucket=BUCKET)
    yield endpoint
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The endpoint, once the environment names it as the AWS SDK expects."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in S3_IDENTITY.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    return s3_server


@pytest.fixture(params=EVERY, ids=lambda kind: kind.name)
def maker(request: pytest.FixtureRequest) -> Maker:
    """A maker of each kind of table that sources read; parametrize it with TRAVELLING for those with a history."""
    if request.param.remote:
        request.getfixturevalue("s3")
    made: Maker = request.param()
    return made


@pytest.fixture
def create(maker: Maker, tmp_path: Path) -> Place:
    """A function that makes the maker's table with its first rows, and opens it."""
    return Place(maker, tmp_path)
