from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from snapline.contracts.report import (
    Measurement,
    Report,
    figures,
    headline,
    render_description,
    render_markdown,
    summary_tags,
)
from snapline.contracts.report_html import render_html
from snapline.contracts.verdict import Finding, Verdict, Witness
from snapline.lineage.cut import Bucket, Cut, parse_instant
from snapline.lineage.model import ModelVersion, VersionKey, Weights
from snapline.lineage.registries.protocol import MirrorRecord
from snapline.lineage.snapshot import Commit, Series, Snapshot

SNAPSHOT = Snapshot(
    series=Series(name="flights", source="/data/f.parquet", time="t", known="k", key="id", bucket=Bucket.DAY),
    cut=Cut(since=parse_instant("2013-01-01"), until=parse_instant("2013-07-01"), as_of=parse_instant("2013-08-01T06")),
    digest=f"blake3-rows-v2:{'c' * 64}",
    rows=166_158,
    buckets=181,
    manifest=f"blake3-object-v1:{'d' * 64}",
    taken_at=parse_instant("2026-01-01"),
    commit=Commit(id="1"),
    membership=f"blake3-object-v1:{'d' * 64}",
)
WITNESS = Witness(prompt="chat-17", path="decode-forced", position=4, tokens=(50, 61), figures={"half_span": "3.25"})


def finding(verdict: Verdict, **changes: object) -> Finding:
    values: dict[str, object] = {
        "clause": "tv_token",
        "slice": "all",
        "path": "prefill",
        "verdict": verdict,
        "prompts": 200,
        "missing": 0,
        "estimate": "0.0142",
        "lower": "0.0101",
        "upper": "0.0433",
        "limit": "0.10",
        "level": "0.00417",
        "method": "empirical-bernstein",
        "reason": "The upper limit is under the limit.",
    }
    return Finding.model_validate(values | changes)


def report(*findings: Finding) -> Report:
    return Report(
        model="delay-assistant/3",
        weights_digest=f"blake3-weights-v1:{'a' * 64}",
        weights_path="/models/w",
        snapshots=(SNAPSHOT,),
        view="delay-assistant",
        view_digest=f"sha256-view-v1:{'f' * 64}",
        parents=("fine_tuned_from smollm2/1",),
        measurement=Measurement(
            verdict=Verdict.CERTIFIED,
            certificate=f"sha256-envelope-v1:{'4f2a' * 16}",
            signer="9d1f",
            issued_at=parse_instant("2026-11-30T12:00:00Z"),
            contract="chat-bf16",
            contract_digest=f"sha256-contract-v1:{'8' * 64}",
            target="production",
            reference="transformers 5.19.0 float32 cpu",
            serving="vllm 0.32.0 bfloat16 cpu",
            probes="chats",
            probes_digest=f"sha256-probes-v1:{'e' * 64}",
            prompts=200,
            confidence="0.95",
            findings=findings,
            noise_floor={"half_span.max": "0.000019"},
        ),
    )


UNCERTIFIED = replace(report(), measurement=None)


class Page(HTMLParser):
    """Collects what a browser would run, fetch and show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def test_the_headline_is_one_plain_line() -> None:
    assert headline(report()) == "CERTIFIED · cut 2013-01-01 to 2013-07-01 · certificate 4f2a4f2a4f2a"
    assert headline(UNCERTIFIED) == "UNDECIDED · cut 2013-01-01 to 2013-07-01 · no certificate"
    assert headline(replace(UNCERTIFIED, snapshots=())) == "UNDECIDED · no cut · no certificate"


def test_an_instant_inside_a_day_keeps_its_time() -> None:
    cut = Cut(since=parse_instant("2013-01-01"), until=parse_instant("2013-07-01T06:30:00.000001Z"))
    inside = SNAPSHOT.model_copy(update={"cut": cut})
    assert "cut 2013-01-01 to 2013-07-01T06:30:00.000001Z" in headline(replace(report(), snapshots=(inside,)))


@pytest.mark.parametrize("render", [render_markdown, render_html])
def test_both_forms_say_what_a_release_engineer_needs(render: object) -> None:
    assert callable(render)
    refuted = finding(Verdict.REFUTED, clause="half_span", path="decode-forced", missing=3, witness=WITNESS)
    text = render(report(finding(Verdict.CERTIFIED), refuted)).replace("\\", "")
    for expected in (
        *("delay-assistant/3", "CERTIFIED", "REFUTED", "flights", "2013-01-01 to 2013-07-01", "2013-08-01T06:00:00Z"),
        *("166,158", SNAPSHOT.digest, "/data/f.parquet", "a" * 64, "/models/w", "fine_tuned_from smollm2/1"),
        *("chat-bf16", "production", "transformers 5.19.0 float32 cpu", "vllm 0.32.0 bfloat16 cpu", "0.95", "chats"),
        *("200 prompts, 3 missing", "0.0142", "0.0101", "0.0433", "0.10", "0.00417", "empirical-bernstein", "9d1f"),
        *("chat-17", "position 4", "tokens 50 61", "half_span 3.25", "half_span.max", "0.000019", "2026-11-30T12:00"),
    ):
        assert expected in text
    assert text.index("half_span") < text.index("tv_token")


@pytest.mark.parametrize("render", [render_markdown, render_html, render_description])
def test_without_a_certificate_nothing_is_claimed(render: object) -> None:
    assert callable(render)
    text = render(UNCERTIFIED)
    assert "UNDECIDED" in text
    assert "CERTIFIED" not in re.sub(r"<style>.*</style>", "", text, flags=re.S)


HOSTILE = "<script>alert(1)</script>\"'&|`[x](javascript:y)\n# heading"


def hostile() -> Report:
    witness = WITNESS.model_copy(update={"prompt": HOSTILE, "figures": {HOSTILE: HOSTILE}})
    changes = dict.fromkeys(("clause", "slice", "path", "estimate", "method", "reason"), HOSTILE)
    base = report(finding(Verdict.REFUTED, **changes, witness=witness), finding(Verdict.CERTIFIED, reason=HOSTILE))
    assert base.measurement
    measured = replace(base.measurement, contract=HOSTILE, target=HOSTILE, serving=HOSTILE, noise_floor={HOSTILE: "1"})
    return replace(base, model=HOSTILE, weights_path=HOSTILE, parents=(HOSTILE,), measurement=measured)


def test_the_page_runs_and_fetches_nothing_whatever_it_is_given() -> None:
    page = Page(render_html(hostile()))
    assert page.open == []
    allowed = "html head meta title style body header section h1 h2 p div table thead tbody tr th td span b br code"
    assert set(page.tags) <= {*allowed.split(), "svg", "line", "rect", "circle"}
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("href", "src", "style")]
    assert page.text.count("<script>alert(1)</script>") > 10


def test_markdown_stays_tables_and_text_whatever_it_is_given() -> None:
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(render_markdown(hostile()))
    assert "<script" not in rendered
    assert "<a " not in rendered
    assert rendered.count("<h1>") == 1
    rows = [row.count("<td>") for row in re.findall(r"<tr>(.*?)</tr>", rendered, flags=re.S) if "<td>" in row]
    assert rows == [*[2] * 5, *[2] * 9, 10, 10, 2]


def bars(page: str) -> Iterator[dict[str, float]]:
    for drawing in re.findall(r"<svg.*?</svg>", page, flags=re.S):
        lower, width = re.search(r'<rect x="([\d.]+)".*?width="([\d.]+)"', drawing).groups()  # type: ignore[union-attr]
        estimate = re.search(r'<circle cx="([\d.]+)"', drawing)[1]  # type: ignore[index]
        limit = re.findall(r'<line x1="([\d.]+)"', drawing)[1]
        yield {
            "lower": float(lower),
            "upper": float(lower) + float(width),
            "estimate": float(estimate),
            "limit": float(limit),
        }


shares = st.decimals(min_value=0, max_value=1, places=6)


@given(figures=st.lists(shares, min_size=3, max_size=3).map(sorted), limit=shares)
def test_a_bar_orders_its_marks_as_the_numbers_are(figures: list[Decimal], limit: Decimal) -> None:
    lower, estimate, upper = map(str, figures)
    page = render_html(
        report(finding(Verdict.UNDECIDED, lower=lower, estimate=estimate, upper=upper, limit=str(limit)))
    )
    (bar,) = bars(page)
    assert bar["lower"] - 0.1 <= bar["estimate"] <= bar["upper"] + 0.1
    if figures[2] <= limit:
        assert bar["upper"] <= bar["limit"] + 1.6
    if figures[0] > limit:
        assert bar["lower"] >= bar["limit"] - 0.1
    assert all(0 <= mark <= 150 for mark in bar.values())


@pytest.mark.parametrize("figure", ["NaN", "Infinity", "", "not measured"])
def test_figures_that_were_not_measured_are_neither_drawn_nor_logged(figure: str) -> None:
    measured = report(finding(Verdict.UNDECIDED, estimate=figure, upper=figure))
    assert "<svg" not in render_html(measured)
    assert "not measured" in render_html(measured)
    assert figures(measured) == {}


def test_figures_say_what_they_were_measured_under() -> None:
    assert figures(report(finding(Verdict.CERTIFIED))) == {
        "tv_token/estimate/prefill/all/chat-bf16": 0.0142,
        "tv_token/upper/prefill/all/chat-bf16": 0.0433,
    }


@pytest.mark.parametrize("count", [0, 1, 40, 2_000])
def test_everything_fits_a_registry(count: int) -> None:
    many = tuple(finding(Verdict.REFUTED, slice=f"slice-{n}", reason="r" * 300, witness=WITNESS) for n in range(count))
    described = replace(report(*many), snapshots=(SNAPSHOT,) * 9)
    artifacts = {"report.md": render_markdown(described).encode(), "report.html": render_html(described).encode()}
    record = MirrorRecord(
        ModelVersion(
            key=VersionKey(name="m", version=1),
            weights=Weights(digest=described.weights_digest, path="/w", manifest=SNAPSHOT.manifest, size_bytes=1),
        ),
        tags=summary_tags(described),
        description=render_description(described),
        metrics=figures(described),
        artifacts=artifacts,
    )
    assert record.description.startswith(headline(described) + "\n")
    assert record.tags["snapline.verdict"] == "CERTIFIED"
    assert len(artifacts["report.html"]) < 500_000
    if count == 2_000:
        assert "1800 more findings" in artifacts["report.html"].decode()
        assert "more in report.html" in record.description


def test_every_form_names_the_other_certificates() -> None:
    other = "REFUTED under chat-fp8 for production, served by vllm 0.32.0 bfloat16"
    told = replace(report(finding(Verdict.CERTIFIED)), others=(other,))
    assert headline(told).startswith("CERTIFIED")
    for form in (render_description(told), render_markdown(told), render_html(told)):
        assert "REFUTED under chat" in form


@pytest.mark.parametrize("name", ["origin = EWR", "city = Zürich, 'old'", "a/b"])
def test_a_searched_slice_is_named_as_a_registry_takes_names(name: str) -> None:
    """MLflow takes letters, digits, underscores, dashes, periods, spaces, colons and slashes in a metric's name."""
    named = figures(report(finding(Verdict.REFUTED, slice=name)))
    assert len(named) == 2
    assert all(re.fullmatch(r"[\w\-. :/]+", one, re.ASCII) and one.count("/") == 4 for one in named)
