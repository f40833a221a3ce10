"""`snapline evidence`: what was measured, and how two measurements differ."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.findings import diagnostic_lines, short
from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output

if TYPE_CHECKING:
    from snapline.cli.named import NamedEvidence
    from snapline.cli.wiring import Home
    from snapline.contracts.compare import Comparison, Difference
    from snapline.contracts.logits import Kept

app = typer.Typer(help="Evidence: the measured figures behind a certificate.", no_args_is_help=True)

EvidenceArgument = Annotated[str, typer.Argument(help="A Parquet file, an object's address, or a model.")]
_NAMED_OTHERWISE = ("lengths", "sampled")


@app.callback()
def evidence() -> None:
    """Evidence: the measured figures behind a certificate."""


@app.command("show")
def show(evidence: EvidenceArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show what was measured on what: provenance, rows by pair and path, noise floor and unbounded figures."""
    from snapline.cli.named import evidence_named, home_if_any
    from snapline.contracts.judge import noise_floor
    from snapline.contracts.summary import diagnostics, row_counts

    opened = home_if_any(home)
    found = evidence_named(evidence, opened)
    provenance = found.provenance.model_dump(mode="json", exclude=set(_NAMED_OTHERWISE))
    provenance |= {name: len(getattr(found.provenance, name)) for name in _NAMED_OTHERWISE}
    kept = [one for one in _kept(opened) if found.address and one.manifest.evidence == found.address]
    document = {
        "evidence": found.address or found.name,
        "model": found.certificate.model if found.certificate else None,
        "provenance": provenance,
        "measured": [asdict(count) for count in row_counts(found.table)],
        "noise_floor": noise_floor(found.table),
        "diagnostics": diagnostics(found.table),
        "logits": [_logits(one) for one in kept],
    }
    Output(as_json).answer(document, _shown(document, found))


@app.command("compare")
def compare(
    first: EvidenceArgument,
    second: EvidenceArgument,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.999999, help="Of all limits together.")] = 0.95,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two measurements of the same weights, probes, temperature and reference, prompt by prompt.

    What served may differ; differences are second less first, so below zero the second is nearer to the reference.
    """
    from snapline.cli.named import evidence_named, home_if_any
    from snapline.contracts.compare import compare as held_together
    from snapline.lineage.plain import plain

    opened = home_if_any(home)
    ours, theirs = evidence_named(first, opened), evidence_named(second, opened)
    compared = held_together(ours.table, theirs.table, confidence)
    same_bytes = ours.data == theirs.data
    document = {"first": ours.name, "second": theirs.name, "confidence": confidence, "same_bytes": same_bytes}
    Output(as_json).answer(document | plain(asdict(compared)), _compared(ours.name, theirs.name, compared, same_bytes))


@app.command("expire")
def expire(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Remove the full logits that `certify --keep-logits` kept and whose time is over."""
    from snapline.cli.wiring import Home, now
    from snapline.contracts.logits import LOGITS
    from snapline.contracts.logits import expire as remove

    opened = Home.open(home)
    removed = remove(opened.root / LOGITS, now())
    left = _kept(opened)
    lines = [
        f"removed {one.folder}: {one.size_bytes} bytes, expired {one.manifest.expires.isoformat()}" for one in removed
    ]
    lines.append(f"{len(left)} kept")
    document = {"removed": [_logits(one) for one in removed], "kept": [_logits(one) for one in left]}
    Output(as_json).answer(document, "\n".join(lines))


def _kept(home: Home | None) -> list[Kept]:
    from snapline.contracts.logits import LOGITS, kept

    return kept(home.root / LOGITS) if home else []


def _logits(kept: Kept) -> dict[str, Any]:
    return {
        "folder": str(kept.folder),
        "expires": kept.manifest.expires.isoformat(),
        "evidence": kept.manifest.evidence,
        "arrays": len(kept.manifest.files),
        "size_bytes": kept.size_bytes,
    }


def _shown(document: dict[str, Any], found: NamedEvidence) -> str:
    provenance = document["provenance"]
    lines = [f"evidence {document['evidence']}" + (f" of {document['model']}" if document["model"] else "")]
    lines += [f"  {name}: {provenance[name]}" for name in ("recipe", "weights", "probes", "reference", "serving")]
    lines.append(f"  temperature {provenance['temperature']}, {len(found.provenance.lengths)} prompts tokenized")
    lines += [
        f"  {count['pair']} on {count['path']}: {count['rows']} positions of {count['prompts']} prompts"
        for count in document["measured"]
    ]
    lines += [f"  timed {name}: {runs} runs" for name, runs in provenance["timings"].items()]
    if document["noise_floor"]:
        figures = ", ".join(f"{name.replace('_', ' ')} {short(f)}" for name, f in document["noise_floor"].items())
        lines.append(f"  noise floor, the reference alone against itself in a batch: {figures}")
    lines += diagnostic_lines(document["diagnostics"])
    lines += [
        f"  full logits until {one['expires']}: {one['folder']}, {one['size_bytes']} bytes"
        for one in document["logits"]
    ]
    return "\n".join(lines)


def _compared(first: str, second: str, compared: Comparison, same_bytes: bool) -> str:
    said = "byte for byte the same" if same_bytes else "every row is the same" if compared.identical else "they differ"
    serving = "the same thing serves" if compared.same_serving else "different things serve"
    lines = [f"{first} and {second}: {said}; {serving}"]
    for pair in compared.pairs:
        left_out = [
            f"{count} {what}"
            for count, what in (
                (pair.only_first, "only in the first"),
                (pair.only_second, "only in the second"),
                (pair.other_tokens, "with other tokens"),
                (pair.unusable, "with a figure that is no number"),
            )
            if count
        ]
        head = f"  {pair.pair} on {pair.path}: {pair.prompts} prompts" + (
            f" ({', '.join(left_out)})" if left_out else ""
        )
        lines.append(head + (", identical" if pair.identical else ""))
        if not pair.identical:
            lines += [f"    {_difference(one)}" for one in pair.differences]
    lines.append(f"  second less first; each limit at level {compared.level:.3g}")
    return "\n".join(lines)


def _difference(one: Difference) -> str:
    return (
        f"{one.measure}: {one.statistic} {one.first:.4g} and {one.second:.4g}, difference {one.difference:.4g}, "
        f"between {one.lower:.4g} and {one.upper:.4g} ({one.method})"
    )
