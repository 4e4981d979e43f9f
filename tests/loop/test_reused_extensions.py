"""An extension that brings the state of one training into another one causes a warning."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import EMA, Extension, Manager, Supervised


class Count(Extension):
    """Divides the objective by the number of batches so far."""

    def __init__(self) -> None:
        self.num = 0

    def pre_backward(self, fixtures: Any, objective: torch.Tensor) -> None:
        self.num += 1
        fixtures.modify("objective", objective / self.num)

    def state_dict(self) -> dict[str, Any]:
        return {"num": self.num}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num = state["num"]


class ResetCount(Count):
    def pre_train_step_epoch(self) -> None:
        self.num = 0


class Unready(Count):
    """An extension whose state exists only after the first batch."""

    def state_dict(self) -> dict[str, Any]:
        return {"num": 1 // self.num}


def make_loop(*extensions: object, epochs: int = 1) -> Supervised:
    batches = [(torch.ones(2, 1), torch.ones(2, 1))] * 3
    return Supervised(nn.Linear(1, 1), nn.MSELoss(), epochs, batches, extensions=extensions, progress=False)


def test_an_extension_with_the_state_of_another_loop_causes_a_warning() -> None:
    count = Count()
    make_loop(count).train()
    with pytest.warns(
        UserWarning, match=r"^extension `count` \(Count\) begins a new training run with the state that it has from another loop"
    ):
        make_loop(count).train()


def test_so_does_one_that_make_loop_returns_for_every_run() -> None:
    kept = [Count()]
    manager = Manager(defaults={"lr": 0.1}, make_loop=lambda config: make_loop(*kept), verbose=False)
    manager.process({"lr": 0.1})
    with pytest.warns(UserWarning, match="`count`"):
        manager.process({"lr": 0.2})


@pytest.mark.parametrize("kind", [ResetCount, EMA, Unready])
def test_an_extension_that_resets_itself_causes_no_warning(kind: type[Extension]) -> None:
    extension = kind()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_loop(extension).train()
        make_loop(extension).train()


def test_a_second_call_of_train_causes_no_warning() -> None:
    loop = make_loop(Count())
    loop.train()
    loop.epochs = 2
    loop.train()


def test_an_extension_of_a_manager_causes_no_warning_because_each_run_begins_with_its_initial_state() -> None:
    manager = Manager(defaults={"lr": 0.1}, make_loop=lambda config: make_loop(), verbose=False)
    manager.add_extension("count", Count())
    manager.process({"lr": 0.1})
    manager.process({"lr": 0.2})
    assert manager.extensions["count"].num == 3  # type: ignore[attr-defined]


def test_a_restored_extension_causes_no_warning() -> None:
    first = make_loop(Count())
    first.train()
    count = Count()
    make_loop(count).train()
    second = make_loop(count, epochs=2)
    second.restore(first.capture())
    second.train()
    assert count.num == 6
