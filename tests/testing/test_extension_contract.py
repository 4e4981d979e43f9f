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


class LateAverage(Extension):
    """Averages the weights from step 10 on, and ends with the average, but saves nothing."""

    def __init__(self) -> None:
        self.average: list[torch.Tensor] = []

    def post_optimizer_step(self, model: torch.nn.Module, step_num: int) -> None:
        if step_num >= 10:
            weights = [each.detach().clone() for each in model.parameters()]
            self.average = [(old + new) / 2 for old, new in zip(self.average or weights, weights, strict=True)]

    def post_train(self, model: torch.nn.Module) -> None:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), self.average, strict=True):
                parameter.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Noise(Extension):
    """Changes training by drawing random numbers."""

    def post_train_step_batch(self) -> None:
        torch.rand(())


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
    assert first.startswith("after resuming at batch 8, `layers.0.weight` differs; `layers.0.bias` differs; ")
    assert second == ("changed in training, but not in `state_dict`: `Forgetful.num_batches` (it is 10, and 18 without the interruption)")


def test_a_forgotten_state_that_begins_in_the_second_half_of_training_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"^after resuming at batch 15, `layers\.0\.weight` differs; (.|\n)*`LateAverage\.average`"):
        contract_of(LateAverage).test_training_with_it_resumes_bit_for_bit()


def test_the_test_for_observers_is_skipped_for_an_extension_that_is_not_one() -> None:
    with pytest.raises(pytest.skip.Exception, match=r"^Noise is not an Observer; inherit from Observer if it only reads$"):
        contract_of(Noise).test_an_observer_changes_neither_weights_nor_random_numbers()


def test_an_observer_that_logs_a_forgotten_count_is_caught() -> None:
    with pytest.raises(AssertionError) as caught:
        contract_of(ForgetfulCounter).test_training_with_it_resumes_bit_for_bit()
    assert str(caught.value).splitlines() == [
        "after resuming at batch 8, metric `num_batches` differs",
        "changed in training, but not in `state_dict`: `ForgetfulCounter.num_batches` (it is 10, and 18 without the interruption)",
    ]


def test_an_extension_that_logs_times_passes_only_without_reproducible_metrics() -> None:
    with pytest.raises(AssertionError, match="metric `clock` differs"):
        contract_of(Clock).test_training_with_it_resumes_bit_for_bit()
    contract_of(Clock, has_reproducible=False).test_training_with_it_resumes_bit_for_bit()
