"""The report works in a real browser: in light and dark mode, on a phone, printed, and with 10,000 runs."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_store
from report_store import EPOCHS, HOSTILE, add_run

from trainmaster.analysis.report import write_report
from trainmaster.analysis.report_page import element, page, runs_table, section
from trainmaster.store import Store
from trainmaster.text import printable

CHROMIUM = shutil.which("chromium")
pytestmark = [pytest.mark.integration, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WATCH = "window.violations = []; addEventListener('securitypolicyviolation', event => violations.push(event.violatedDirective))"


class Visit:
    """An open page with the requests, messages and policy violations that it caused."""

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.page = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context}).new_page()
        self.events: list[str] = []
        for name in ("console", "pageerror", "dialog", "download", "popup"):
            self.page.on(name, lambda event, name=name: self.events.append(f"{name}: {getattr(event, 'text', event)}"))
        self.page.on("request", lambda request: self.events.append(f"request: {request.url}"))
        self.page.add_init_script(WATCH)
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("#table tbody tr:not(.space)")
        self.url = path.as_uri()

    def is_quiet(self) -> bool:
        """Return whether the page caused no requests, console messages or policy violations."""
        return self.events == [f"request: {self.url}"] and self.page.evaluate("violations") == []

    def rows(self) -> list[str]:
        return [str(each) for each in self.page.locator("#table tbody tr:not(.space)").all_inner_texts()]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    store = Store(folder / "digits")
    report_store.fill(store, num_seeds=4)
    write_report(folder / "report.html", store)
    return folder / "report.html"


@pytest.fixture(scope="module")
def large_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on 10,000 runs with 23 columns."""
    path = tmp_path_factory.mktemp("large") / "report.html"
    columns: dict[str, list[Any]] = {"run": [f"{number:08x}" for number in range(10_000)]}
    columns |= {f"metric{at}": [(number * 7919 % 10_007) / 10_007 + at for number in range(10_000)] for at in range(22)}
    path.write_text(page("large", element("h1", "large"), [section("runs", "All runs", runs_table())], columns, ""))
    return path


def test_the_page_opens_without_requests_or_console_messages(browser: Any, path: Path) -> None:
    visit = Visit(browser, path)
    assert visit.is_quiet(), visit.events
    assert visit.page.locator("svg.fig").count() == 3
    assert visit.page.locator("#count").inner_text() == "60 of 60 runs"


def test_the_table_sorts_filters_and_scrolls(browser: Any, large_path: Path) -> None:
    visit = Visit(browser, large_path)
    assert visit.rows()[0].startswith("00000000")
    assert len(visit.rows()) < 100
    visit.page.evaluate("document.getElementById('table').scrollTop = 1e9")
    visit.page.get_by_text("0000270f", exact=True).wait_for()
    assert len(visit.rows()) < 100
    visit.page.get_by_role("button", name="metric0", exact=True).click()
    visit.page.evaluate("document.getElementById('table').scrollTop = 0")
    visit.page.get_by_text("00000000", exact=True).wait_for()
    values = [float(row.split("\t")[1]) for row in visit.rows()]
    assert values == sorted(values)
    visit.page.get_by_role("button", name="metric0", exact=True).click()
    values = [float(row.split("\t")[1]) for row in visit.rows()]
    assert values == sorted(values, reverse=True)
    visit.page.fill("#filter", "0000270F")
    assert visit.page.locator("#count").inner_text() == "1 of 10,000 runs"
    assert [row.split("\t")[0] for row in visit.rows()] == ["0000270f"]
    assert visit.is_quiet(), visit.events


def test_10_000_runs_open_quickly(browser: Any, large_path: Path) -> None:
    """In the benchmark, the page opens in about 1 s; the limit here is higher because the machine may be busy."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        Visit(browser, large_path)
        times.append(time.perf_counter() - started)
    assert min(times) < 3


def test_hostile_names_and_values_are_shown_as_text(browser: Any, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    for number, evil in enumerate(HOSTILE):
        name = evil.replace(".", "").strip()
        curves = {"valid/loss": {epoch: 1 + number / (1 + epoch) for epoch in range(EPOCHS + 1)}, f"m {name}"[:100]: {1: 1.0, 2: 2.0}}
        outcome = {"outcome": "failed", "error": f"{evil}\n{evil}"} if number % 2 else {"outcome": "finished"}
        add_run(store, {"value": evil, f"key {name}": number, "nested": {name: [evil]}, "seed": 0}, curves, monitor="valid/loss", **outcome)
    write_report(tmp_path / "report.html", store, title="".join(HOSTILE[:8]))
    visit = Visit(browser, tmp_path / "report.html")
    for evil in HOSTILE:
        visit.page.fill("#filter", printable(evil))
        cells = visit.page.locator("#table td").all_text_contents()
        assert printable(evil) in cells, evil
    assert visit.is_quiet(), visit.events
    assert visit.page.title() == printable("".join(HOSTILE[:8]))
    assert visit.page.evaluate("document.querySelectorAll('img, iframe, link[rel=stylesheet], base, template').length") == 0
    assert visit.page.evaluate("document.scripts.length") == 2


def test_dark_mode_has_its_own_colors(browser: Any, path: Path) -> None:
    def read_colors(scheme: str) -> list[str]:
        visit = Visit(browser, path, color_scheme=scheme)
        shapes = (("body", "backgroundColor"), ("body", "color"), (".line.s0", "stroke"), (".grid", "stroke"))
        return [visit.page.evaluate(f"getComputedStyle(document.querySelector('{where}')).{name}") for where, name in shapes]

    light, dark = read_colors("light"), read_colors("dark")
    assert (light[0], dark[0]) == ("rgb(251, 251, 252)", "rgb(13, 16, 20)")
    assert all(one != other for one, other in zip(light, dark, strict=True))


def test_a_page_in_dark_mode_prints_on_white_paper(browser: Any, path: Path) -> None:
    visit = Visit(browser, path, color_scheme="dark")
    visit.page.emulate_media(media="print")
    assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert visit.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


def test_the_page_does_not_scroll_sideways_on_a_phone(browser: Any, path: Path) -> None:
    visit = Visit(browser, path, viewport={"width": 360, "height": 740})
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_page_prints_vectors_and_200_rows(browser: Any, large_path: Path, path: Path) -> None:
    printed = Visit(browser, path).page.pdf(format="A4")
    assert not re.search(rb"/Subtype\s*/Image", printed)
    visit = Visit(browser, large_path)
    visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert len(visit.rows()) == 200
    visit.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert len(visit.rows()) < 100
