"""The package works with the oldest versions of its dependencies, and with each extra alone (`make release-check`)."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from served_page import dashboard, get

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
Run = Callable[..., str]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.environ.get("TRAINMASTER_RELEASE") != "full", reason="`make release-check` runs it: it installs many packages"),
]
EXTRAS = {
    "analysis": "from trainmaster.analysis import Results; r = Results('runs'); assert len(r.df) == 2; r.groups()",
    "search": "import train; from trainmaster import Manager; m = Manager('runs', make_loop=train.make_loop, verbose=False); "
    "print(m.search({'lr': [0.01, 0.02]}, trials=2, epochs=1))",
    "ray": "import train; from trainmaster import Manager; from trainmaster.sweep import RayExecutor; "
    "m = Manager('runs', make_loop=train.make_loop, verbose=False); "
    "print(m.sweep({'lr': [0.03, 0.04]}, num_epochs=1, workers=RayExecutor(1)))",
    "tensorboard": "import train; from trainmaster import TensorBoard; loop = train.make_loop(train.Train(epochs=1)); "
    "loop.add_extension('tensorboard', TensorBoard('logs')); loop.train(); import os; assert os.listdir('logs')",
    "metrics": "import train, torch, torchmetrics; from trainmaster import Metrics; loop = train.make_loop(train.Train(epochs=1)); "
    "loop.add_extension('m', Metrics({'f1': torchmetrics.F1Score('multiclass', num_classes=3)})); loop.train(); "
    "assert 'valid/f1' in loop.history, [*loop.history]",
    "demo": "from sklearn.datasets import load_digits; assert load_digits().images.shape == (1797, 8, 8)",
}
MESSAGES = {
    "analysis": "data frames need pandas: pip install 'trainmaster[analysis]'",
    "search": "search needs: pip install 'trainmaster[search]'",
    "ray": "RayExecutor needs: pip install 'trainmaster[ray]'",
    "tensorboard": "TensorBoard needs: pip install 'trainmaster[tensorboard]'",
}


def oldest(requirements: list[str]) -> list[str]:
    """Return the lower bounds as pins, without torch, whose older versions would install gigabytes of CUDA."""
    return [each.replace(">=", "==") for each in requirements if not each.startswith("torch>")]


def make_project(run: Run, python: Path, folder: Path) -> Path:
    """Create a starter project with two runs, and return its folder."""
    run(python, "-m", "trainmaster", "init", "lab", cwd=folder)
    run(python, "-m", "trainmaster", "sweep", "train.py", "lr=0.005,0.006", "--epochs", "1", cwd=folder / "lab")
    return folder / "lab"


def test_the_oldest_dependencies_train_save_resume_and_serve_the_dashboard(
    run: Run, environment: dict[str, str], wheel: Path, tmp_path: Path
) -> None:
    run(sys.executable, "-m", "venv", "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    torch = re.search(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert torch is not None
    pins = [torch[0], *oldest(PROJECT["dependencies"])]
    run(python, "-m", "pip", "install", "--quiet", *pins, cwd=tmp_path, PIP_CONSTRAINT="")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    lab = make_project(run, python, tmp_path)
    assert "resumes from epoch 1" in run(python, "-m", "trainmaster", "run", "train.py", "lr=0.005", "--epochs", "2", cwd=lab)
    runs = json.loads(run(python, "-m", "trainmaster", "ls", "--json", cwd=lab))
    assert sorted(each["epoch"] for each in runs) == [1, 2]
    assert "no damage" in run(python, "-m", "trainmaster", "verify", cwd=lab)
    with dashboard([python, "-m", "trainmaster"], lab, environment) as address:
        assert "<script" in get(address)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_works_alone_and_without_it_one_line_says_what_to_install(
    run: Run, python: Path, wheel: Path, tmp_path: Path, extra: str
) -> None:
    lab = make_project(run, python, tmp_path)
    code = EXTRAS[extra]
    missing = run(python, "-c", code, cwd=lab, code=1)
    if extra in MESSAGES:
        assert any(line.endswith(MESSAGES[extra]) for line in missing.splitlines())
    run(sys.executable, "-m", "venv", "venv", cwd=tmp_path)
    [packages] = python.parents[1].glob("lib/python*/site-packages")
    [own] = (tmp_path / "venv").glob("lib/python*/site-packages")
    (own / "base.pth").write_text(f"{packages}\n")  # adds the packages of the environment with the wheel, but no extras
    added = tmp_path / "venv/bin/python"
    run(added, "-m", "pip", "install", "--quiet", *oldest(PROJECT["optional-dependencies"][extra]), cwd=tmp_path, PIP_CONSTRAINT="")
    run(added, "-c", code, cwd=lab)
