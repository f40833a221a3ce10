"""`snapline route`: stand before two servers, and send each request where a rollout's state says."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output

if TYPE_CHECKING:
    import uvicorn

    from snapline.cli.wiring import Home
    from snapline.contracts.contract import KernelContract
    from snapline.contracts.rollout.routes import Engine, Rules

INSTALL = "pip install 'snapline[router]'"


def route(
    name: Annotated[str, typer.Argument(help="The rollout whose traffic this is.")],
    serving: Annotated[str, typer.Option(help="URL of the serving engine's OpenAI-compatible server.")],
    reference: Annotated[str, typer.Option(help="URL of the reference's.")],
    log: Annotated[Path, typer.Option(help="Append the serving log to this file, as JSON lines.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8100,
    patience: Annotated[float, typer.Option(min=0.1, help="Seconds an engine may stay silent within an answer.")] = 300,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Route a rollout's traffic between its serving engine and the reference, until stopped.

    Clients speak to it as to either server: POST /v1/completions and /v1/chat/completions, GET /v1/models and /health.
    """
    from snapline.cli.wiring import Home

    output, opened = Output(as_json), Home.open(home)
    _require_name_of_log(log)
    read = reader(opened, name)
    places: dict[Engine, str] = {"serving": _url("--serving", serving), "reference": _url("--reference", reference)}
    first = read()
    with _listening(host, port) as listener:
        url = f"http://{host}:{listener.getsockname()[1]}"
        served = _app(first, read, places, log, patience, output)
        stage = first.stage or "no stage: everything goes to the reference"
        output.answer(
            {"url": url, "rollout": name, "stage": first.stage}, f"routing {name} on {url}  ({stage}; stop with Ctrl-C)"
        )
        served.run(sockets=[listener])


def reader(home: Home, name: str) -> Callable[[], Rules]:
    """Return what reads the rules of a rollout as they are now.

    It raises NotFoundError when the ledger has no such rollout or its contract, and DefinitionError when the contract
    demands figures that a server does not give.
    """
    from snapline.contracts.records import read_contract
    from snapline.contracts.rollout.routes import rules_of
    from snapline.lineage.errors import NotFoundError

    contracts: dict[str, KernelContract] = {}

    def read() -> Rules:
        state = home.state()
        rollout = state.rollouts.get(name)
        if rollout is None:
            known = ", ".join(sorted(state.rollouts)) or "none yet"
            raise NotFoundError(f"no rollout {name!r}; there are: {known}", hint="Begin one: snapline rollout start.")
        record = state.records.get(("contract", rollout.now.contract))
        if record is None:
            raise NotFoundError(
                f"rollout {name!r} is under contract {rollout.now.contract!r}, which is not recorded",
                hint="Record it by certifying under it.",
            )
        if record.object not in contracts:
            contracts[record.object] = _loggable(read_contract(record, home.objects(state.algorithm)))
        contract = contracts[record.object]
        return rules_of(rollout, contract.slices, contract.observability, contract.stages)

    return read


def _loggable(contract: KernelContract) -> KernelContract:
    """Return the contract, once it is clear that a server can give what it wants logged.

    Raises:
        DefinitionError: It wants log-probabilities at a temperature other than the servers'.
    """
    from snapline.contracts.rollout.documents import LogField
    from snapline.lineage.errors import DefinitionError

    figures = {LogField.SAMPLED_LOGPROB, LogField.MARGIN}
    if contract.observability and figures & set(contract.observability.log) and contract.temperature != 1:
        raise DefinitionError(
            f"contract {contract.name!r} wants log-probabilities at temperature {contract.temperature} logged, and "
            "OpenAI-compatible servers give raw ones, at 1",
            hint="Route under a contract with temperature 1, or leave sampled_logprob and margin out of its log.",
        )
    return contract


def _require_name_of_log(log: Path) -> None:
    from snapline.lineage.errors import DefinitionError

    if log.suffix != ".jsonl":
        raise DefinitionError(
            f"--log: expected a file named .jsonl, found {log.name!r}", hint="snapline observe reads it by that name."
        )


def _url(option: str, text: str) -> str:
    from snapline.lineage.errors import DefinitionError

    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise DefinitionError(f"{option}: expected the URL of a server, found {text!r}", hint="http://127.0.0.1:8000")
    return text.rstrip("/").removesuffix("/v1")


def _listening(host: str, port: int) -> socket.socket:
    from snapline.lineage.errors import ConflictError

    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConflictError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", hint="Choose another with --host or --port."
        ) from error


def _app(
    first: Rules, read: Callable[[], Rules], places: dict[Engine, str], log: Path, patience: float, output: Output
) -> uvicorn.Server:
    """Return the router, ready to run."""
    from snapline.cli.wiring import now
    from snapline.lineage.errors import DefinitionError

    try:
        import uvicorn

        from snapline.contracts.router import Router, Servers
    except ModuleNotFoundError as error:
        raise DefinitionError(f"the router needs {error.name}, which is not installed", hint=INSTALL) from error
    from snapline.contracts.rollout.following import Follower, Outside, Voice
    from snapline.contracts.rollout.log_writer import LogWriter
    from snapline.contracts.rollout.upstream import Upstream

    outside = Outside(now, time.monotonic, lambda: uuid.uuid4().hex, lambda text: output.note(f"warning: {text}"))
    voice = Voice(outside)
    servers = Servers(**{engine: Upstream(engine, url, patience) for engine, url in places.items()})
    router = Router(
        Follower(first, read, outside, voice), servers, LogWriter(log.absolute(), output.note), outside, voice
    )
    return uvicorn.Server(uvicorn.Config(router.app(), log_level="warning", access_log=False, lifespan="on"))
