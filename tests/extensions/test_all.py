"""The extensions that do not change training work together: they do not interfere with each other, and survive a kill."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import all_program as program
import pytest
import torch
import warm

from trainmaster import Manager, TrainManager
from trainmaster.loop.rng import get_rng
from trainmaster.loop.state import stateful_extensions
from trainmaster.testing.extension_contract import same_bits

PROGRAM = program.__file__

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def states(manager: TrainManager) -> dict[str, Any]:
    return {name: each.state_dict() for name, each in stateful_extensions(manager.extensions).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainManager:
    """Train without interruption, with all extensions."""
    manager: TrainManager = program.training(str(tmp_path_factory.mktemp("whole")), *program.passive_extensions())
    manager.train()
    return manager


def test_training_with_all_extensions_ends_with_the_same_bits_as_without(tmp_path: Path) -> None:
    found = []
    for number, extensions in enumerate(([], program.passive_extensions())):
        manager = program.training(str(tmp_path / str(number)), *extensions)
        manager.train()
        found.append({"weights": manager.model.state_dict(), "optimizer": manager.optimizer.state_dict(), "torch": get_rng()["torch"]})
    assert same_bits(*found)


@pytest.mark.parametrize("step", [8, pytest.param(16, marks=pytest.mark.integration)])
def test_after_a_kill_all_have_the_states_and_metrics_of_an_uninterrupted_run(whole: TrainManager, tmp_path: Path, step: int) -> None:
    folder = tmp_path / "run"
    ran = warm.run(
        [sys.executable, str(PROGRAM), str(folder), str(step)],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()
    again = program.training(str(folder), *program.passive_extensions())
    again.train()
    assert same_bits(whole.model.state_dict(), again.model.state_dict())
    assert again.history == whole.history
    expected, found = states(whole), states(again)
    assert [name for name in expected if not same_bits(expected[name], found[name])] == []


def test_all_figures_are_written_as_png_and_html(whole: TrainManager) -> None:
    assert whole.train_dir is not None
    plots = {path.name for path in (whole.train_dir / "plots").iterdir()}
    names = {name.removesuffix(".png") for name in plots if name.endswith(".png")}
    assert names >= {
        "loss", "loss_by_batch", "loss_by_sample", "sample_loss_valid", "grad_norm", "grad_rms", "update_ratio", "activations",
        "learning_rate", "avg_loss",
    }  # fmt: skip
    assert {f"{name}.html" for name in names} | {f"{name}.png" for name in names} | {"plotly.min.js", "sample_loss_valid.json"} == plots


@pytest.mark.integration
def test_under_a_manager_a_run_with_all_extensions_resumes(tmp_path: Path) -> None:
    class Small(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            loop: TrainManager = program.training(None, *program.passive_extensions())
            return loop

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epochs in (2, 4):
            parts = Small(tmp_path / "parts", verbose=False)
            parts.process({"seed": 1}, epochs)
        once = Small(tmp_path / "once", verbose=False)
        once.process({"seed": 1}, 4)

    def rows(manager: Manager) -> list[Any]:
        return [(event.get("tag"), event.get("step"), event.get("value")) for event in manager.store.run(manager.key).events()]

    assert rows(parts) == rows(once)
    assert torch.equal(parts.model[0].weight, once.model[0].weight)
