"""Fixtures for tests of the release: the wheel, and new environments in which it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Run = Callable[..., str]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Return environment variables that do not point to this checkout, except for the version pins that pip uses."""
    foreign = ("PYTHON", "TRAINMASTER", "VIRTUAL_ENV", "COVERAGE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def run(environment: dict[str, str]) -> Run:
    """Return a function that runs a program, which must exit with `code`.

    The function returns stdout, or stderr if `code` is not 0.
    """

    def run(*words: object, cwd: Path, code: int = 0, **variables: str) -> str:
        env = {**environment, **variables}
        done = subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{words}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout if code == 0 else done.stderr

    return run


@pytest.fixture(scope="session")
def dist(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source archive, and the wheel from it, and return their folder."""
    if not (ROOT / "src/trainmaster/dashboard/static/index.html").exists():
        pytest.skip("`make frontend` has not been run")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    [found] = dist.glob("trainmaster-*-py3-none-any.whl")
    return found


@pytest.fixture(scope="session")
def python(run: Run, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a new environment that has only the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-compile", wheel, cwd=folder)
    return folder / "bin/python"
