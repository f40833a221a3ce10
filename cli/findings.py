"""Findings for people: one line each, with the loudest position where it speaks against the promise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapline.contracts.verdict import Finding, Searched, Witness

_OF_A_POSITION = ("half_span", "tv", "margin", "flip")
_OF_A_RUN = ("seconds_reference", "seconds_serving", "peak_reference", "peak_serving")


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """Return findings, indented under a heading: each that is not CERTIFIED with its witness, the others in short.

    A clause that is CERTIFIED on a slice on several paths takes one line, that of the path nearest to what is allowed.
    """
    from snapline.contracts.verdict import Verdict

    lines: list[str] = []
    kept: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        if finding.verdict is Verdict.CERTIFIED:
            kept.setdefault((finding.clause, finding.slice), []).append(finding)
        else:
            lines.append(_line(finding, finding.path))
            lines += _witness_lines(finding.witness) if finding.witness is not None else []
    for together in kept.values():
        nearest = max(together, key=lambda finding: float(finding.upper))
        others = len(together) - 1
        lines.append(_line(nearest, nearest.path + (f" and {others} more" if others else "")))
    return lines


def _line(finding: Finding, path: str) -> str:
    return f"  {finding.verdict:<9} {finding.clause} on {finding.slice}, {path}: {finding.reason}"


def _witness_lines(witness: Witness) -> list[str]:
    names = [name for name in (*_OF_A_POSITION, *_OF_A_RUN) if name in witness.figures]
    figures = ", ".join(f"{name} {short(witness.figures[name])}" for name in names)
    if "tv" not in witness.figures:
        return [f"            witness: run {witness.prompt}, {figures}"]
    return [
        f"            witness: prompt {witness.prompt}, position {witness.position}, {figures}",
        f"            tokens up to there: {' '.join(map(str, witness.tokens))}",
    ]


def searched_lines(searched: Sequence[Searched]) -> list[str]:
    """Return the worst slice of everything that was searched: the nearest to what is allowed, or the farthest over."""
    if not searched:
        return []
    worst = max(searched, key=lambda one: float(one.lower) / float(one.limit) if float(one.limit) else float(one.lower))
    interval = f"between {short(worst.lower)} and {short(worst.upper)}"
    refuted = sum(one.finding is not None for one in searched)
    return [
        f"  searched  {worst.candidates} slices for each of {len(searched)} clauses and paths, {refuted} refuted; "
        f"{worst.passed_over} slices were too small",
        f"            worst: {worst.clause}, {worst.path}, on {worst.slice or 'none'}: {interval}, "
        f"allowed {worst.limit}, {worst.prompts} prompts",
    ]


def diagnostic_lines(diagnostics: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return unbounded figures by path; nothing is promised about them."""
    return [
        f"  diagnostics on {path}, without confidence: "
        + ", ".join(f"{name} {short(figure)}" for name, figure in figures.items())
        for path, figures in diagnostics.items()
    ]


def short(figure: str) -> str:
    """Return a figure to four significant digits; a word stays a word."""
    from snapline.contracts.report import decimal

    number = decimal(figure)
    return figure if number is None else f"{number:.4g}"
