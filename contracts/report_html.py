"""The report as one web page: inline styles and drawings, no scripts, nothing fetched.

Registries show it inside a sandboxed frame, so it must stand alone; people print it, so it must fit paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from html import escape
from string import Template

from snapline.contracts.report import (
    SHOWN_FINDINGS,
    Measurement,
    Report,
    certificate_facts,
    decimal,
    headline,
    how_measured,
    loudest_first,
    model_facts,
    witness_line,
)
from snapline.contracts.verdict import Finding

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light; --ink: #1c2430; --soft: #5c6878; --line: #dde2e9; --tint: #f6f8fa;
  --CERTIFIED: #157347; --UNDECIDED: #96650a; --REFUTED: #b3261e; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem; color: var(--ink); background: #fff;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
header { display: flex; flex-wrap: wrap; gap: .75rem 1.25rem; align-items: center; padding-bottom: 1rem;
  border-bottom: 3px solid var(--$verdict); }
h1 { font-size: 1.6rem; margin: 0; }
h2 { font-size: 1.1rem; margin: 1.75rem 0 .5rem; }
p { margin: .25rem 0; }
.headline { flex-basis: 100%; color: var(--soft); }
.badge { color: #fff; background: var(--ink); border-radius: 999px; padding: .15rem .7rem; font-weight: 650;
  font-size: .8rem; letter-spacing: .03em; white-space: nowrap; }
header .badge { font-size: 1.05rem; padding: .3rem 1.1rem; }
.CERTIFIED { background: var(--CERTIFIED); } .UNDECIDED { background: var(--UNDECIDED); }
.REFUTED { background: var(--REFUTED); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid var(--line); }
thead th { background: var(--tint); color: var(--soft); font-weight: 600; white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.facts th { width: 10rem; color: var(--soft); font-weight: 600; }
.facts td, .code { font-family: ui-monospace, Menlo, "DejaVu Sans Mono", monospace; font-size: .8rem;
  overflow-wrap: anywhere; }
.reason td { border-bottom: 2px solid var(--line); padding-top: 0; color: var(--soft); }
.measured td { border-bottom: 0; }
svg { display: block; }
@media (max-width: 50rem) {
  body { padding: .5rem; } table { font-size: .8rem; } th, td { padding: .35rem .3rem; } .facts th { width: 7rem; }
  .badge { padding: .1rem .5rem; font-size: .7rem; }
}
.note { color: var(--soft); font-size: .85rem; }
@media print {
  @page { size: A4 landscape; margin: 12mm; }
  body { max-width: none; padding: 0; font-size: 11px; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  tbody, tr { break-inside: avoid; } h2 { break-after: avoid; } .wide { overflow: visible; }
}
</style>
</head>
<body>
<header><h1>$model</h1><span class="badge $verdict">$verdict</span><p class="headline">$headline</p></header>
$sections
</body>
</html>
""")

_BAR_WIDTH, _BAR_HEIGHT, _BAR_PADDING = 150, 22, 4
_WORDS, _NUMBERS = ("Promise", "Verdict", "Interval"), ("Estimate", "Lower", "Upper", "Allowed")


def render_html(report: Report) -> str:
    """Return the whole report as one HTML page that needs nothing else and runs nothing."""
    sections = [_made_from(report)]
    if report.measurement is None:
        sections.append(_section("Certificate", "<p>None yet. Run <code>snapline certify</code>.</p>"))
    else:
        sections += [_findings(report.measurement), _certificate(report.measurement)]
    return _PAGE.substitute(
        title=escape(f"{report.model} · {report.verdict}"),
        model=escape(report.model),
        verdict=report.verdict.value,
        headline=escape(headline(report)),
        sections="\n".join(sections),
    )


def _made_from(report: Report) -> str:
    return _section("Made from", _facts(model_facts(report)))


def _findings(measured: Measurement) -> str:
    shown = loudest_first(measured.findings)[:SHOWN_FINDINGS]
    rows = "".join(map(_finding, shown))
    head = "".join(f"<th>{name}</th>" for name in _WORDS)
    head += "".join(f'<th class="number">{name}</th>' for name in _NUMBERS)
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead>{rows}</table></div>'
    note = (
        '<p class="note">The bar runs from the lower to the upper confidence limit, the dot is the estimate and the '
        "dashed line the most the contract allows. Certified: the whole bar is at or left of the line.</p>"
    )
    more = len(measured.findings) - len(shown)
    rest = f"<p>{more} more findings are in certificate.json.</p>" if more else ""
    return _section("Findings", (table if shown else "<p>None.</p>") + rest + note)


def _finding(found: Finding) -> str:
    where = f"{found.slice} · {found.path}"
    numbers = (found.estimate, found.lower, found.upper, found.limit)
    reason = f"{escape(found.reason)}<br>{escape(how_measured(found))}"
    if found.witness:
        reason += f'<br>Witness: <span class="code">{escape(witness_line(found.witness))}</span>'
    return (
        '<tbody><tr class="measured">'
        f'<td><b>{escape(found.clause)}</b><br><span class="note">{escape(where)}</span></td>'
        f'<td><span class="badge {found.verdict}">{found.verdict}</span></td><td>{_bar(found)}</td>'
        + "".join(f'<td class="number">{escape(number)}</td>' for number in numbers)
        + f'</tr><tr class="reason"><td colspan="{len(_WORDS + _NUMBERS)}">{reason}</td></tr></tbody>'
    )


def _bar(found: Finding) -> str:
    """Draw the interval on an axis that begins at zero and has room for both the upper limit and the allowed one."""
    lower, upper, estimate, limit = map(decimal, (found.lower, found.upper, found.estimate, found.limit))
    if lower is None or upper is None or estimate is None or limit is None:
        return "not measured"
    longest = max(upper, limit, estimate) * Decimal("1.05") or Decimal(1)

    def x(value: Decimal) -> str:
        share = min(max(value / longest, Decimal(0)), Decimal(1))
        return f"{_BAR_PADDING + share * (_BAR_WIDTH - 2 * _BAR_PADDING):.1f}"

    middle, colour = _BAR_HEIGHT // 2, f"var(--{found.verdict})"
    width = max(Decimal(x(upper)) - Decimal(x(lower)), Decimal("1.5"))
    label = escape(f"{found.estimate}, between {found.lower} and {found.upper}, allowed {found.limit}", quote=True)
    return (
        f'<svg role="img" aria-label="{label}" width="{_BAR_WIDTH}" height="{_BAR_HEIGHT}">'
        f'<line x1="{x(Decimal(0))}" x2="{_BAR_WIDTH - _BAR_PADDING}" y1="{middle}" y2="{middle}" stroke="#dde2e9"/>'
        f'<rect x="{x(lower)}" y="{middle - 4}" width="{width}" height="8" rx="2" fill="{colour}" fill-opacity=".35"/>'
        f'<circle cx="{x(estimate)}" cy="{middle}" r="3.5" fill="{colour}"/>'
        f'<line x1="{x(limit)}" x2="{x(limit)}" y1="1" y2="{_BAR_HEIGHT - 1}" stroke="#1c2430" stroke-width="1.5" '
        'stroke-dasharray="3 2"/></svg>'
    )


def _certificate(measured: Measurement) -> str:
    body = _facts(certificate_facts(measured))
    if not measured.noise_floor:
        return _section("Certificate", body)
    floor = _facts(sorted(measured.noise_floor.items()))
    note = '<p class="note">The reference against itself, alone and in a batch.</p>'
    return _section("Certificate", body) + "\n" + _section("Noise floor", note + floor)


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts)
    return f'<table class="facts"><tbody>{rows}</tbody></table>'
