"""`snapline contract`: write a kernel contract, and read what it really says."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Exit, Output
from snapline.cli.selftest import selftest

if TYPE_CHECKING:
    import pyarrow as pa

    from snapline.cli.wiring import Home
    from snapline.contracts.contract import KernelContract
    from snapline.contracts.lint import LintIssue
    from snapline.contracts.provenance import Provenance

app = typer.Typer(help="Kernel contracts: what a serving engine promises about its numbers.", no_args_is_help=True)

ContractArgument = Annotated[str, typer.Argument(help="A contract file, or a recorded name.")]
ProbesOption = Annotated[
    str | None, typer.Option("--probes", help="A probe file or a recorded set; default the contract's, if recorded.")
]


app.command("selftest")(selftest)


@app.callback()
def contracts() -> None:
    """Kernel contracts: what a serving engine promises about its numbers."""


@app.command("lint")
def lint(
    contract: ContractArgument,
    probes: ProbesOption = None,
    faults: Annotated[
        bool, typer.Option("--faults", help="Run known-bad engines too, for clauses that none of them breaks.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what is wrong with a contract before anything is measured.

    Exit 0 with nothing or warnings only, 1 with errors, 2 when it cannot be read. With a probe set, slices are counted;
    with a home, limits are held against the noise floor of the newest certificate on those probes. `--faults` takes a
    minute and needs the engines' libraries.
    """
    from snapline.cli.named import contract_bytes, home_if_any
    from snapline.contracts.lint import Severity, located, malformed
    from snapline.contracts.lint import lint as check
    from snapline.contracts.records import parse_contract
    from snapline.lineage.errors import DefinitionError

    opened = home_if_any(home)
    data, source = contract_bytes(contract, opened)
    try:
        parsed = parse_contract(data, source)
    except DefinitionError as problem:
        _answer_issues(Output(as_json), source, malformed(problem, source))
        raise typer.Exit(int(Exit.ASKED_WRONGLY)) from None
    prompts, floor = _known(parsed, probes, opened)
    caught = _caught(parsed, Output(as_json)) if faults else None
    issues = located(check(parsed, prompts=prompts, floor=floor, caught=caught), data.decode())
    _answer_issues(Output(as_json), source, issues)
    wrong = any(issue.severity is Severity.ERROR for issue in issues)
    raise typer.Exit(int(Exit.NO if wrong else Exit.DONE))


@app.command("show")
def show(contract: ContractArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show a contract with its defaults filled in, its digest and the level of each of its cells."""
    import yaml

    from snapline.cli.named import contract_named, home_if_any

    found = contract_named(contract, home_if_any(home)).contract
    document = found.model_dump(mode="json", exclude_none=True)
    facts = {"digest": found.digest, "cells": len(found.cells) + len(found.searched), "level": str(found.level)}
    lines = [f"# {name}: {value}" for name, value in facts.items()]
    spelt = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    Output(as_json).answer({"document": document} | facts, "\n".join([*lines, spelt]))


@app.command("explain")
def explain(
    contract: ContractArgument, probes: ProbesOption = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Say in words what a contract promises, how many prompts each promise needs, and what it leaves open."""
    from snapline.cli.named import contract_named, home_if_any
    from snapline.contracts.explain import explain as put
    from snapline.contracts.explain import words
    from snapline.contracts.lint.parts import prompts_inside
    from snapline.contracts.lint.promises import longest

    opened = home_if_any(home)
    found = contract_named(contract, opened).contract
    prompts, _ = _known(found, probes, opened)
    there = {}
    if prompts is not None:
        inside = {part.name: prompts_inside(part, prompts) for part in found.slices}
        there = {name: len(ids) for name, ids in inside.items() if ids is not None} | {"sample": prompts.num_rows}
    explanation = put(found, there, longest(found, prompts))
    document: dict[str, Any] = asdict(explanation)
    for promise, said in zip(explanation.promises, document["promises"], strict=True):
        for need, written in zip(promise.needs, said["needs"], strict=True):
            written["missing"] = need.missing
    Output(as_json).answer(document, words(explanation))


@app.command("init")
def init(
    name: Annotated[str, typer.Option(help="Name of the contract.")] = "chat",
    out: Annotated[Path | None, typer.Option(help="Write it to this new file; default stdout.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a commented contract to start from."""
    from snapline.cli.files import write
    from snapline.contracts.starter import starter
    from snapline.lineage.errors import DefinitionError

    text = starter(name)
    if out is not None:
        if out.exists():
            raise DefinitionError(f"{out} is there already", hint="Name a new file with --out.")
        write(out, text.encode())
    Output(as_json).answer({"path": str(out) if out else None, "document": text}, f"wrote {out}" if out else text)


@app.command("schema")
def schema(
    out: Annotated[Path | None, typer.Option(help="Write it to this file; default stdout.")] = None,
) -> None:
    """Print the JSON Schema of a contract, for editors that check and complete as one types."""
    import json

    from snapline.cli.files import write
    from snapline.contracts.schema import contract_schema

    document = contract_schema()
    if out is None:
        Output(as_json=True).answer(document, "")
        return
    write(out, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())
    Output(as_json=False).answer({}, f"wrote {out}")


def _caught(contract: KernelContract, output: Output) -> dict[str, str]:
    """Return the largest figure any known-bad engine shows under each clause of a contract."""
    from snapline.contracts.selftest import run

    with output.progress("self test") as on_progress:
        return dict(run(contract, report=on_progress).caught)


def _known(
    contract: KernelContract, probes: str | None, home: Home | None
) -> tuple[pa.Table | None, dict[str, str] | None]:
    """Return the probe table, and the noise floor last measured on it; with lengths in tokens where those are known."""
    from snapline.cli.named import probes_named, recorded_probes
    from snapline.contracts.lint.parts import with_written_lengths
    from snapline.contracts.probe import probes_digest
    from snapline.contracts.slices import with_lengths

    found = probes_named(probes, home) if probes else recorded_probes(contract.probes, home)
    if found is None:
        return None, None
    if home is not None:
        state = home.state()
        digest = found.digest or probes_digest(found.table, state.algorithm)
        measured = _newest_measured(contract, digest, home)
        if measured is not None:
            provenance, floor = measured
            return with_lengths(found.table, provenance), floor
    return with_written_lengths(found.table), None


def _newest_measured(contract: KernelContract, probes: str, home: Home) -> tuple[Provenance, dict[str, str]] | None:
    """Return the provenance and noise floor of the newest evidence of the contract's reference on some probes."""
    from snapline.cli.named import certificates
    from snapline.contracts.evidence import evidence_from_parquet
    from snapline.contracts.figures import decimal_text
    from snapline.contracts.provenance import provenance_of

    objects = home.objects(home.state().algorithm)
    asked = contract.reference
    for certificate in certificates(home):
        ran = certificate.reference
        if certificate.probes.digest != probes or (ran.engine, ran.dtype) != (asked.engine, asked.dtype):
            continue
        provenance = provenance_of(evidence_from_parquet(objects.read(certificate.evidence)))
        if provenance.temperature == decimal_text(contract.temperature):
            return provenance, certificate.noise_floor
    return None


def _answer_issues(output: Output, source: str, issues: tuple[LintIssue, ...]) -> None:
    document = {"contract": source, "issues": [issue.model_dump(mode="json") for issue in issues]}
    lines = [
        f"{source}:{issue.line or 1}: {issue.severity}: {issue.field}: {issue.message} [{issue.kind}]"
        for issue in issues
    ]
    output.answer(document, "\n".join(lines) or f"{source}: nothing wrong")
