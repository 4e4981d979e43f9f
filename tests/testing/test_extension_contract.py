"""The contract tests fail for extensions that break the contract."""

from __future__ import annotations

import time
from typing import Any

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


class ForgetfulCounter(Observer):
    """Logs a count that it does not save."""

    def __init__(self) -> None:
        self.num_batches = 0

    def post_train_step_batch(self) -> None:
        self.num_batches += 1

    def post_train_step_epoch(self, writer: Any, epoch_num: int) -> None:
        writer.add_scalar("num_batches", self.num_batches, epoch_num)


class Clock(Observer):
    """Logs a value that is different each time."""

    def post_train_step_epoch(self, writer: Any, epoch_num: int) -> None:
        writer.add_scalar("clock", time.perf_counter(), epoch_num)


def contract_of(extension_type: type[Extension], has_reproducible: bool = True) -> ExtensionContract:
    class Contract(ExtensionContract):
        has_reproducible_metrics = has_reproducible

        def make(self) -> object:
            return extension_type()

    return Contract()


def test_an_observer_that_changes_weights_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"^Meddler is an observer, but with it `layers\.0\.weight` differs; "):
        contract_of(Meddler).test_an_observer_changes_neither_weights_nor_random_numbers()


def test_weights_that_differ_after_a_resume_are_named_with_the_forgotten_attribute() -> None:
    with pytest.raises(AssertionError) as caught:
        contract_of(Forgetful).test_training_with_it_resumes_bit_for_bit()
    first, second = str(caught.value).splitlines()
    assert first.startswith("after resuming at step 8, `layers.0.weight` differs; `layers.0.bias` differs; ")
    assert second == ("changed in training, but not in `state_dict`: `Forgetful.num_batches` (it is 10, and 18 without the interruption)")


def test_an_observer_that_logs_a_forgotten_count_is_caught() -> None:
    with pytest.raises(AssertionError) as caught:
        contract_of(ForgetfulCounter).test_training_with_it_resumes_bit_for_bit()
    assert str(caught.value).splitlines() == [
        "after resuming at step 8, metric `num_batches` differs",
        "changed in training, but not in `state_dict`: `ForgetfulCounter.num_batches` (it is 10, and 18 without the interruption)",
    ]


def test_an_extension_that_logs_times_passes_only_without_reproducible_metrics() -> None:
    with pytest.raises(AssertionError, match="metric `clock` differs"):
        contract_of(Clock).test_training_with_it_resumes_bit_for_bit()
    contract_of(Clock, has_reproducible=False).test_training_with_it_resumes_bit_for_bit()
