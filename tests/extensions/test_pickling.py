"""Extensions are sent to worker processes, so each one can be pickled before and after training."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import all_program as program
import pytest

import trainmaster.extensions
from trainmaster.extensions.figure_writer import FigureWriter
from trainmaster.testing.extension_contract import same_bits

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:ConstructorArgs")


def state(extension: Any) -> Any:
    return extension.state_dict() if hasattr(extension, "state_dict") else None


def test_the_list_contains_every_extension_of_trainmaster() -> None:
    assert set(program.one_of_each_kind()) == set(trainmaster.extensions.__all__)


def test_unpickled_extensions_train_and_can_be_pickled_and_copied_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FigureWriter, "draw", lambda self: None)  # drawing all figures takes longer than training
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    extensions = {name: pickle.loads(pickle.dumps(each)) for name, each in program.one_of_each_kind().items()}
    manager = program.training(str(tmp_path), *extensions.values())
    manager.epochs = 1
    manager.train()
    for name, each in extensions.items():
        for again in (pickle.loads(pickle.dumps(each)), copy.deepcopy(each)):
            assert type(again) is type(each)
            assert same_bits(state(again), state(each)), name


@pytest.mark.integration
def test_a_sweep_with_all_extensions_gives_the_same_results_in_two_workers(tmp_path: Path) -> None:
    results = []
    for workers in (0, 2):
        extensions = program.one_of_each_kind()
        del extensions["CheckpointLoader"], extensions["CheckpointSaver"]  # a manager adds its own
        manager = program.Small(tmp_path / str(workers), verbose=False)
        manager.extensions = list(extensions.items())
        assert len(manager.sweep({"seed": [1, 2]}, 1, workers=workers).done) == 2
        results.append(dict(manager.previews.items()))
        assert manager.store.verify() == []
    assert results[0] == results[1]
    assert len(results[0]) == 2
