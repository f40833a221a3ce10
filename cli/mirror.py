"""`snapline mirror` and `snapline server`: the MLflow pages, which can always be written again from the ledger."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output

if TYPE_CHECKING:
    from snapline.cli.wiring import Home
    from snapline.contracts.certificate import Certificate
    from snapline.contracts.report import Measurement
    from snapline.lineage.events import Attested
    from snapline.lineage.model import ModelVersion, VersionKey
    from snapline.lineage.registries.protocol import MirrorRecord
    from snapline.lineage.state import State


def mirror(
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Write every version and alias again.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write what the ledger says into MLflow again; for when MLflow was absent, failed or was edited."""
    from snapline.cli.wiring import Home
    from snapline.lineage.errors import DefinitionError

    if not rebuild:
        raise DefinitionError("expected --rebuild", hint="Single versions are mirrored as they are recorded.")
    output, opened = Output(as_json), Home.open(home)
    state = opened.state()
    versions = [version for versions in state.models.values() for version in versions]
    with output.progress("mirror") as on_progress:
        for index, version in enumerate(versions):
            on_progress(str(version.key), index, len(versions))
            opened.registry.mirror(record_of(opened, state, version))
        held = {place: stack[-1].model for place, stack in state.holders.items() if stack}
        for (_, alias), key in held.items():
            opened.registry.set_alias(key, alias)
    document = {"versions": len(versions), "aliases": len(held)}
    output.answer(document, f"mirrored {len(versions)} versions and {len(held)} aliases")


def server(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 5000,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve the MLflow UI over this home on 127.0.0.1, until stopped."""
    from snapline.cli.wiring import Home, environment
    from snapline.lineage.registries.mlflow_server import server_command

    opened = Home.open(home)
    argv, extra = server_command(opened.tracking_uri, opened.root / "artifacts", "127.0.0.1", port)
    url = f"http://127.0.0.1:{port}"
    Output(as_json).answer({"url": url}, f"MLflow on {url}  (stop with Ctrl-C)")
    os.execve(argv[0], argv, {**environment(), **extra})


def mirror_version(home: Home, output: Output, key: VersionKey) -> None:
    """Show a version in MLflow, after any earlier one it lacks, so that its numbers are the ledger's.

    When that fails, warn: the ledger has it, and the mirror can be rebuilt.
    """
    from snapline.lineage.registries.protocol import MirrorError

    state = home.state()
    versions = state.models[key.name][: key.version]
    try:
        before = versions[:-1] if key.version > 1 and home.registry.show(versions[-2].key) is None else ()
        for version in (*before, versions[-1]):
            home.registry.mirror(record_of(home, state, version))
    except MirrorError as error:
        _warn(output, error.message)


def mirror_alias(home: Home, output: Output, key: VersionKey, alias: str) -> None:
    """Show an alias in MLflow; when that fails, warn."""
    from snapline.lineage.registries.protocol import MirrorError

    try:
        home.registry.set_alias(key, alias)
    except MirrorError as error:
        _warn(output, error.message)


def _warn(output: Output, message: str) -> None:
    output.note(f"warning: not mirrored to MLflow: {message}\n  catch up with: snapline mirror --rebuild")


def record_of(home: Home, state: State, model: ModelVersion) -> MirrorRecord:
    """Return what MLflow shows of a version."""
    from snapline.contracts import report
    from snapline.contracts.report_html import render_html
    from snapline.lineage.registries.protocol import MirrorRecord, ProbeSet

    objects = home.objects(state.algorithm)
    newest = _certificates(home, state, model)
    shown = newest[0] if newest else None
    envelope = objects.read(shown[0].envelope) if shown else b""
    snapshots = tuple(state.snapshots[identifier] for identifier in model.snapshots)
    told = report.Report(
        model=str(model.key),
        weights_digest=model.weights.digest,
        weights_path=model.weights.path,
        snapshots=snapshots,
        view=model.view_name,
        view_digest=model.view,
        parents=tuple(f"{parent.kind.value} {parent.model}" for parent in model.parents),
        others=tuple(_in_brief(certificate) for _, certificate in newest[1:]),
        measurement=_measurement(envelope, *shown) if shown else None,
    )
    artifacts = {"report.md": report.render_markdown(told).encode(), "report.html": render_html(told).encode()}
    if shown:
        artifacts["certificate.json"] = envelope
    return MirrorRecord(
        model=model,
        snapshots=snapshots,
        tags=report.summary_tags(told),
        description=report.render_description(told),
        metrics=report.figures(told),
        probes=ProbeSet(shown[1].probes.name, shown[1].probes.digest, shown[1].prompts) if shown else None,
        artifacts=artifacts,
    )


def _certificates(home: Home, state: State, model: ModelVersion) -> list[tuple[Attested, Certificate]]:
    """Return the newest certificate for each contract and thing that served, the one to show first.

    That is the newest of all under the version's own contract, or under any when it has none.
    """
    from snapline.contracts.gate import contracts_that_count, readable
    from snapline.contracts.inspection import Inspector
    from snapline.lineage.observe import Depth

    known, _ = readable(model, state, Inspector(state, home.lens(state), home.trusted, Depth()).read)
    newest = {(c.contract.name, c.target_identity.digest): (a, c) for a, c in known}
    counting = contracts_that_count(model, known)
    order = sorted(
        newest.values(), key=lambda pair: (pair[1].contract.name in counting, pair[1].issued_at), reverse=True
    )
    return order if order and order[0][1].contract.name in counting else []


def _in_brief(certificate: Certificate) -> str:
    served = f"{certificate.serving.engine} {certificate.serving.version} {certificate.serving.dtype}"
    return f"{certificate.verdict} under {certificate.contract.name} for {certificate.target}, served by {served}"


def _measurement(envelope: bytes, attested: Attested, certificate: Certificate) -> Measurement:
    from snapline.contracts.certificate import signer_of
    from snapline.contracts.report import Measurement, remarks_of

    def engine(side: str) -> str:
        ran = getattr(certificate, side)
        return f"{ran.engine} {ran.version} {ran.dtype} on {ran.device} ({ran.device_name})"

    return Measurement(
        verdict=certificate.verdict,
        certificate=attested.envelope,
        signer=signer_of(envelope),
        issued_at=certificate.issued_at,
        contract=certificate.contract.name,
        contract_digest=certificate.contract.digest,
        target=certificate.target,
        reference=engine("reference"),
        serving=engine("serving"),
        probes=certificate.probes.name,
        probes_digest=certificate.probes.digest,
        prompts=certificate.prompts,
        confidence=certificate.confidence,
        findings=certificate.findings,
        noise_floor=certificate.noise_floor,
        remarks=remarks_of(certificate),
    )
