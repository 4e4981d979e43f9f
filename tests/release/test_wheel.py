"""The wheel that `make wheel` builds is complete, and works in a new environment without the checkout."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from served_page import dashboard, get

from trainmaster.cli.init import TEMPLATES

ROOT = Path(__file__).parents[2]
Run = Callable[..., str]
pytestmark = pytest.mark.integration


def test_the_wheel_has_what_users_need_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {"trainmaster/py.typed", "trainmaster/analysis/report.css", "trainmaster/analysis/report.js"}
    wanted |= {"trainmaster/dashboard/static/index.html", "trainmaster/dashboard/static/icon.svg", "trainmaster/cli/templates/gitignore"}
    wanted |= {f"trainmaster/cli/templates/{name}/{file}" for name in TEMPLATES for file in ("README.md", "train.py", "test_train.py")}
    assert names >= wanted
    modules = {f"trainmaster/{file.relative_to(ROOT / 'src/trainmaster').as_posix()}" for file in (ROOT / "src/trainmaster").rglob("*.py")}
    assert names >= modules
    assets = {name for name in names if name.startswith("trainmaster/dashboard/static/assets/")}
    assert {name.rpartition(".")[2] for name in assets} >= {"css", "js"}
    assert names == wanted | modules | assets


def test_the_source_archive_has_no_tests_and_no_page_sources(dist: Path) -> None:
    [archive] = dist.glob("trainmaster-*.tar.gz")
    with tarfile.open(archive) as file:
        names = [name.partition("/")[2] for name in file.getnames()]
    assert {name.partition("/")[0] for name in names if name} <= {
        *("src", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in", "PKG-INFO", "setup.cfg")
    }
    assert "src/trainmaster/dashboard/static/index.html" in names


def test_the_first_example_of_the_readme_runs_in_a_new_environment(run: Run, python: Path, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    found = re.search(r"^```python\n(.*?)^```\n\s*^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    (tmp_path / "example.py").write_text(found[1])
    printed, shown = (re.sub(r"[\d.]+ s\b|\d+:\d\d left", "TIME", each) for each in (run(python, "example.py", cwd=tmp_path), found[2]))
    assert printed.endswith(shown)
    assert "site-packages" in run(python, "-c", "import trainmaster; print(trainmaster.__file__)", cwd=tmp_path)


def test_a_starter_project_trains_and_the_dashboard_shows_it(run: Run, environment: dict[str, str], python: Path, tmp_path: Path) -> None:
    program = python.parent / "trainmaster"
    run(program, "init", "lab", cwd=tmp_path)
    run(program, "run", "train.py", "epochs=1", cwd=tmp_path / "lab")
    with dashboard([program], tmp_path / "lab", environment) as address:
        page = get(address)
        assets = re.findall(r'(?:src|href)="([^"]+\.(?:js|css|svg))"', page)
        assert {name.rpartition(".")[2] for name in assets} == {"js", "css", "svg"}
        for name in assets:
            assert get(address.rstrip("/") + "/" + name.removeprefix(".").lstrip("/"))
