"""Every example in README and docs is run, and the demo keeps its promise."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run_and_print_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The python blocks of a page are one program; a text block directly after one is what it prints."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    printed, after = None, 0
    for match in BLOCK.finditer(page.read_text()):
        kind, text = match.groups()
        if kind == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(text, str(page), "exec"), names)
            printed, after = output.getvalue(), match.end()
        elif printed is not None and not page.read_text()[after : match.start()].strip():
            assert printed.rstrip() == text.rstrip(), f"{page.name} shows other output than its example prints"
            printed = None


def test_the_pages_link_only_to_what_is_there() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_example_has_about_twenty_lines() -> None:
    first = next(text for kind, text in BLOCK.findall((ROOT / "README.md").read_text()) if kind == "python")
    assert len([line for line in first.splitlines() if line.strip()]) <= 25


def test_the_demo_reaches_97_percent_and_shows_the_stage_map(capsys: pytest.CaptureFixture[str]) -> None:
    demo = runpy.run_path(str(ROOT / "examples" / "digits.py"))
    assert demo["main"]() >= 0.97
    printed = capsys.readouterr().out
    assert "└─ optimizer_step" in printed
    assert "What to look at next" in printed
