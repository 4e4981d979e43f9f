"""All extensions that change or reproduce training work together, in any order, and survive kills."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import steering_program as program
import warm
from torch import nn

from trainmaster import TrainManager, init_from_checkpoint
from trainmaster.loop.state import stateful_extensions
from trainmaster.testing.extension_contract import same_bits

PROGRAM = program.__file__

pytestmark = pytest.mark.filterwarnings("ignore:CodeTracker")  # the folder of the test is not in a repository


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainManager:
    """Train without interruption."""
    manager: TrainManager = program.training(str(tmp_path_factory.mktemp("whole")))
    manager.train()
    assert manager.epoch_num < 12, "EarlyStopping did not stop the training"
    return manager


def states(manager: TrainManager) -> dict[str, Any]:
    known = stateful_extensions(manager.extensions)
    return {name: each.state_dict() for name, each in known.items() if not getattr(each, "is_observer", False)}


def test_after_two_kills_within_groups_training_ends_like_an_uninterrupted_run(whole: TrainManager, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    ran = warm.run(
        [sys.executable, str(PROGRAM), folder, "4", "7"],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    again = program.training(folder)
    again.train()
    assert same_bits(whole.model.state_dict(), again.model.state_dict())
    assert same_bits(whole["ema"].weights, again["ema"].weights)
    assert again.history == whole.history
    expected, found = states(whole), states(again)
    assert [name for name in expected if not same_bits(expected[name], found[name])] == []
    assert (again.epoch_num, again["early_stopping"].best_epoch) == (whole.epoch_num, whole["early_stopping"].best_epoch)


def test_the_order_of_the_list_makes_no_difference(whole: TrainManager, tmp_path: Path) -> None:
    for seed in range(2):
        manager = program.training(str(tmp_path / str(seed)))
        names = list(manager.extensions)
        random.Random(seed).shuffle(names)
        manager.extensions = {name: manager.extensions[name] for name in names}
        manager.train()
        assert same_bits(whole.model.state_dict(), manager.model.state_dict())
        assert manager.history == whole.history


def test_all_of_them_are_rebuilt_from_a_checkpoint(whole: TrainManager) -> None:
    assert whole.train_dir is not None
    last = max((whole.train_dir / "checkpoints").glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    again = init_from_checkpoint(last)
    again.eval()
    assert again.history["valid/loss"][-1] == whole.history["valid/loss"][-1]
    kinds = [{name: type(each) for name, each in tm.extensions.items() if not name.startswith("checkpoint")} for tm in (whole, again)]
    assert kinds[0] == kinds[1]


def test_evaluations_use_the_averaged_weights(whole: TrainManager) -> None:
    model: nn.Module = whole.model
    trained = {name: each.clone() for name, each in model.state_dict().items()}
    recorded = whole.history["valid/loss"][-1][1]
    whole.eval()
    assert whole.history["valid/loss"][-1][1] == recorded
    assert same_bits(trained, model.state_dict())
