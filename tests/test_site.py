"""The documentation site has complete pages whose links work, and no page sends requests to other hosts."""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import trainmaster
from trainmaster.cli.app import COMMANDS
from trainmaster.loop.stages import TRAIN_MANAGER, TRAIN_TEST_LOOP, WORK

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CHROMIUM = shutil.which("chromium")
OUTSIDE = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href|srcset)=\"?(?:https?:)?//[^\s\">]+")


@pytest.fixture(scope="module")
def make_pages() -> Iterator[ModuleType]:
    """Import the program in docs/site that writes the pages."""
    before = {*sys.modules}
    sys.path.insert(0, str(DOCS / "site"))
    try:
        yield importlib.import_module("make_pages")
    finally:
        sys.path.remove(str(DOCS / "site"))
        for name in {*sys.modules} - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(DOCS)):
                del sys.modules[name]


@pytest.fixture(scope="module")
def pages(make_pages: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the pages from which the site is built, and return their folder."""
    folder: Path = tmp_path_factory.mktemp("site") / "pages"
    make_pages.make_pages(folder)
    return folder


def nav_pages() -> list[str]:
    def walk(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            for each in entry.values():
                yield from walk(each)
        elif isinstance(entry, list):
            for each in entry:
                yield from walk(each)

    return [*walk(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])]


def test_every_name_of_the_package_has_an_entry_in_the_reference(pages: Path) -> None:
    blocks = {
        line.removeprefix("::: ")
        for page in (pages / "reference").glob("*.md")
        for line in page.read_text().splitlines()
        if line[:4] == "::: "
    }
    listed = (pages / "reference" / "index.md").read_text()
    for name in trainmaster.__all__:
        home = trainmaster._HOME_OF[name]
        assert f"trainmaster.{name}" in blocks or home in blocks, f"{name} has no entry in the reference"
        assert f"[`{name}`][trainmaster.{name}]" in listed


def test_every_name_in_the_list_of_the_reference_says_what_it_is(pages: Path) -> None:
    rows = re.findall(r"^\| \[`(\w+)`\].*?\| (.*) \|$", (pages / "reference" / "index.md").read_text(), re.MULTILINE)
    assert len(rows) == len(trainmaster.__all__)
    assert [name for name, about in rows if not about] == []


def test_every_command_has_a_section_with_an_example_and_its_options(pages: Path) -> None:
    sections = re.split(r"^## trainmaster ?", (pages / "reference" / "commands.md").read_text(), flags=re.MULTILINE)[2:]
    by_name = {section.partition("\n")[0]: section for section in sections}
    assert [*by_name] == [*COMMANDS]
    for name, section in by_name.items():
        assert f"\ntrainmaster {name}" in section, f"{name} has no example"
        assert "| `" in section, f"{name} has no options"
    assert "`--workers N`" in by_name["sweep"]


@pytest.mark.parametrize("tree", [TRAIN_MANAGER, TRAIN_TEST_LOOP, WORK], ids=["TrainManager", "TrainTestLoop", "Manager"])
def test_every_stage_is_in_the_tree_and_in_the_list_of_hooks(pages: Path, tree: trainmaster.StageTree) -> None:
    stages, hooks = ((pages / "reference" / name).read_text() for name in ("stage_tree.md", "hooks.md"))
    for name, paths in tree.paths.items():
        assert f"| `{name}` |" in stages
        assert f"`pre_{name}`<br>`around_{name}`<br>`post_{name}`" in hooks or paths[0][-1].is_permanent


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page(pages: Path) -> None:
    entries = nav_pages()
    assert len(entries) == len({*entries})
    assert [entry for entry in entries if not (pages / entry).is_file()] == [], "these entries in mkdocs.yml have no page"
    written = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert written - {*entries} == set(), "add these pages to `nav` in mkdocs.yml"


def test_each_guarantee_names_a_test_file_that_has_tests() -> None:
    page = DOCS / "concepts" / "guarantees.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ") and not line.endswith("shown by |")]
    assert len(rows) > 20
    for row in rows:
        files = re.findall(r"\]\(([^)]*test_\w+\.py)\)", row)
        assert files, f"no test shows this: {row}"
        for file in files:
            assert "def test_" in (page.parent / file).read_text(), file


def test_a_link_to_a_file_outside_of_docs_becomes_a_page(pages: Path) -> None:
    assert "](source/src/trainmaster/loop/train_test_loop.py.md)" in (pages / "train_test_loop.md").read_text()
    assert "class TrainTestLoop" in (pages / "source/src/trainmaster/loop/train_test_loop.py.md").read_text()
    assert "](../project/architecture.md)" in (pages / "concepts" / "index.md").read_text()


def build(folder: Path, pages: Path, settings: str) -> subprocess.CompletedProcess[str]:
    """Build a site in `folder` from `pages`."""
    for old, new in {
        "docs_dir: build/docs": f"docs_dir: {pages.relative_to(folder)}",
        "paths: [src]": f"paths: [{ROOT / 'src'}]",
        "docs/site/doctest_blocks.py": str(DOCS / "site" / "doctest_blocks.py"),
    }.items():
        assert old in settings
        settings = settings.replace(old, new)
    (folder / "mkdocs.yml").write_text(settings)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(pages: Path) -> Path:
    ran = build(pages.parent, pages, (ROOT / "mkdocs.yml").read_text())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return pages.parent / "site"


@pytest.mark.integration
def test_no_page_refers_to_a_script_style_font_or_image_of_another_host(site: Path) -> None:
    built = [*site.rglob("*.html")]
    assert len(built) > 100
    assert {found for page in built for found in OUTSIDE.findall(page.read_text())} == set()
    assert not [found for sheet in site.rglob("*.css") for found in re.findall(r"url\((?:https?:)?//[^)]*\)", sheet.read_text())]


@pytest.mark.integration
def test_a_docstring_is_rendered_with_its_example_as_code(site: Path) -> None:
    page = (site / "reference" / "config" / "index.html").read_text()
    assert 'id="trainmaster.OptimizerConfig"' in page
    assert "<blockquote>" not in page


@pytest.mark.integration
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[x](../stages.md#hooks)", ""),
        ("[x](nothing.md)", "nothing.md"),
        ("[x](../stages.md#no-such-anchor)", "no-such-anchor"),
        ("[x](#nowhere)", "nowhere"),
        ("::: trainmaster.Nothing", "trainmaster.Nothing"),
        ("[`X`][trainmaster.Nothing]", "trainmaster.Nothing"),
    ],
    ids=["no mistake", "page", "anchor", "own anchor", "object", "reference"],
)
def test_a_dead_link_or_an_unknown_name_fails_the_build(text: str, named: str, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    (pages / "how_to").mkdir(parents=True)
    (pages / "how_to" / "leak.md").write_text(f"# Page\n\n{text}\n")
    (pages / "stages.md").write_text("# Stages\n\n## Hooks\n")
    settings = re.sub(
        r"^nav:.*|^(extra_css|  logo|  favicon):[^\n]*\n", "", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    ran = build(tmp_path, pages, settings)
    printed = re.sub(r"\x1b\[[\d;]*m", "", ran.stdout + ran.stderr)
    assert (ran.returncode != 0) == bool(named), printed
    assert named in printed


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.integration
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_in_a_browser_no_request_leaves_the_machine_and_no_page_is_wider_than_a_phone(site: Path) -> None:
    from playwright.sync_api import sync_playwright

    with served(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 360, "height": 780})
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        for path in (
            "",
            "how_to/nan/",
            "reference/loop/",
            "reference/commands/",
            "reference/hooks/",
            "concepts/guarantees/",
            "project/architecture/",
        ):
            page.goto(address + path)
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{path or 'home'} is too wide"
        page.locator("[data-md-component=search], .md-search__button").first.wait_for(state="attached")
        browser.close()
    assert len(requests) > 20
    assert {url for url in requests if not url.startswith((address, "data:", "blob:"))} == set()
