"""What a person sees in MLflow: the mirror's pages in a real browser over a real server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

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
from snapline.lineage.digest import short
from snapline.lineage.model import EdgeKind, ModelVersion, Parent, VersionKey, Weights
from snapline.lineage.registries.mlflow import MlflowRegistry
from snapline.lineage.registries.mlflow_server import server_command
from snapline.lineage.registries.protocol import MirrorRecord, ProbeSet, snapshot_label
from snapline.lineage.snapshot import Commit, Series, Snapshot

pytestmark = [pytest.mark.browser, pytest.mark.mlflow]

START_SECONDS, PAGE_SECONDS = 120, 60
WITNESS = Witness(
    prompt="chat-0017",
    path="decode-forced",
    position=6,
    tokens=(504, 3575, 282, 4649, 314),
    figures={"half_span": "3.4189", "tv": "0.2917", "margin": "0.0983"},
)


def finding(clause: str, path: str, figures: tuple[str, str, str, str], verdict: Verdict) -> Finding:
    estimate, lower, upper, limit = figures
    reason = {
        Verdict.CERTIFIED: f"At most {limit} is allowed and the upper confidence limit is {upper}.",
        Verdict.UNDECIDED: f"The limit {limit} lies inside the interval; measure more prompts.",
        Verdict.REFUTED: f"At most {limit} is allowed and the lower confidence limit is {lower}.",
    }[verdict]
    return Finding(
        clause=clause,
        slice="all",
        path=path,
        verdict=verdict,
        prompts=200,
        missing=0,
        estimate=estimate,
        lower=lower,
        upper=upper,
        limit=limit,
        level="0.00417",
        method="clopper-pearson" if clause == "half_span" else "empirical-bernstein",
        reason=reason,
        witness=WITNESS if verdict is Verdict.REFUTED else None,
    )


def snapshot() -> Snapshot:
    return Snapshot(
        series=Series(
            name="flights",
            source="/data/flights.parquet",
            time="dep_time",
            known="arr_known",
            key="flight_id",
            bucket=Bucket.DAY,
        ),
        cut=Cut(
            since=parse_instant("2013-01-01"), until=parse_instant("2013-07-01"), as_of=parse_instant("2013-08-01")
        ),
        digest=f"blake3-rows-v2:{'9c41e07d' * 8}",
        rows=166_158,
        buckets=181,
        manifest=f"blake3-object-v1:{'d' * 64}",
        taken_at=parse_instant("2026-01-01"),
        commit=Commit(id="1"),
        membership=f"blake3-object-v1:{'d' * 64}",
    )


def report(version: int) -> Report:
    verdict = Verdict.CERTIFIED if version == 1 else Verdict.REFUTED
    findings = [
        finding("tv_token", "prefill", ("0.0142", "0.0101", "0.0433", "0.10"), Verdict.CERTIFIED),
        finding("greedy_flip_rate", "prefill", ("0.0271", "0.0163", "0.0702", "0.25"), Verdict.CERTIFIED),
        finding("half_span", "decode-forced", ("0.015", "0.0026", "0.0501", "0.10"), Verdict.CERTIFIED),
    ]
    if verdict is Verdict.REFUTED:
        findings[1] = finding("greedy_flip_rate", "prefill", ("0.09", "0.06", "0.13", "0.10"), Verdict.UNDECIDED)
        findings[2] = finding("half_span", "decode-forced", ("0.61", "0.51", "0.70", "0.10"), Verdict.REFUTED)
    return Report(
        model=f"delay-assistant/{version}",
        weights_digest=f"blake3-weights-v1:{'5be1' * 16}",
        weights_path="/models/delay-assistant",
        snapshots=(snapshot(),),
        view="delay-assistant",
        view_digest=f"sha256-view-v1:{'f0' * 32}",
        parents=("fine_tuned_from smollm2-135m-instruct/1",),
        measurement=Measurement(
            verdict=verdict,
            certificate=f"blake3-object-v1:{'4f2a81c6' * 8}",
            signer=f"{'7d' * 32}",
            issued_at=parse_instant("2026-11-30T12:00:00Z"),
            contract="chat-bf16",
            contract_digest=f"sha256-contract-v1:{'8b' * 32}",
            target="production",
            reference="transformers 5.19.0, float32, cpu",
            serving="vllm 0.32.0, bfloat16, cpu, kv cache auto",
            probes="chats",
            probes_digest=f"sha256-probes-v1:{'e3' * 32}",
            prompts=200,
            confidence="0.95",
            findings=tuple(findings),
            noise_floor={"half_span.maximum": "0.0000191", "tv.maximum": "0.0000021"},
        ),
    )


def record(version: int) -> MirrorRecord:
    shown = report(version)
    assert shown.measurement
    return MirrorRecord(
        model=ModelVersion(
            key=VersionKey(name="delay-assistant", version=version),
            weights=Weights(
                digest=shown.weights_digest,
                path=shown.weights_path,
                manifest=f"blake3-object-v1:{'b' * 64}",
                size_bytes=269_060_552,
            ),
            view_name=shown.view,
            view=shown.view_digest,
            parents=(Parent(kind=EdgeKind.FINE_TUNED_FROM, model=VersionKey(name="smollm2-135m-instruct", version=1)),),
            contract="chat-bf16",
        ),
        snapshots=shown.snapshots,
        tags=summary_tags(shown),
        description=render_description(shown),
        metrics=figures(shown),
        probes=ProbeSet("chats", shown.measurement.probes_digest, shown.measurement.prompts),
        artifacts={
            "certificate.json": b'{"payloadType":"application/vnd.in-toto+json"}',
            "report.md": render_markdown(shown).encode(),
            "report.html": render_html(shown).encode(),
        },
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of MLflow's server over a home with two mirrored versions, the first of them champion."""
    home = tmp_path_factory.mktemp("home")
    store, artifacts = f"sqlite:///{home}/mlflow.db", home / "artifacts"
    registry = MlflowRegistry(store, artifacts, "home")
    for version in (1, 2):
        registry.mirror(record(version))
    registry.set_alias(VersionKey(name="delay-assistant", version=1), "champion")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv, environment = server_command(store, artifacts, "127.0.0.1", port)
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            argv, cwd=home, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process, home / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def wait_until_healthy(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.25)
    pytest.fail(f"the server did not start:\n{log.read_text()}")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    options = Options()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1600,1200"),
        f"--user-data-dir={tmp_path_factory.mktemp('browser')}",
    ):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


class Visit:
    """One page: what it says, and a picture of it beside the test's other files."""

    def __init__(self, browser: WebDriver, folder: Path, address: str) -> None:
        self.browser, self.folder = browser, folder
        browser.get(address)

    def expect(self, *words: str) -> str:
        """Return the page's text once it has all the words."""

        def text(driver: WebDriver) -> str:
            return str(driver.find_element(By.TAG_NAME, "body").text)

        def missing(driver: WebDriver) -> list[str]:
            try:
                return [word for word in words if word not in text(driver)]
            except WebDriverException:
                return list(words)

        try:
            WebDriverWait(self.browser, PAGE_SECONDS).until(lambda driver: not missing(driver))
        except TimeoutException:
            self.picture("missing")
            pytest.fail(f"not on the page: {missing(self.browser)}\nthe page says:\n{text(self.browser)}")
        return text(self.browser)

    def picture(self, name: str) -> None:
        """Keep a picture of the page."""
        self.browser.save_screenshot(str(self.folder / f"{name}.png"))

    def click(self, label: str) -> None:
        """Click the element whose whole text is the label."""
        found = self.browser.find_elements(By.XPATH, f"//*[normalize-space(text())='{label}']")
        self.browser.execute_script("arguments[0].click()", found[0])


def test_the_model_page_lists_each_version_with_its_verdict(server: str, browser: WebDriver, tmp_path: Path) -> None:
    visit = Visit(browser, tmp_path, f"{server}/#/models/delay-assistant")
    visit.expect("Version 1", "Version 2", "CERTIFIED · cut 2013", "REFUTED · cut 2013", "champion")
    visit.picture("model")


def test_the_version_page_shows_verdict_cut_and_digests(server: str, browser: WebDriver, tmp_path: Path) -> None:
    visit = Visit(browser, tmp_path, f"{server}/#/models/delay-assistant/versions/1")
    visit.expect(headline(report(1)), "snapline.verdict", "CERTIFIED", "2013-01-01 to 2013-07-01")
    visit.expect(short(snapshot().digest), short(report(1).weights_digest), "greedy_flip_rate", "champion")
    visit.picture("version")


def test_the_logged_model_page_shows_data_sets_and_metrics(server: str, browser: WebDriver, tmp_path: Path) -> None:
    visit = Visit(browser, tmp_path, logged_model_page(server, browser, tmp_path))
    visit.expect("half_span/upper/decode-forced/all/chat-bf16", "0.0501", f"chats (#{'e3' * 16})")
    visit.expect(f"flights (#{snapshot_label(snapshot())})", headline(report(1)), "delay-assistant\nv1")
    visit.picture("logged-model")


def test_the_report_is_readable_among_the_artifacts(server: str, browser: WebDriver, tmp_path: Path) -> None:
    visit = Visit(browser, tmp_path, logged_model_page(server, browser, tmp_path) + "/artifacts")
    visit.expect("certificate.json", "report.html", "report.md")
    visit.click("report.md")
    visit.expect("delay-assistant/1: CERTIFIED", snapshot().digest, "empirical-bernstein")
    visit.picture("report-md")
    visit.click("report.html")
    WebDriverWait(browser, PAGE_SECONDS).until(lambda driver: driver.find_elements(By.TAG_NAME, "iframe"))
    browser.switch_to.frame(browser.find_element(By.TAG_NAME, "iframe"))
    visit.expect("delay-assistant/1", "CERTIFIED", "2013-01-01 to 2013-07-01", snapshot().digest, "vllm 0.32.0")
    assert len(browser.find_elements(By.CSS_SELECTOR, "svg[role=img]")) == 3
    assert browser.execute_script(
        "const wide = document.querySelector('.wide'); return wide.scrollWidth <= wide.clientWidth"
    )
    browser.switch_to.default_content()
    visit.picture("report-html")


def logged_model_page(server: str, browser: WebDriver, folder: Path) -> str:
    """Return the address the version page links to as its source model."""
    visit = Visit(browser, folder, f"{server}/#/models/delay-assistant/versions/1")
    visit.expect("Source Model")
    links = [link.get_attribute("href") or "" for link in browser.find_elements(By.TAG_NAME, "a")]
    return next(link for link in links if "/models/m-" in link)


@pytest.mark.parametrize("version", [1, 2])
def test_the_page_stands_alone(version: int, browser: WebDriver, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(render_html(report(version)), encoding="utf-8")
    visit = Visit(browser, tmp_path, (tmp_path / "report.html").as_uri())
    visit.expect(f"delay-assistant/{version}", report(version).verdict.value)
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    visit.picture(f"report-{version}")
    printed = browser.print_page()
    assert len(printed) > 10_000
    (tmp_path / f"report-{version}.pdf.base64").write_text(printed, encoding="utf-8")
