"""The contract tests fail for extensions that break the contract."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
import torch

from trainmaster import Extension, Observer, TrainManager
from trainmaster.errors import CodecError
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


class Collector(Observer):
    """Collects losses for a figure, and does not save them."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.times: list[float] = []

    def post_train_step_batch(self, loss: torch.Tensor) -> None:
        self.losses.append(loss.item())
        self.times.append(time.perf_counter())


class SavingCollector(Collector):
    def state_dict(self) -> dict[str, Any]:
        return {"all": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = state["all"]


class Rare(Extension):
    """Divides the objective by the number of batches whose first target was the same."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()

    def pre_backward(self, fixtures: Any, objective: torch.Tensor, batch: Any) -> None:
        label = int(batch[1][0])
        self.seen[label] += 1
        fixtures.modify("objective", objective / self.seen[label])

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Tally(Counter[int]):
    """A subclass of dict that only its own program knows."""


class RareInOwnDict(Rare):
    def __init__(self) -> None:
        self.seen = Tally()


class SavedClock(Clock):
    """Saves the time that it has logged."""

    seconds = 0.0

    def post_train_step_batch(self) -> None:
        self.seconds += time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds = state["seconds"]


class Stopper(Extension):
    def post_train_step_batch(self, loop: TrainManager, step_num: int) -> None:
        if step_num == 17:
            loop.stop("enough")


def contract_of(extension_type: type[Extension], has_reproducible: bool = True, unsaved: tuple[str, ...] = ()) -> ExtensionContract:
    class Contract(ExtensionContract):
        has_reproducible_metrics = has_reproducible
        unsaved_attributes = unsaved

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


def test_an_extension_that_logs_times_passes_without_reproducible_metrics() -> None:
    contract_of(Clock, has_reproducible=False).test_training_with_it_resumes_bit_for_bit()


def test_an_extension_that_saves_times_passes_without_reproducible_metrics() -> None:
    contract_of(SavedClock, has_reproducible=False).test_training_with_it_resumes_bit_for_bit()


def test_a_state_with_a_counter_resumes_from_its_checkpoint() -> None:
    contract_of(Rare).test_training_with_it_resumes_bit_for_bit()


def test_a_state_that_a_checkpoint_cannot_contain_is_named_with_its_key() -> None:
    with pytest.raises(CodecError, match=r"extensions\.rare_in_own_dict\.seen: .*Tally: write `dict\(x\)`"):
        contract_of(RareInOwnDict).test_training_with_it_resumes_bit_for_bit()


def test_an_extension_that_stops_training_is_named_as_the_cause() -> None:
    with pytest.raises(AssertionError, match=r"^training ended after 2 of 3 epochs, at step 17\nif the extension stops training, "):
        contract_of(Stopper).test_training_with_it_finishes()


def test_a_forgotten_attribute_that_changes_neither_weights_nor_metrics_is_caught() -> None:
    contract_of(Collector).test_training_with_it_resumes_bit_for_bit()
    with pytest.raises(AssertionError, match=r"^after resuming at batch 8, these attributes differ: `Collector\.losses` ") as caught:
        contract_of(Collector).test_its_attributes_are_the_same_after_resuming()
    assert "times" not in str(caught.value)  # they differ each time
    assert str(caught.value).splitlines()[1] == (
        "save them in `state_dict`; if they may differ, list them in the test class: unsaved_attributes = ('losses',)"
    )


def test_attributes_that_are_saved_or_listed_as_unsaved_are_accepted() -> None:
    contract_of(SavingCollector).test_its_attributes_are_the_same_after_resuming()
    contract_of(Collector, unsaved=("losses",)).test_its_attributes_are_the_same_after_resuming()


def test_a_loop_that_differs_each_time_is_named_as_the_cause() -> None:
    class Unseeded(ExtensionContract):
        def make(self) -> object:
            return ForgetfulCounter()

        def loop(self, *extensions: object) -> TrainManager:
            loop = super().loop(*extensions)
            torch.nn.init.normal_(next(loop.model.parameters()), generator=generator)
            return loop

    generator = torch.Generator()
    with pytest.raises(AssertionError) as caught:
        Unseeded().test_training_with_it_resumes_bit_for_bit()
    first, second = str(caught.value).splitlines()
    assert first.startswith("training is not reproducible: in two trainings without an interruption, `layers.0.weight` differs; ")
    assert second == "`loop` must create the same model and data each time: call torch.manual_seed(0) at its start"


def test_metrics_that_differ_each_time_are_named_as_the_cause() -> None:
    with pytest.raises(AssertionError) as caught:
        contract_of(Clock).test_training_with_it_resumes_bit_for_bit()
    assert str(caught.value).splitlines() == [
        "training is not reproducible: in two trainings without an interruption, metric `clock` differs",
        "if your extension logs or saves times, set has_reproducible_metrics = False in the test class",
    ]
