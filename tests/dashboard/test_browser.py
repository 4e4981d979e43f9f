"""The dashboard works in a real browser, with a keyboard, on a phone and in dark mode, and sends nothing to other machines."""

from __future__ import annotations

import json
import os
import shutil
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

import dashboard_store
import pytest
from hostile_store import make_hostile_store

from trainmaster.dashboard.app import STATIC
from trainmaster.dashboard.serve import Address, serving
from trainmaster.store import Store

pytestmark = pytest.mark.integration

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGS += ["--disable-component-update", "--disable-sync"]
NUM_MANY = 10_000
FOREIGN = "script, iframe, object, embed, base, meta[http-equiv], form, math, video, animate, [href^='javascript:'], [onload], [onerror]"
"""Elements that appear on a page if the text of a run is shown as HTML. One script belongs to the page itself."""


def _why_not() -> str:
    if not os.access(CHROMIUM, os.X_OK):
        return "there is no chromium"
    return "" if (STATIC / "index.html").is_file() else "the page is not built: make frontend"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start one browser for all tests. If no browser is installed, the tests are skipped, or fail in CI."""
    if why := _why_not():
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield started
        started.close()


class Tab(NamedTuple):
    """A page of the dashboard that records errors, warnings and requests to other hosts."""

    page: Any
    address: Address
    problems: list[str]

    def open(self, path: str) -> Any:
        token = f"#token={self.address.token}" if self.address.token else ""
        self.page.goto(f"http://127.0.0.1:{self.address.port}{path}{token}")
        return self.page


Open = Callable[..., Tab]


@pytest.fixture
def tab(browser: Any) -> Iterator[Open]:
    """Return a function that opens pages. After the test, check that no error was logged and no request left this machine."""
    opened: list[tuple[Any, list[str]]] = []

    def make(address: Address, width: int = 1280, height: int = 800, scheme: str = "light") -> Tab:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        page, problems = context.new_page(), list[str]()
        page.set_default_timeout(60_000)
        page.on(
            "console", lambda message: problems.append(f"{message.type}: {message.text}") if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", lambda request: None if request.url.startswith("http://127.0.0.1:") else problems.append(f"left: {request.url}"))
        opened.append((context, problems))
        return Tab(page, address, problems)

    yield make
    found = [problem for _, problems in opened for problem in problems]
    for context, _ in opened:
        context.close()
    assert found == []


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Address, Store, dict[str, str]]]:
    store, keys = dashboard_store.make_store(tmp_path_factory.mktemp("small") / "runs")
    with serving(store, 0) as (address, _):
        yield address, store, keys


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    root = tmp_path_factory.mktemp("large") / "runs"
    dashboard_store.write_many(root, NUM_MANY, num_config=4)
    with serving(Store(root), 0) as (address, _):
        yield address


def row_keys(page: Any) -> list[str]:
    found: list[str] = page.eval_on_selector_all(".body .row[data-key]", "rows => rows.map(row => row.dataset.key)")
    return found


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.1)


def test_the_first_look_at_a_store(tab: Open, small: Any) -> None:
    address, _, keys = small
    page = tab(address).open("/")
    page.wait_for_selector(".body .row[data-key]")
    assert {*row_keys(page)} == {*keys.values()}
    page.wait_for_selector(".chart canvas")
    assert "6 runs" in page.inner_text("header")
    assert page.get_by_role("navigation", name="Needs attention").inner_text().count("failed") == 1
    assert page.locator(".row.selected").count() == 5
    page.wait_for_selector(".spark path[d^=M]", state="attached")


def test_the_address_is_the_view(tab: Open, small: Any) -> None:
    """The address contains the filter, groups, order and selection, so reloading and the back button work."""
    address, _, keys = small
    page = tab(address).open("/")
    page.wait_for_selector(".body .row[data-key]")
    page.fill("#filter", "lr<1 and seed=0")
    wait_for(lambda: len(row_keys(page)) == 2, "the filter")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="group: none").click()
    wait_for(lambda: "group=1" in page.url, "the address")
    page.go_back()
    wait_for(lambda: "group=1" not in page.url and page.get_by_role("button", name="group: none").count() == 1, "the way back")
    page.get_by_role("button", name="valid/loss", exact=True).click()
    wait_for(lambda: "sort=-metric" in page.url, "the order")
    page.reload()
    wait_for(lambda: row_keys(page) == [keys["0.1-0"], keys["0.5-0"]], "the same view after a reload")
    assert page.input_value("#filter") == "lr<1 and seed=0"


def test_a_wrong_filter_is_explained_below_it(tab: Open, small: Any) -> None:
    address, _, _ = small
    page = tab(address).open("/")
    page.wait_for_selector(".body .row[data-key]")
    page.fill("#filter", "lrr<1")
    page.wait_for_selector("#filter-error")
    assert "did you mean `lr`?" in page.inner_text("#filter-error")
    assert len(row_keys(page)) == 6  # the previous rows stay


def test_completion_by_keyboard(tab: Open, small: Any) -> None:
    address, _, keys = small
    page = tab(address).open("/")
    page.wait_for_selector(".body .row[data-key]")
    page.keyboard.press("/")
    page.keyboard.type("model.a")
    page.wait_for_selector("[role=option]")
    page.keyboard.press("Tab")
    page.keyboard.type("=ml")
    page.keyboard.press("Tab")
    wait_for(lambda: {*row_keys(page)} == {keys["failed"], keys["diverged"]}, "the completed filter")


def test_keyboard_only(tab: Open, small: Any) -> None:
    """The test moves to a row, selects it, opens it, goes to the next run and back, and closes the run's page."""
    address, _, keys = small
    page = tab(address).open("/?sort=fact:key&sel=none")
    page.wait_for_selector(".body .row[data-key]")
    ordered = sorted(keys.values())
    for key in ("j", "j", "x"):
        page.keyboard.press(key)
    wait_for(lambda: page.locator(f".row.selected[data-key='{ordered[1]}']").count() == 1, "the selection")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1")
    assert page.inner_text("h1") == ordered[1]
    page.keyboard.press("j")
    wait_for(lambda: page.inner_text("h1") == ordered[2], "the next run")
    page.keyboard.press("k")
    wait_for(lambda: page.inner_text("h1") == ordered[1], "the previous run")
    page.keyboard.press("Escape")
    page.wait_for_selector(".body .row[data-key]")


def test_groups_show_mean_and_spread(tab: Open, small: Any) -> None:
    address, _, _ = small
    page = tab(address).open("/?group=1&where=lr%3D0.5")
    page.wait_for_selector(".body .row[data-key]")
    wait_for(lambda: "±" in page.inner_text(".body"), "the spread")
    assert page.inner_text(".body .count") == "\N{MULTIPLICATION SIGN} 2"
    page.wait_for_selector("text=mean of 2, 95 %")


def test_comparing_two_runs(tab: Open, small: Any) -> None:
    address, _, keys = small
    page = tab(address).open(f"/compare?keys={keys['0.1-0']},{keys['0.5-0']}")
    page.wait_for_selector("text=1 value differs")
    assert "paired t" in page.inner_text(".differences")
    page.get_by_role("button", name=f"Remove {keys['0.5-0']}").click()
    page.wait_for_selector("text=Why are two runs different?")
    page.fill("[aria-label='Add a run']", keys["failed"][:6])
    page.get_by_role("option").first.click()
    page.wait_for_selector("text=2 values differ")


def test_comparing_the_code_of_two_runs(tab: Open, tmp_path: Path) -> None:
    from trainmaster.extensions.code.capture import Limits, capture
    from trainmaster.extensions.code.snapshot import write_snapshot

    store, keys = dashboard_store.make_store(tmp_path / "runs")
    repository = tmp_path / "code"
    repository.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    two = [keys["0.1-0"], keys["0.5-0"]]
    for key, width in zip(two, (16, 32), strict=True):
        (repository / "model.py").write_text(f"import torch\n\nwidth = {width}\n")
        taken = capture(str(repository), Limits())
        write_snapshot(taken, str(tmp_path / "runs" / "previews" / key[:2] / key / "attempt-0001" / "code"))
    with serving(store, 0) as (address, _):
        page = tab(address).open(f"/compare?keys={two[0]},{two[1]}")
        page.get_by_role("button", name=f"differences of {two[1]} to the baseline").click()
        page.wait_for_selector(".diff .added")
        assert page.inner_text(".diff .removed code") == "width = 16"
        assert page.inner_text(".diff .added code") == "width = 32"


def test_a_failed_run_shows_the_failure_first(tab: Open, small: Any) -> None:
    address, _, keys = small
    page = tab(address).open(f"/run/{keys['failed']}")
    page.wait_for_selector(".failure")
    assert "ValueError: no" in page.inner_text(".failure")


def test_code_is_shown_as_a_highlighted_diff(tab: Open, tmp_path: Path) -> None:
    store, keys = dashboard_store.make_store(tmp_path / "runs")
    key = keys["0.1-0"]
    folder = tmp_path / "runs" / "previews" / key[:2] / key / "attempt-0001" / "code" / "abc-def"
    folder.mkdir(parents=True)
    (folder / "code.json").write_text(
        json.dumps({"commit": "abc", "tree": "def", "subject": "s", "changed": ["x"], "new": [], "deleted": []})
    )
    (folder / "changes.patch").write_text("diff --git a/x.py b/x.py\n@@ -1,2 +1,2 @@\n same\n-old <b>\n+new <script>alert(1)</script>\n")
    with serving(store, 0) as (address, _):
        page = tab(address).open(f"/run/{key}?tab=code")
        page.wait_for_selector(".diff .added")
        assert page.inner_text(".diff .added code") == "new <script>alert(1)</script>"
        assert page.inner_text(".diff .removed code") == "old <b>"


def test_a_live_curve_grows(tab: Open, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    key = store.configs.add({"lr": 0.1})
    with serving(Store(tmp_path / "runs"), 0) as (address, _), store.attempt(key, "process", facts={"num_epochs": 4}) as attempt:
        attempt.start(None)

        def train(epoch: int) -> None:
            attempt.log.append({"tag": "valid/loss", "value": 1 / epoch, "step": epoch, "over": "epoch", "time": time.time()})
            status = {
                "epoch": epoch,
                "step": epoch,
                "toc": time.time(),
                "best": {"metric": "valid/loss", "mode": "min", "value": 1 / epoch},
            }
            attempt.save(epoch, {}, status, {"valid/loss": 1 / epoch})

        train(1)
        page = tab(address).open("/")
        page.wait_for_selector(".body .row[data-key]")
        wait_for(lambda: "running 1/4" in page.inner_text(".body"), "the first epoch")
        picture = page.locator(".chart canvas").first
        before = picture.evaluate("each => each.toDataURL()")
        for epoch in (2, 3):
            train(epoch)
        wait_for(lambda: "running 3/4" in page.inner_text(".body"), "the third epoch")
        wait_for(lambda: picture.evaluate("each => each.toDataURL()") != before, "the curve")
        attempt.release("finished")
        wait_for(lambda: "finished" in page.inner_text(".body"), "the end")


def test_ten_thousand_runs(tab: Open, large: Address) -> None:
    """Sorting, scrolling to the middle, filtering and grouping work, and only the visible rows are in the page."""
    page = tab(large).open("/?sort=config:model.width&charts=%20")
    page.wait_for_selector(".body .row[data-key]")
    assert page.locator(".body .row").count() < 80
    page.eval_on_selector(".scroller", "each => { each.scrollTop = each.scrollHeight / 2 }")
    page.wait_for_selector(f".body .row[data-key][aria-rowindex='{NUM_MANY // 2 + 1}']")
    page.fill("#filter", "lr<0.002 and arch=vit")
    wait_for(lambda: "of 10,000 runs" in page.inner_text(".status"), "the filter")
    page.fill("#filter", "")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="group: none").click()
    wait_for(lambda: "in 2,000 groups" in page.inner_text(".status"), "the groups")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_scheme_of_the_system_until_one_is_chosen(tab: Open, small: Any, scheme: str) -> None:
    address, _, _ = small
    page = tab(address, scheme=scheme).open("/")
    page.wait_for_selector(".body .row[data-key]")
    theme = "document.documentElement.dataset.theme"
    assert page.evaluate(theme) == scheme
    other = "dark" if scheme == "light" else "light"
    while page.evaluate(theme) != other or page.evaluate("localStorage.getItem('trainmaster-theme')") != other:
        page.keyboard.press("t")
    page.reload()
    page.wait_for_selector(".body .row[data-key]")
    assert page.evaluate(theme) == other


@pytest.mark.parametrize("path", ["/", "/run/KEY", "/run/KEY?tab=config", "/compare?keys=KEY,OTHER", "/searches"])
def test_nothing_is_wider_than_a_phone(tab: Open, small: Any, path: str) -> None:
    address, _, keys = small
    page = tab(address, width=360, height=740).open(path.replace("KEY", keys["0.1-0"]).replace("OTHER", keys["0.5-0"]))
    page.wait_for_selector("main > *")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_script_in_a_store_does_not_run(tab: Open, tmp_path: Path) -> None:
    """The test opens every page of a store that has a script in every field."""
    store, key, other = make_hostile_store(tmp_path / "runs")
    with serving(store, 0) as (address, _):
        opened = tab(address)
        opened.page.on("dialog", lambda dialog: opened.problems.append(f"dialog {dialog.message}"))
        tabs = ("curves", "config", "code", "environment", "layers", "samples", "attempts", "events", "log")
        paths = ["/", *(f"/run/{key}?tab={name}" for name in tabs), f"/compare?keys={key},{other}", "/searches", "/searches/hostile"]
        paths += ["/verdicts", "/?where=<script>alert(1)</script>", "/searches/<script>"]
        for path in paths:
            opened.open(path)
            opened.page.wait_for_selector("main > *, .problem")
            opened.page.wait_for_load_state("networkidle")
            assert opened.page.evaluate(f"document.querySelectorAll({FOREIGN!r}).length") == 1, path  # the page's own script
    opened.problems[:] = [each for each in opened.problems if "404" not in each]


@pytest.mark.parametrize("directions", [["minimize"], ["minimize", "maximize"]])
def test_the_page_of_a_search_shows_trials_without_an_objective(tab: Open, tmp_path: Path, directions: list[str]) -> None:
    store, keys = dashboard_store.make_store(tmp_path / "runs")
    values = [each if isinstance(each, str) else each[: len(directions)] for each in ([0.6, 5.0], "pruned", "failed", ["inf", "nan"], [])]
    dashboard_store.write_search(tmp_path / "runs", "mixed", [*keys.values()][:5], directions, values)
    with serving(store, 0) as (address, _):
        page = tab(address).open("/searches/mixed")
        page.wait_for_selector("svg.parallel path")
        assert page.locator("svg.parallel path").count() == 5
        rows = page.locator("table.plain tbody tr").all_inner_texts()
        shown = [next(state for state in ("finished", "pruned", "failed", "running") if state in row) for row in rows]
        assert sorted(shown) == ["failed", "finished", "finished", "pruned", "running"]


def test_labels_and_notes_by_hand(tab: Open, tmp_path: Path) -> None:
    store, keys = dashboard_store.make_store(tmp_path / "runs")
    key = keys["0.1-0"]
    with serving(store, 0, can_edit=True) as (address, _):
        page = tab(address).open(f"/run/{key}")
        page.wait_for_selector(".edit")
        assert "token" not in page.url
        page.fill("[aria-label='Add a label']", "best")
        page.keyboard.press("Enter")
        wait_for(lambda: store.tags[key] == ("best",), "the label")
        page.fill("[aria-label='Notes']", "looks good")
        page.get_by_role("button", name="save notes").click()
        wait_for(lambda: store.notes[key] == "looks good", "the note")
        page.get_by_role("button", name="delete …").click()
        page.get_by_role("button", name="cancel").click()
        assert key in store.configs


def title(page: Any, at: int) -> str:
    found: str = page.locator(".chart .title").nth(at).inner_text()
    return found


def test_charts_are_moved_by_dragging_and_by_keyboard(tab: Open, small: Any) -> None:
    """The address contains the order of the charts. Clicking on a title shows the chart at full width."""
    address, _, _ = small
    page = tab(address).open("/")
    page.wait_for_selector(".chart canvas")
    assert (title(page, 0), title(page, 1)) == ("loss", "accuracy")
    start, end = (page.locator(".chart .title").nth(at).bounding_box() for at in (0, 1))
    page.mouse.move(start["x"] + 5, start["y"] + 5)
    page.mouse.down()
    page.mouse.move(end["x"] - 60, end["y"] + 40, steps=4)
    page.mouse.move(end["x"] + 40, end["y"] + 40, steps=4)
    page.mouse.up()
    wait_for(lambda: title(page, 0) == "accuracy", "the new order")
    assert "charts=accuracy" in page.url
    assert page.locator(".slot.wide").count() == 0, "a drag is not a click"
    page.reload()
    page.wait_for_selector(".chart canvas")
    assert title(page, 0) == "accuracy"
    page.locator(".chart .title").nth(1).focus()
    page.keyboard.press("ArrowLeft")
    wait_for(lambda: title(page, 0) == "loss", "the old order")
    page.locator(".chart .title").first.click()
    page.wait_for_selector(".slot.wide")


def test_an_axis_that_a_run_has_not_recorded_is_said_in_the_chart(tab: Open, small: Any) -> None:
    address, _, _ = small
    page = tab(address).open("/")
    page.wait_for_selector(".chart canvas")
    page.select_option("[aria-label='Horizontal axis']", "update")
    page.wait_for_selector("text=not recorded by step")
    assert "axis=update" in page.url
    page.select_option("[aria-label='Horizontal axis']", "epoch")
    wait_for(lambda: page.locator(".chart .hollow").count() == 0, "the curves")


def test_only_the_page_of_a_notebook_can_be_framed(browser: Any, small: Any, tmp_path: Path) -> None:
    """A page on another port embeds two dashboards: a notebook's is shown, and the browser blocks the other."""
    usual, store, _ = small
    with serving(store, 0, is_framed=True) as (framed, _), socketserver.TCPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        frames = "".join(
            f'<iframe id="{name}" src="{each}" width="900" height="700"></iframe>' for name, each in (("framed", framed), ("usual", usual))
        )
        (tmp_path / "notebook.html").write_text(f"<!doctype html>{frames}")
        server.RequestHandlerClass = partial(_Quiet, directory=str(tmp_path))  # type: ignore[assignment]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_context().new_page()
        blocked: list[str] = []
        page.on("console", lambda message: blocked.append(message.text))
        page.goto(f"http://localhost:{server.server_address[1]}/notebook.html")
        page.frame_locator("#framed").locator(".body .row[data-key]").first.wait_for()
        wait_for(lambda: any("frame-ancestors 'none'" in text for text in blocked), "the refusal")
        assert page.frame_locator("#usual").locator("header").count() == 0
        page.context.close()
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def test_beyond_this_machine_the_printed_address_opens_the_page(tab: Open, small: Any) -> None:
    _, store, _ = small
    with serving(store, 0, host="127.0.0.1") as (address, _):
        opened = tab(address)
        page = opened.page
        page.goto(str(address))
        page.wait_for_selector(".body .row[data-key]")
        assert "token" not in page.url
        assert page.evaluate("document.cookie") == ""
        page.reload()
        page.wait_for_selector(".body .row[data-key]")


def test_hardest_samples_and_origins_are_tables(tab: Open, tmp_path: Path) -> None:
    store, keys = dashboard_store.make_store(tmp_path / "runs")
    key = keys["0.1-0"]
    folder = tmp_path / "runs" / "previews" / key[:2] / key / "attempt-0001" / "plots"
    folder.mkdir(parents=True)
    table = {"set": "valid", "epoch": 3, "num_samples": 360, "hardest": [{"index": 17, "loss": 4.5}, {"index": 3, "loss": "nan"}]}
    (folder / "sample_loss_valid.json").write_text(json.dumps(table))
    other = store.configs.add({"lr": 7.0})
    with store.attempt(other, "process") as attempt:
        attempt.start(None, facts={"origins": {"lr": "override lr=7.0"}})
        attempt.release("stopped")
    with serving(store, 0) as (address, _):
        opened = tab(address)
        opened.open(f"/run/{key}?tab=samples").wait_for_selector("text=Hardest samples of valid")
        assert opened.page.inner_text(".run-main tbody").split() == ["1", "17", "4.5", "2", "3", "NaN"]
        opened.open(f"/run/{other}?tab=config").wait_for_selector("text=override lr=7.0")
        opened.open(f"/run/{key}?tab=config").wait_for_selector("text=in this store")
        assert opened.page.locator("text=where from").count() == 0
