"""The contract suite fails for extensions that break the contract."""

from __future__ import annotations

import pytest
import torch

from trainmaster import Extension, Observer
from trainmaster.testing import ExtensionContract


class Meddler(Observer):
    """Says that it only looks, and changes the weights."""

    def post_train_step_batch(self, model: torch.nn.Module) -> None:
        with torch.no_grad():
            next(model.parameters()).add_(0.01)


class Forgetful(Extension):
    """Acts by a counter that it does not keep."""

    def __init__(self) -> None:
        self.num_batches = 0

    def pre_optimizer_step(self, model: torch.nn.Module) -> None:
        self.num_batches += 1
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1 / self.num_batches)


def test_an_observer_that_changes_weights_is_caught() -> None:
    class Contract(ExtensionContract):
        def make(self) -> object:
            return Meddler()

    with pytest.raises(AssertionError):
        Contract().test_an_observer_does_not_change_the_weights_nor_the_random_numbers()


def test_an_extension_that_forgets_its_state_is_caught() -> None:
    class Contract(ExtensionContract):
        def make(self) -> object:
            return Forgetful()

    with pytest.raises(AssertionError):
        Contract().test_a_training_with_it_is_resumed_bit_by_bit()
