"""A model version and its certificate, as people read them: Markdown, one-line summaries, figures for charts.

Everything here is a pure function of a `Report`. What is written comes from files and strangers, so every piece of text
is escaped. The web page is in `snapline.contracts.report_html`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation

from snapline.contracts.certificate import Certificate
from snapline.contracts.verdict import TIMED, Finding, Verdict, Witness
from snapline.lineage.digest import short
from snapline.lineage.snapshot import Snapshot

SHOWN_FINDINGS = 200
_DESCRIPTION_CHARACTERS = 4_000
_LOUDEST_FIRST = {Verdict.REFUTED: 0, Verdict.UNDECIDED: 1, Verdict.CERTIFIED: 2}


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a certificate says and rests on.

    Attributes:
        certificate: Digest of the signed envelope.
        signer: Id of the key that signed it.
        reference, serving: What really ran, one line each.
        prompts: How many prompts the probe set has.
        confidence: The family-wise confidence, as a decimal string.
        noise_floor: Figures of the reference against itself, by name, as decimal strings.
        remarks: What was found beside the verdict and promises nothing: diagnostics, and the worst slices searched.
    """

    verdict: Verdict
    certificate: str
    signer: str
    issued_at: datetime
    contract: str
    contract_digest: str
    target: str
    reference: str
    serving: str
    probes: str
    probes_digest: str
    prompts: int
    confidence: str
    findings: tuple[Finding, ...]
    noise_floor: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """One model version: what it was made from, and its newest certificate when it has one.

    Attributes:
        model: The version, written `name/3`.
        view: Name of the view it materializes, and `view_digest` its digest; None for an external model.
        parents: Edges to other versions, one line each.
        others: The newest certificate for every other contract and thing that served, one line each.
    """

    model: str
    weights_digest: str
    weights_path: str
    snapshots: tuple[Snapshot, ...] = ()
    view: str | None = None
    view_digest: str | None = None
    parents: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    measurement: Measurement | None = None

    @property
    def verdict(self) -> Verdict:
        """The certificate's verdict; of nothing it is UNDECIDED."""
        return self.measurement.verdict if self.measurement else Verdict.UNDECIDED


def headline(report: Report) -> str:
    """Return one plain line: the verdict, the cut and the certificate."""
    certificate = f"certificate {short(report.measurement.certificate)}" if report.measurement else "no certificate"
    return " · ".join([report.verdict.value, cut_line(report), certificate])


def summary_tags(report: Report) -> dict[str, str]:
    """Return the facts a registry shows as tags; every value has at most 64 characters."""
    tags = {
        "snapline.verdict": report.verdict.value,
        "snapline.cut": cut_line(report).removeprefix("cut "),
        "snapline.data": " ".join(short(snapshot.digest) for snapshot in report.snapshots) or "none",
        "snapline.weights": short(report.weights_digest),
    }
    if report.measurement:
        tags["snapline.certificate"] = short(report.measurement.certificate)
        tags["snapline.target"] = report.measurement.target
    return {name: value if len(value) <= 64 else f"{value[:63]}…" for name, value in tags.items()}


def figures(report: Report) -> dict[str, float]:
    """Return estimate and upper limit of every finding that has them, named `clause/figure/path/slice/contract`.

    What tells figures apart comes first in the name, because lists cut names off. A searched slice is named by its
    predicate, whose characters a registry may not take: those become underscores.
    """
    if report.measurement is None:
        return {}
    named = {
        f"{finding.clause}/{figure}/{finding.path}/{_plain(finding.slice)}/{report.measurement.contract}": decimal(
            value
        )
        for finding in report.measurement.findings
        for figure, value in (("estimate", finding.estimate), ("upper", finding.upper))
    }
    return {name: float(value) for name, value in named.items() if value is not None}


def _plain(name: str) -> str:
    return re.sub(r"[^\w.\- ]", "_", name, flags=re.ASCII)


def render_description(report: Report) -> str:
    """Return Markdown of at most 4,500 characters whose first line is the plain `headline`."""
    parts = [headline(report)]
    if report.measurement:
        loudest = loudest_first(report.measurement.findings)
        rows = [_row(["Clause", "Slice", "Path", "Verdict", "Upper limit", "Allowed"]), _rule(6)]
        for number, found in enumerate(loudest):
            row = _row([found.clause, found.slice, found.path, found.verdict, found.upper, found.limit])
            if sum(map(len, rows)) + len(row) > _DESCRIPTION_CHARACTERS - 600:
                rows.append(f"\n{len(loudest) - number} more in report.html")
                break
            rows.append(row)
        parts += [f"Contract {_text(report.measurement.contract)} for {_text(report.measurement.target)}"]
        parts += ["\n".join(rows)]
    if report.others:
        parts.append("Other certificates: " + _text("; ".join(report.others)))
    parts.append("See report.html among the artifacts of the source model.")
    return "\n\n".join(parts)[:4_499] + "\n"


def render_markdown(report: Report) -> str:
    """Return the whole report as Markdown."""
    parts = [f"# {_text(report.model)}: {report.verdict.value}", _text(headline(report)), "## Made from"]
    parts.append(_table(["Fact", "Value"], model_facts(report)))
    measured = report.measurement
    if measured is None:
        return "\n\n".join([*parts, "## Certificate", "None yet. Run `snapline certify`."]) + "\n"
    parts += ["## Certificate", _table(["Fact", "Value"], certificate_facts(measured)), "## Findings"]
    shown = loudest_first(measured.findings)[:SHOWN_FINDINGS]
    head = ["Clause", "Slice", "Path", "Verdict", "Estimate", "Lower", "Upper", "Allowed", "Measured on", "Reason"]
    parts.append(_table(head, map(_finding_row, shown)))
    if len(measured.findings) > len(shown):
        parts.append(f"{len(measured.findings) - len(shown)} more findings are in certificate.json.")
    witnesses = [(found, found.witness) for found in shown if found.witness]
    if witnesses:
        parts += ["## Witnesses"]
        parts += [f"- {_text(place(found))}: {_text(witness_line(witness))}" for found, witness in witnesses]
    if measured.noise_floor:
        parts += ["## Noise floor", "The reference against itself, alone and in a batch."]
        parts.append(_table(["Figure", "Value"], sorted(measured.noise_floor.items())))
    return "\n\n".join(parts) + "\n"


def cut_line(report: Report) -> str:
    """Return `cut SINCE to UNTIL` over all snapshots, dates without a time where they are whole days; or `no cut`."""
    if not report.snapshots:
        return "no cut"
    since = min(snapshot.cut.since for snapshot in report.snapshots)
    until = max(snapshot.cut.until for snapshot in report.snapshots)
    return f"cut {instant(since)} to {instant(until)}"


def instant(value: datetime) -> str:
    """Return a UTC instant as short as it is exact: a date at midnight, else to the second or finer."""
    if value.timetz().replace(tzinfo=None) == datetime.min.time():
        return value.date().isoformat()
    return value.replace(tzinfo=None).isoformat() + "Z"


def decimal(text: str) -> Decimal | None:
    """Return a finding's figure; None when it was not measured."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def loudest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with REFUTED before UNDECIDED before CERTIFIED, otherwise in their order."""
    return sorted(findings, key=lambda finding: _LOUDEST_FIRST[finding.verdict])


def place(finding: Finding) -> str:
    """Return where a finding was made, on one line."""
    return f"{finding.clause}, slice {finding.slice}, {finding.path}"


def witness_line(witness: Witness) -> str:
    """Return the measured position that refutes, on one line."""
    shown = ", ".join(f"{name} {value}" for name, value in sorted(witness.figures.items()))
    tokens = " ".join(map(str, witness.tokens))
    return f"prompt {witness.prompt}, {witness.path}, position {witness.position}, tokens {tokens}: {shown}"


def model_facts(report: Report) -> list[tuple[str, str]]:
    """Return a version's snapshots, weights, view, parents and other certificates, as name and value."""
    facts = [(f"Snapshot {found.series.name}", _snapshot_line(found)) for found in report.snapshots]
    facts += [("Weights", report.weights_digest), ("Weights path", report.weights_path)]
    facts += [("View", f"{report.view} {report.view_digest}")] if report.view else []
    facts += [("Parent", parent) for parent in report.parents]
    return facts + [("Other certificate", other) for other in report.others]


def certificate_facts(measured: Measurement) -> list[tuple[str, str]]:
    """Return what a certificate binds, as name and value."""
    return [
        ("Certificate", measured.certificate),
        ("Issued", instant(measured.issued_at)),
        ("Signed by key", measured.signer),
        ("Contract", f"{measured.contract} {measured.contract_digest}"),
        ("Target", measured.target),
        ("Reference ran", measured.reference),
        ("Serving ran", measured.serving),
        ("Probe set", f"{measured.probes}, {measured.prompts} prompts, {measured.probes_digest}"),
        ("Confidence", f"{measured.confidence}, over all findings together"),
        *measured.remarks,
    ]


def remarks_of(certificate: Certificate) -> tuple[tuple[str, str], ...]:
    """Return a certificate's diagnostics and worst slices, as name and value."""
    diagnostics = [
        (f"Diagnostics, {path}", ", ".join(f"{name} {figure}" for name, figure in figures.items()) + "; no confidence")
        for path, figures in certificate.diagnostics.items()
    ]
    worst = [
        (
            f"Worst slice, {one.clause}, {one.path}",
            f"{one.slice or 'none'} of {one.candidates}: between {one.lower} and {one.upper} on {one.prompts} prompts",
        )
        for one in certificate.searched
    ]
    return (*diagnostics, *worst)


def how_measured(found: Finding) -> str:
    """Return how many prompts a finding rests on, how many gave no measurement, the level of each side, the method."""
    missing = f", {found.missing} missing" if found.missing else ""
    what = "runs" if found.path == TIMED else "prompts"
    return f"{found.prompts} {what}{missing}; {found.method} at level {found.level}"


def _finding_row(found: Finding) -> list[str]:
    numbers = [found.estimate, found.lower, found.upper, found.limit]
    return [found.clause, found.slice, found.path, found.verdict.value, *numbers, how_measured(found), found.reason]


def _snapshot_line(snapshot: Snapshot) -> str:
    cut = snapshot.cut
    known = f", known as of {instant(cut.as_of)}" if cut.as_of else ""
    window = f"{instant(cut.since)} to {instant(cut.until)}{known}"
    return f"{window}; {snapshot.rows:,} rows from {snapshot.series.source}; {snapshot.digest}"


_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~&])")


def _text(value: str) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(value.split()))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_text, cells))} |"


def _rule(columns: int) -> str:
    return "|" + "---|" * columns


def _table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [_row(row) for row in rows]
    return "\n".join([_row(head), _rule(len(head)), *lines]) if lines else "None."
