"""The examples in the README and the docs run, and so does the demo."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
SMOKE = ("docs/stages.md", "docs/configs.md", "docs/exact_state.md")
"""Pages without console blocks; each console block takes about a second."""
BLOCK = re.compile(r"^```(python|text|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PEERS = {
    "lightning.md": ("lightning",),
    "ignite.md": ("ignite",),
    "hf_trainer.md": ("transformers", "accelerate"),
    "hydra_wandb.md": ("hydra", "wandb"),
    "ray_tune.md": ("ray", "pyarrow", "tensorboardX"),
    "trainers.md": ("lightning",),
}
"""The packages from the extra `peers` that each page needs."""
FILE = re.compile(r"# (\w+\.py)\n")
PROGRESS = re.compile(r"^epoch [\d,]+/[\d,]+  .*\d s\b.*\n", re.MULTILINE)
"""The progress that a loop prints by default. Most pages leave it out."""
TIME = re.compile(r"\b\d+(?:\.\d+)? (?:ms|s|min)\b|\b\d+:\d\d left\b")
"""A duration in the output, which is different each time."""
LIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture
def imports_from_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a page's program import the page's files, and forget them before the next page."""
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)


@pytest.mark.integration
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.smoke if name in SMOKE else ()) for page, name in zip(PAGES, NAMES, strict=True)],
    ids=NAMES,
)
@pytest.mark.usefixtures("imports_from_page")
def test_the_examples_of_a_page_run_and_print_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The python blocks on a page form one program, and a text block directly after a python block is its output.

    A block that starts with a comment such as `# train.py` is the content of that file. In console blocks, `$` marks
    commands, and `...` matches any output.
    """
    if page.parent.name == "coming_from" or page.name in PEERS:
        for peer in PEERS.get(page.name, ()):
            pytest.importorskip(peer)
        warnings.simplefilter("ignore")  # pytest restores the filters; deprecation warnings from other packages do not matter here
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    monkeypatch.delenv("TRAINMASTER_STORE", raising=False)
    names: dict[str, object] = {"__name__": "example"}
    printed, after = None, 0
    for match in BLOCK.finditer(page.read_text()):
        kind, text = match.groups()
        if kind == "console":
            run_console(text)
        elif kind == "python" and (file := FILE.match(text)):
            (tmp_path / file[1]).write_text(text)
        elif kind == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(text, str(page), "exec"), names)
            printed, after = output.getvalue(), match.end()
        elif printed is not None and not page.read_text()[after : match.start()].strip():
            printed = printed if PROGRESS.search(text) else PROGRESS.sub("", printed)
            assert TIME.sub("TIME", printed.rstrip()) == TIME.sub("TIME", text.rstrip()), f"{page.name} shows different output"
            printed = None


def run_console(text: str) -> None:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, wanted = part.partition("\n")
        ran = subprocess.run(command, shell=True, executable="/bin/bash", capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"$ {command}\n{ran.stdout}{ran.stderr}"
        is_like = doctest.OutputChecker().check_output(TIME.sub("TIME", wanted), TIME.sub("TIME", ran.stdout), LIKE)
        assert is_like, f"$ {command}\n{ran.stdout}\nwanted:\n{wanted}"


def test_the_links_of_the_pages_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_example_has_about_twenty_lines() -> None:
    first = next(text for kind, text in BLOCK.findall((ROOT / "README.md").read_text()) if kind == "python")
    assert len([line for line in first.splitlines() if line.strip()]) <= 25


@pytest.mark.integration
def test_the_demo_tells_its_five_acts_and_keeps_its_runs(tmp_path: Path) -> None:
    """A second demo replaces the first one's folder, but never a `demo` folder that the demo did not create."""
    demo = [sys.executable, str(ROOT / "examples" / "demo.py")]
    environment = {**os.environ, "FAST": "1", "COLUMNS": "100"}
    (tmp_path / "demo").mkdir()
    refused = subprocess.run(demo, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "rename what is there" in refused.stderr
    (tmp_path / "demo" / ".demo").touch()
    ran = subprocess.run(demo, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    last_screen = ran.stdout.splitlines()[-16:]
    for wanted in (
        "validation accuracy",
        "every weight is identical",
        "best of",
        "batch norm",
        "demo/report.html",
        "ui demo/runs",
        "show ",
    ):
        assert any(wanted in line for line in last_screen), f"{wanted}: {ran.stdout}"
    accuracy = re.search(r"validation accuracy of ([\d.]+)%", ran.stdout)
    assert accuracy
    assert float(accuracy[1]) >= 95
    assert (tmp_path / "demo" / "report.html").exists()
