"""Tests for train.py; `pytest` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trainmaster import ConfigError

from train import Spirals


def test_training_reaches_90_percent(tmp_path: Path) -> None:
    manager = Spirals(tmp_path, verbose=False)
    manager.process({"epochs": 15})
    assert manager.preview["accuracy"] > 0.9
    assert manager.preview["best_accuracy"] >= manager.preview["accuracy"]


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
