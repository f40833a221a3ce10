"""`snapline certify`: does the program that serves it still compute what was evaluated?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from snapline.cli.findings import diagnostic_lines, finding_lines, searched_lines, short
from snapline.cli.options import HomeOption, JsonOption, ModelArgument, TargetOption, TargetsOption
from snapline.cli.output import Exit, Output

ENGINE_TIMEOUT_SECONDS = 900.0
# The reference and the serving engine work side by side, so each gets half of the cores unless the user says otherwise.
SHARED_CORES = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // 2))}

if TYPE_CHECKING:
    from snapline.cli.wiring import Home
    from snapline.contracts.certify import Issued
    from snapline.contracts.engines.client import WorkerEngine
    from snapline.contracts.engines.protocol import EngineSpec
    from snapline.contracts.logits import LogitsKeeper
    from snapline.lineage.model import ModelVersion


def certify(
    model: ModelArgument,
    target: TargetOption = None,
    contract: Annotated[
        str | None, typer.Option(help="A contract file or a recorded name; default the model's own.")
    ] = None,
    probes: Annotated[str | None, typer.Option(help="The probe set; default the contract's.")] = None,
    keep_logits: Annotated[
        str | None, typer.Option(help="Keep full logits so long, such as 7d; see snapline evidence expire.")
    ] = None,
    targets: TargetsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the reference against what serves, judge it, and record a signed certificate of the verdict.

    Exit 0 when CERTIFIED, 1 when REFUTED, 3 when UNDECIDED.
    """
    from snapline.cli.wiring import Home
    from snapline.contracts.verdict import Verdict

    output, opened = Output(as_json), Home.open(home)
    version = opened.resolve(model, opened.state())
    issued = run(opened, output, version, (target, targets), Wanted(contract, probes, keep_logits))
    output.answer(document(issued), text(issued))
    codes = {Verdict.CERTIFIED: Exit.DONE, Verdict.REFUTED: Exit.NO, Verdict.UNDECIDED: Exit.CANNOT_SAY}
    raise typer.Exit(int(codes[issued.certificate.verdict]))


class Wanted(NamedTuple):
    """What to certify with, as the options gave it."""

    contract: str | None
    probes: str | None = None
    keep_logits: str | None = None


def run(
    home: Home,
    output: Output,
    model: ModelVersion,
    target: tuple[str | None, Path | None],
    wanted: Wanted,
) -> Issued:
    """Certify one version in a home and mirror it; what `certify` and `apply` share.

    Args:
        target: The target's name and the targets file, as the options gave them.
    """
    from snapline.cli.mirror import mirror_version
    from snapline.contracts.certify import Bench, Request
    from snapline.contracts.certify import certify as issue
    from snapline.contracts.inspection import Inspector
    from snapline.contracts.records import contract_record
    from snapline.contracts.targets import choose
    from snapline.lineage.errors import DefinitionError
    from snapline.lineage.observe import Depth

    name, chosen = choose(home.targets(target[1]), target[0])
    state = home.state()
    lens = home.lens(state)
    contract = wanted.contract or model.contract
    if contract is None:
        raise DefinitionError(f"{model.key} has no contract of its own", hint="Name one with --contract.")
    record = contract_record(contract, state, lens.objects, lens.now)
    inspector = Inspector(state, lens, home.trusted, Depth())
    with output.progress(f"certify {model.key} for {name}") as on_progress:
        keeper = _keeper(home, wanted.keep_logits, lens.now)
        bench = Bench(inspector, home.ledger, WorkerEngines(home), home.key, lens.now, on_progress, keeper)
        issued = issue(Request(model, name, chosen, record, wanted.probes), bench)
    if keeper is not None and not issued.measured:
        keeper.discard()
        output.note("nothing was measured, so there were no logits to keep")
    mirror_version(home, output, model.key)
    return issued


def _keeper(home: Home, duration: str | None, now: datetime) -> LogitsKeeper | None:
    import uuid
    from datetime import timedelta

    from pydantic import TypeAdapter, ValidationError

    from snapline.contracts.logits import LOGITS, LogitsKeeper
    from snapline.lineage.errors import DefinitionError
    from snapline.lineage.view import Duration

    if duration is None:
        return None
    try:
        length: timedelta = TypeAdapter(Duration).validate_python(duration)
    except ValidationError as error:
        raise DefinitionError(
            f"--keep-logits: expected a duration, found {duration!r}", hint="Write one such as 90d, 36h or 15m."
        ) from error
    return LogitsKeeper(home.root / LOGITS / uuid.uuid4().hex, now + length)


class WorkerEngines:
    """Starts each engine in a worker process of its own."""

    def __init__(self, home: Home) -> None:
        self._home = home

    @contextmanager
    def start(
        self, spec: EngineSpec, model: Path, on_progress: Callable[[str, int, int], None]
    ) -> Iterator[WorkerEngine]:
        """Yield a started engine; it is stopped, and its files removed, when the context ends."""
        import tempfile

        from snapline.cli.wiring import environment
        from snapline.contracts.engines.client import WorkerEngine

        with tempfile.TemporaryDirectory(dir=self._home.workplace(), prefix=f"{spec.engine}-") as folder:
            on_progress(f"starting {spec.engine} {spec.dtype}", 0, 0)
            with WorkerEngine(
                spec,
                model,
                workdir=Path(folder),
                timeout_seconds=ENGINE_TIMEOUT_SECONDS,
                report=lambda what: on_progress(f"{spec.engine} {spec.dtype}: {what}", 0, 0),
                environment={**SHARED_CORES, **environment()},
            ) as engine:
                yield engine


def document(issued: Issued) -> dict[str, Any]:
    """Return a certificate as one JSON document."""
    certificate = issued.certificate
    return {
        "verdict": certificate.verdict.value,
        "certificate": issued.envelope,
        "model": certificate.model,
        "target": certificate.target,
        "contract": certificate.contract.name,
        "measured": issued.measured,
        "evidence_class": certificate.evidence_class,
        "confidence": certificate.confidence,
        "prompts": certificate.prompts,
        "noise_floor": certificate.noise_floor,
        "findings": [finding.model_dump(mode="json") for finding in certificate.findings],
        "searched": [found.model_dump(mode="json") for found in certificate.searched],
        "diagnostics": certificate.diagnostics,
    }


def text(issued: Issued) -> str:
    """Return a certificate for people."""
    certificate = issued.certificate
    under = f"under contract {certificate.contract.name}"
    reference, serving = (
        f"{side.engine} {side.version} {side.dtype}" for side in (certificate.reference, certificate.serving)
    )
    lines = [
        f"{certificate.verdict}  {certificate.model} for {certificate.target} {under}",
        f"  {serving} against {reference}; {certificate.prompts} prompts, confidence {certificate.confidence},"
        f" evidence class {certificate.evidence_class}",
    ]
    lines += finding_lines(certificate.findings)
    lines += searched_lines(certificate.searched)
    lines += diagnostic_lines(certificate.diagnostics)
    if certificate.noise_floor:
        figures = ", ".join(f"{n.replace('_', ' ')} {short(f)}" for n, f in certificate.noise_floor.items())
        lines.append(f"  noise floor, the reference alone against itself in a batch: {figures}")
    lines.append(
        f"  {'measured now' if issued.measured else 'judged on stored evidence'}; certificate {issued.envelope}"
    )
    return "\n".join(lines)
