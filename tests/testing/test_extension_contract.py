"""The contract tests fail for extensions that break the contract."""

from __future__ import annotations

import pytest
import torch

from trainmaster import Extension, Observer
from trainmaster.testing import ExtensionContract


class Meddler(Observer):
    """Claims to be an observer but changes the weights."""

    def post_train_step_batch(self, model: torch.nn.Module) -> None:
        with torch.no_grad():
            next(model.parameters()).add_(0.01)


class Forgetful(Extension):
    """An extension whose results depend on a counter that it does not save."""

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
        Contract().test_an_observer_changes_neither_weights_nor_random_numbers()


def test_an_extension_that_does_not_save_its_state_is_caught() -> None:
    class Contract(ExtensionContract):
        def make(self) -> object:
            return Forgetful()

    with pytest.raises(AssertionError):
        Contract().test_training_with_it_resumes_bit_for_bit()
