"""Tests for train.py; `pytest` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainmaster import ConfigError

from train import make_trainer


def test_every_part_works_on_a_few_batches(tmp_path: Path) -> None:
    assert make_trainer(str(tmp_path)).smoke_test()


def test_training_reaches_90_percent_and_logs_the_weight_norm(tmp_path: Path) -> None:
    trainer = make_trainer(str(tmp_path), "train_config.epochs=15", "verbose=silent")
    assert trainer.launch()["valid/accuracy"] > 0.9
    assert [epoch for epoch, _ in trainer.manager.history["weight_norm"]] == list(range(1, 16))


def test_a_misspelled_config_key_is_an_error() -> None:
    with pytest.raises(ConfigError, match="did you mean `width`"):
        make_trainer(None, "model_config.widht=32")
