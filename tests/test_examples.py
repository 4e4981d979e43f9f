"""Every example in the README and the docs runs, and so does the demo."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [page.name for page in PAGES]
SMOKE = ("stages.md", "configs.md", "exact_state.md")
"""Pages without console blocks, which take about a second."""
BLOCK = re.compile(r"^```(python|text|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PEERS = {
    "lightning.md": ("lightning",),
    "ignite.md": ("ignite",),
    "hf_trainer.md": ("transformers", "accelerate"),
    "hydra_wandb.md": ("hydra", "wandb"),
    "ray_tune.md": ("ray", "pyarrow", "tensorboardX"),
}
"""The packages, of the extra `peers`, that the pages in docs/coming_from need."""
FILE = re.compile(r"# (\w+\.py)\n")
PROGRESS = re.compile(r"^epoch [\d,]+/[\d,]+  .*\d s\b.*\n", re.MULTILINE)
"""The progress that a loop prints by default. The pages leave it out, because it contains times."""
LIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.integration
@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.smoke if page.name in SMOKE else ()) for page in PAGES], ids=NAMES)
def test_the_examples_of_a_page_run_and_print_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The python blocks of a page are one program; a text block directly after one is what it prints. One that begins with the name of a
    file is that file; in console blocks, `$` stands before commands, and `...` for any output."""
    if page.parent.name == "coming_from":
        for peer in PEERS.get(page.name, ()):
            pytest.importorskip(peer)
        warnings.simplefilter("ignore")  # pytest restores the filters; what peers deprecate is not ours
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
            printed, after = PROGRESS.sub("", output.getvalue()), match.end()
        elif printed is not None and not page.read_text()[after : match.start()].strip():
            assert printed.rstrip() == text.rstrip(), f"{page.name} shows other output than its example prints"
            printed = None


def run_console(text: str) -> None:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, wanted = part.partition("\n")
        ran = subprocess.run(command, shell=True, executable="/bin/bash", capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"$ {command}\n{ran.stdout}{ran.stderr}"
        assert doctest.OutputChecker().check_output(wanted, ran.stdout, LIKE), f"$ {command}\n{ran.stdout}\nwanted:\n{wanted}"


def test_the_pages_link_only_to_what_is_there() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_example_has_about_twenty_lines() -> None:
    first = next(text for kind, text in BLOCK.findall((ROOT / "README.md").read_text()) if kind == "python")
    assert len([line for line in first.splitlines() if line.strip()]) <= 25


@pytest.mark.integration
def test_the_demo_reaches_97_percent_and_shows_the_stage_map(capsys: pytest.CaptureFixture[str]) -> None:
    demo = runpy.run_path(str(ROOT / "examples" / "digits.py"))
    assert demo["main"]() >= 0.97
    printed = capsys.readouterr().out
    assert "└─ optimizer_step" in printed
    assert "What to look at next" in printed
