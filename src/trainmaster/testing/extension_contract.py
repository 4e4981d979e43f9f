"""What every extension must keep, as tests that pytest collects from a subclass."""

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
    """Subclass it as `class TestMyExtension(ExtensionContract)` and override `make`.

    The training has dropout, a shuffled loader, an evaluation set, and takes well under a second.
    """

    def make(self) -> object:
        """A new extension, as a user would create it."""
        raise NotImplementedError(f"{type(self).__name__}.make returns the extension to test")

    def manager(self, *extensions: object) -> TrainManager:
        """A small classification, always the same; `extensions` are attached in their order."""
        torch.manual_seed(0)
        inputs = torch.randn(48, 6)
        data = TensorDataset(inputs, inputs[:, :3].argmax(1))
        return TrainManager(
            _Model(), _loss, 3, DataLoader(data, 8, shuffle=True), {"valid": DataLoader(data, 20)}, extensions=list(extensions)
        )

    def test_a_training_with_it_ends(self) -> None:
        manager = self.manager(self.make())
        manager.train()
        assert manager.epoch_num == 3

    def test_it_can_train_again_in_the_same_process(self) -> None:
        manager = self.manager(self.make())
        manager.train()
        manager.epochs = 4
        manager.train()
        assert manager.epoch_num == 4

    def test_an_observer_does_not_change_the_weights_nor_the_random_numbers(self) -> None:
        extension = self.make()
        if getattr(extension, "is_observer", False):
            found = []
            for extensions in ([], [extension]):
                seed_rng(0)
                manager = self.manager(*extensions)
                manager.train()
                found.append({"weights": manager.model.state_dict(), "rng": get_rng()})
            assert same_bits(*found)

    def test_a_training_with_it_is_resumed_bit_by_bit(self) -> None:
        capture = _CaptureAt(step=8)
        whole = self.manager(self.make(), capture)
        whole.train()
        assert capture.state is not None
        resumed = self.manager(self.make())
        resumed.restore(capture.state)
        resumed.train()
        assert same_bits(whole.model.state_dict(), resumed.model.state_dict())
        for name, extension in resumed.extensions.items():
            if isinstance(extension, Stateful):
                other = whole[name]
                assert same_bits(own_copy(extension.state_dict()), own_copy(other.state_dict())), (
                    f"the state of {name} differs after resuming"
                )


def same_bits(one: Any, other: Any) -> bool:
    """Equal bit by bit, through containers."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same_bits, one, other))
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return bool(one == other) or (one != one and other != other)
