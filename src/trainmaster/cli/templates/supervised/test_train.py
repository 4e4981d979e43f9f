"""Tests for train.py; `pytest` runs them."""

from __future__ import annotations

import pytest
from trainmaster import ConfigError, seed_rng

from train import Train, make_loop


def test_training_reaches_90_percent() -> None:
    seed_rng(0)
    loop = make_loop(Train(epochs=15))
    loop.train()
    _, accuracy = loop.history["valid/accuracy"][-1]
    assert accuracy > 0.9


def test_the_weight_norm_is_logged_once_per_epoch() -> None:
    loop = make_loop(Train(epochs=2))
    loop.train()
    assert [epoch for epoch, _ in loop.history["weight_norm"]] == [1, 2]


def test_a_misspelled_config_key_is_an_error() -> None:
    with pytest.raises(ConfigError, match="did you mean `width`"):
        Train().override("widht=32")
