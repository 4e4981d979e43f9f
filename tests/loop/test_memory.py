"""A long training run needs no more memory than a short one."""

from __future__ import annotations

import gc
import json
import shutil
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint_memory
import pytest
import torch
import warm
from torch import nn

from trainmaster.loop import TrainManager
from trainmaster.stages import Extension, Observer, fixture


class Same:
    """Data that repeats the same batch."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._count):
            yield [0.0, 1.0]


class EngineOnly(TrainManager):
    """A loop with the stages, hooks and fixtures of real training, but almost no arithmetic."""

    def model_forward(self, batch: Any) -> Any:
        return batch

    def loss_forward(self, batch: Any, prediction: Any) -> Any:
        return 0.5

    def zero_grad(self) -> None: ...

    def backward(self, loss: Any) -> None: ...

    def optimizer_step(self) -> None: ...


class Plain(Extension):
    """Creates and modifies fixtures in each batch. Its stages use the fast path when they close."""

    creates = {"extra": "train_step_batch"}

    def pre_train_step_batch(self, fixtures: Any, batch: Any) -> None:
        fixtures["extra"] = [batch]
        fixtures.modify("batch", list(batch))


class Busy(Extension):
    """Like `Plain`, but with around hooks and lazy fixtures, so that its stages use the slow path when they close."""

    creates = {"extra": "train_step_batch"}

    def pre_train_step_batch(self, fixtures: Any, batch: Any) -> None:
        fixtures["extra"] = [batch]
        fixtures.modify("batch", list(batch))

    def around_forward(self, batch: Any) -> Iterator[None]:
        yield

    def post_train_step_batch(self, extra: Any, twice: Any, true_batch_size: int, loss: Any = None) -> None: ...

    @fixture("train_step_batch", after="backward")
    def twice(self, loss: Any) -> Any:
        return [loss, loss]


class Measure(Observer):
    """Measures the memory after the given numbers of batches."""

    def __init__(self, *at: int) -> None:
        self.at = at
        self.seen: list[tuple[int, int]] = []

    def post_train_step_batch(self, step_num: int) -> None:
        if step_num in self.at:
            gc.collect()
            self.seen.append((len(gc.get_objects()), tracemalloc.get_traced_memory()[0]))


def measured(count: int, *at: int, extension: Extension, is_traced: bool = False) -> list[tuple[int, int]]:
    """Train, and return the numbers of objects and bytes after each of the numbers of batches in `at`."""
    measure = Measure(*at)
    extensions = [extension, measure]
    tm = EngineOnly(nn.Linear(1, 1), None, 1, Same(count), optimizer=None, extensions=extensions, device="cpu", evaluate_first=False)
    if is_traced:
        tracemalloc.start()
    try:
        tm.train()
    finally:
        tracemalloc.stop()
    return measure.seen


@pytest.mark.integration
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_saving_and_resuming_need_at_most_1_2_times_the_memory_of_the_state(optimizer: str, tmp_path: Path) -> None:
    """The test compares two sizes, so that the memory of libraries loaded during the measurement cancels out."""
    for way in ("background", "waiting", "resume"):
        small, large = (
            json.loads(
                warm.run(
                    [sys.executable, checkpoint_memory.__file__, str(folder), way, optimizer, str(num_layers)],
                    capture_output=True,
                    check=True,
                ).stdout
            )
            for num_layers, folder in ((1, tmp_path / "small"), (4, tmp_path / "large"))
        )
        for each in (small, large):
            assert each["stored"] <= 1.2 * each["kept"] + 0.1
        extra = (large["extra"] - small["extra"]) / (large["kept"] - small["kept"])
        print(f"{optimizer}, {way}: {extra:.2f} times what is kept")
        assert extra <= 1.2, f"{way}: {large}, {small}"
        if way == "background":  # the other mode must start from scratch
            shutil.rmtree(tmp_path / "small")
            shutil.rmtree(tmp_path / "large")


@pytest.mark.integration
def test_the_number_of_objects_does_not_grow_over_100_000_batches() -> None:
    early, late = measured(110_000, 10_000, 110_000, extension=Busy())
    assert late[0] - early[0] < 50


@pytest.mark.integration
@pytest.mark.parametrize("kind", [Plain, Busy])
def test_the_memory_in_use_does_not_grow_over_4_000_batches(kind: type[Extension]) -> None:
    """The test uses tracemalloc, which also shows growth within one object, such as a list or a string."""
    early, late = measured(5_000, 1_000, 5_000, extension=kind(), is_traced=True)
    assert late[1] - early[1] < 10_000


def test_evaluations_do_not_leak_memory() -> None:
    data = Same(20)
    tm = EngineOnly(nn.Linear(1, 1), None, 1, Same(1), {"valid": data}, optimizer=None, device="cpu")
    counts = []
    for number in range(120):
        tm.eval()
        tm.history.clear()
        if number in (19, 119):
            gc.collect()
            counts.append(len(gc.get_objects()))
    assert counts[1] - counts[0] < 50


def test_stopping_training_many_times_does_not_leak_memory() -> None:
    tm = EngineOnly(nn.Linear(1, 1), None, None, [[torch.zeros(1)]] * 4, optimizer=None, device="cpu", max_steps=0, evaluate_first=False)
    counts = []
    for tm.max_steps in range(1, 202):
        tm.train()
        if tm.max_steps in (41, 201):
            gc.collect()
            counts.append(len(gc.get_objects()))
    assert counts[1] - counts[0] < 50
