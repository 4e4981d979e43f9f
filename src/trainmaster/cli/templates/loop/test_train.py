"""Tests for train.py; `pytest` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from trainmaster import ConfigError, TrainTestLoop

from train import Accuracy, Classify, Spirals


def test_training_reaches_90_percent(tmp_path: Path) -> None:
    manager = Spirals(tmp_path, verbose=False)
    manager.process({"epochs": 15})
    assert manager.preview["accuracy"] > 0.9


def test_the_accuracy_is_that_of_all_samples() -> None:
    inputs, targets = torch.eye(3), torch.tensor([0, 1, 0])
    batches = list(zip(inputs.split(2), targets.split(2), strict=True))
    model, accuracy = nn.Identity(), Accuracy()
    loop = TrainTestLoop(model, [Classify(torch.optim.SGD([torch.zeros(1)])), accuracy], batches, batches)
    loop.test(batches)
    assert accuracy.values["accuracy"] == pytest.approx(2 / 3)


def test_a_run_that_is_continued_has_the_same_weights_as_one_without_a_break(tmp_path: Path) -> None:
    whole, parts = Spirals(tmp_path / "whole", verbose=False), Spirals(tmp_path / "parts", verbose=False)
    whole.process(num_epochs=3)
    for num_epochs in (1, 3):
        parts.process(num_epochs=num_epochs)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_misspelled_config_key_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean `width`"):
        Spirals(tmp_path, verbose=False).process({"widht": 32})
