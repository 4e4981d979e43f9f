"""Hooks may evaluate and predict at any point in training."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from trainmaster import Extension, Observer, always
from trainmaster.loop.stages import TRAIN_MANAGER
from trainmaster.testing import ExtensionContract


class Asks(Observer):
    """Evaluates and predicts once, in the given hook."""

    def __init__(self, hook: str) -> None:
        self.predictions: list[torch.Tensor] = []
        self.is_asked = False
        setattr(self, hook, self._ask)

    def _ask(self, train_manager) -> None:
        if not self.is_asked and "train" in train_manager._scope.path:
            self.is_asked = True
            train_manager.eval()
            self.predictions = train_manager.predict(train_manager.eval_data["valid"])


HOOKS = [f"{phase}_{stage}" for stage in TRAIN_MANAGER.paths for phase in ("pre", "post")]


@pytest.mark.parametrize(
    "hook", [hook for hook in HOOKS if not hook.endswith(("train_manager", "run", "load_checkpoint", "predict_step_batch", "predict"))]
)
def test_an_observer_evaluates_and_predicts_from_any_hook_of_training(hook: str) -> None:
    contract = ExtensionContract()
    plain = contract.loop()
    plain.train()
    asks = Asks(hook)
    watched = contract.loop(asks)
    watched.train()
    assert len(asks.predictions) == 3
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), watched.model.parameters(), strict=True))


def test_the_fixtures_of_a_batch_are_restored_after_an_evaluation_within_it() -> None:
    class Looks(Extension):
        is_same = False

        def post_train_step_batch(self, train_manager, fixtures, batch, loss) -> None:
            before = {name: fixtures[name] for name in fixtures}
            train_manager.eval()
            self.is_same = all(fixtures[name] is value for name, value in before.items()) and set(fixtures) == set(before)

    looks = Looks()
    ExtensionContract().loop(looks).train()
    assert looks.is_same


def test_without_train_dir_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers contract E34."""
    monkeypatch.chdir(tmp_path)
    manager = ExtensionContract().loop()
    manager.train()
    assert manager.train_dir is None
    assert os.listdir(tmp_path) == []


def test_an_evaluation_after_an_error_does_not_see_that_error() -> None:
    class Fails(Extension):
        def post_forward(self) -> None:
            raise ArithmeticError("planted")

    class Evaluates(Extension):
        seen: object = "nothing"

        @always
        def post_train_step_batch(self, train_manager, exc_type=None) -> None:
            self.outer = exc_type
            train_manager.eval()

        def pre_eval(self, exc_type=None) -> None:
            self.seen = exc_type

    evaluates = Evaluates()
    loop = ExtensionContract().loop(Fails(), evaluates)
    loop.evaluate_first = False
    with pytest.raises(ArithmeticError, match="planted"):
        loop.train()
    assert evaluates.outer is ArithmeticError
    assert evaluates.seen is None
