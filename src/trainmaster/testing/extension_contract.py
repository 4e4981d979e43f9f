"""The contract for extensions, written as tests that pytest collects from a subclass."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster.loop import TrainingState, TrainManager
from trainmaster.loop.rng import get_rng, seed_rng
from trainmaster.loop.state import Stateful, own_copy
from trainmaster.stages import Extension


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))

    def forward(self, batch: list[torch.Tensor]) -> Any:
        return self.layers(batch[0])


def _loss(batch: list[torch.Tensor], prediction: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(prediction, batch[1])


class _CaptureAt(Extension):
    def __init__(self, step: int) -> None:
        self.step = step
        self.state: TrainingState | None = None

    def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
        if step_num == self.step:
            self.state = train_manager.capture()


class ExtensionContract:
    """Tests for your extension: write `class TestMyExtension(ExtensionContract)` and override `make`.

    The tests train with dropout, a shuffled loader and an evaluation set, and take much less than a second.
    """

    def make(self) -> object:
        """Create the extension to test."""
        raise NotImplementedError(f"override {type(self).__name__}.make so that it returns the extension to test")

    def loop(self, *extensions: object) -> TrainManager:
        """Return a loop for a small, reproducible classification task, with these extensions attached in order."""
        torch.manual_seed(0)
        inputs = torch.randn(48, 6)
        data = TensorDataset(inputs, inputs[:, :3].argmax(1))
        loaders = DataLoader(data, 8, shuffle=True), {"valid": DataLoader(data, 20)}
        return TrainManager(_Model(), _loss, 3, *loaders, extensions=list(extensions), progress=False)

    def test_training_with_it_finishes(self) -> None:
        loop = self.loop(self.make())
        loop.train()
        assert loop.epoch_num == 3

    def test_it_can_train_again_in_the_same_process(self) -> None:
        loop = self.loop(self.make())
        loop.train()
        loop.epochs = 4
        loop.train()
        assert loop.epoch_num == 4

    def test_an_observer_changes_neither_weights_nor_random_numbers(self) -> None:
        extension = self.make()
        if getattr(extension, "is_observer", False):
            results = []
            for extensions in ([], [extension]):
                seed_rng(0)
                loop = self.loop(*extensions)
                loop.train()
                results.append({"weights": loop.model.state_dict(), "rng": get_rng()})
            assert same_bits(*results)

    def test_training_with_it_resumes_bit_for_bit(self) -> None:
        capture = _CaptureAt(step=8)
        whole = self.loop(self.make(), capture)
        whole.train()
        assert capture.state is not None
        resumed = self.loop(self.make())
        resumed.restore(capture.state)
        resumed.train()
        assert same_bits(whole.model.state_dict(), resumed.model.state_dict())
        for name, extension in resumed.extensions.items():
            if isinstance(extension, Stateful):
                other = whole[name]
                assert same_bits(own_copy(extension.state_dict()), own_copy(other.state_dict())), (
                    f"the state of {name} differs after resuming"
                )


def _has_same_nans(one: torch.Tensor, other: torch.Tensor) -> bool:
    is_float = one.is_floating_point() and one.dtype == other.dtype and one.shape == other.shape
    return is_float and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def same_bits(one: Any, other: Any) -> bool:
    """Return whether two nested values are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and (torch.equal(one, other) or _has_same_nans(one, other))
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same_bits, one, other))
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return bool(one == other) or (one != one and other != other)
