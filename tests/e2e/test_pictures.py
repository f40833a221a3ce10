"""The pages Snapline draws, in a real browser: they are whole, readable in light and dark, and fetch nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from chromium import chromium, use_dark_colours
from histories import DAY, START, defined, digest, fleet, home_of, registered, snapshot, taken, view
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By

from snapline.cli.output import Output
from snapline.cli.status_page import draw
from snapline.cli.wiring import Home
from snapline.lineage.cut import Bucket, bucket_label
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.events import SourceCompared
from snapline.lineage.graph import Graph, ancestry
from snapline.lineage.manifest import encode_manifest
from snapline.lineage.objects import ObjectStore
from snapline.lineage.pictures.drawing import html, svg
from snapline.lineage.snapshot import BucketChange, BucketDigest, Commit, Comparison, Manifest
from snapline.lineage.state import fold

pytestmark = pytest.mark.browser

OVERLAPS = """
const boxes = [...document.querySelectorAll('.box')].map(box => box.getBoundingClientRect());
return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b =>
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)).length;
"""
SPILLS = """
return [...document.querySelectorAll('g')].filter(group => {
    const box = group.querySelector('.box').getBoundingClientRect();
    return [...group.querySelectorAll('text')].some(text => text.getBoundingClientRect().right > box.right);
}).length;
"""
LUMINANCE = """
const [r, g, b] = getComputedStyle(document.querySelector(arguments[0]))[arguments[1]].match(/[0-9.]+/g).map(Number);
return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
"""
FETCHED = "return performance.getEntriesByType('resource').length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with chromium(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


@pytest.fixture(scope="module")
def graph() -> Graph:
    state = fold(fleet())
    return ancestry(state.models["adapter"][0], state)


def look(browser: WebDriver, text: str, path: Path, dark: bool = False) -> None:
    path.write_text(text, encoding="utf-8")
    use_dark_colours(browser, dark)
    browser.get(path.as_uri())
    browser.save_screenshot(str(path.with_suffix(".png")))


def test_the_lineage_page_shows_every_box_apart_and_whole(graph: Graph, browser: WebDriver, tmp_path: Path) -> None:
    look(browser, html(graph, "Lineage of adapter/1", "Entry 14."), tmp_path / "lineage.html")
    assert len(browser.find_elements(By.CSS_SELECTOR, "svg .box")) == len(graph.nodes)
    assert len(browser.find_elements(By.CSS_SELECTOR, "tbody tr")) == len(graph.nodes)
    assert browser.execute_script(OVERLAPS) == 0
    assert browser.execute_script(SPILLS) == 0
    assert browser.execute_script(FETCHED) == 0
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_drawing_is_readable_in_light_and_dark(dark: bool, graph: Graph, browser: WebDriver, tmp_path: Path) -> None:
    look(browser, svg(graph, "Lineage"), tmp_path / "lineage.svg", dark)
    paper = browser.execute_script(LUMINANCE, ".paper", "fill")
    for what in ("g text:not(.kind)", ".edge"):
        ink = browser.execute_script(LUMINANCE, what, "fill")
        assert abs(ink - paper) > 0.45
    assert (paper < 0.2) == dark


def home(root: Path) -> Home:
    """A home with a model of two versions, and a snapshot of a year that was compared and found changed."""
    days = [bucket_label(datetime(2025, 1, 1, tzinfo=UTC) + n * DAY, Bucket.DAY) for n in range(365)]
    buckets = tuple(BucketDigest(label=day, rows=100, hexdigest="0" * 64) for day in days)
    manifest = encode_manifest(Manifest(columns=(), buckets=buckets, files=()))
    address = ObjectStore(root / "objects", BulkAlgorithm.BLAKE3).put(manifest)
    cut = snapshot(window=("2025-01-01", "2026-01-01"), manifest=address)
    changes = tuple(
        BucketChange(label=day, rows_then=100, rows_now=100, corrected=n + 1) for n, day in enumerate(days[:40])
    )
    comparison = Comparison(changed=changes, commit=Commit(id="2"))
    made_by = view(max_age="20d")
    events = [
        taken(cut),
        defined(made_by),
        registered("delays/1", cut=cut, made_by=made_by),
        registered("delays/2", cut=cut, made_by=made_by, at=START + 10 * DAY),
        SourceCompared(at=START + 30 * DAY, snapshot=cut.id, files=digest("f"), comparison=comparison),
    ]
    return Home(home_of(root, events))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_freshness_page_draws_ages_states_and_changes(dark: bool, browser: WebDriver, tmp_path: Path) -> None:
    rows = [("delays/2", "RESTATED", "rows inside the cut changed")]
    draw(tmp_path / "drawn.html", home(tmp_path / "home"), Output(False), ("model", "state", "reasons"), rows)
    look(browser, (tmp_path / "drawn.html").read_text(), tmp_path / "freshness.html", dark)
    shown = browser.find_element(By.TAG_NAME, "body").text
    for said in ("Freshness", "delays/2", "max_age 20.0 d", "820 rows differ", "each square is one day", "2025"):
        assert said in shown
    assert len(browser.find_elements(By.CSS_SELECTOR, ".map rect")) == 40
    states = [band.get_attribute("class") for band in browser.find_elements(By.CSS_SELECTOR, ".chart g > rect")]
    assert states == ["FRESH", "FRESH", "STALE_AGE", "RESTATED"]
    assert browser.execute_script(FETCHED) == 0
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    paper = browser.execute_script(LUMINANCE, "body", "backgroundColor")
    assert (paper < 0.2) == dark
    for level in ("l1", "l4"):
        assert abs(browser.execute_script(LUMINANCE, f".map .{level}", "fill") - paper) > 0.15
