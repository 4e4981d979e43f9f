"""HookProfiler measures the time spent in each hook."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Extension, LoopComponent, Observer, TrainTestLoop
from trainmaster.errors import SettingError
from trainmaster.extensions.hook_profiler import HookProfiler
from trainmaster.testing import ExtensionContract


class TestContract(ExtensionContract):
    unsaved_attributes = ("_num_batches",)  # it profiles the process, not the run

    def make(self) -> object:
        return HookProfiler(output=None)


class Sleeps(Extension):
    def post_train_step_batch(self) -> None:
        time.sleep(0.06)

    def around_forward(self) -> Iterator[None]:
        time.sleep(0.001)
        yield
        time.sleep(0.001)


def trained(*extensions: object) -> HookProfiler:
    times = HookProfiler(output=None)
    ExtensionContract().loop(times, *extensions).train()
    return times


def test_a_slow_hook_comes_first_with_its_calls_and_its_time() -> None:
    first = trained(Sleeps()).times()[0]
    assert (first.extension, first.hook, first.num_calls) == ("sleeps", "Sleeps.post_train_step_batch", 18)
    assert 0.36 <= first.seconds < 4
    assert 0.2 < first.share < 1


def test_both_parts_of_an_around_hook_are_timed_but_the_body_is_not() -> None:
    found = {each.hook: each for each in trained(Sleeps()).times()}
    batches = 18 + 4 * 3  # evaluations also have the stage `forward`
    assert found["Sleeps.around_forward"].num_calls == batches
    assert 2e-3 * batches <= found["Sleeps.around_forward"].seconds < found["Sleeps.post_train_step_batch"].seconds


def test_the_time_to_guard_observers_is_a_separate_row() -> None:
    class Looks(Observer):
        def post_train_step_batch(self) -> None: ...

    found = {(each.extension, each.hook): each.num_calls for each in trained(Looks()).times()}
    assert found["looks", "Looks.post_train_step_batch"] == 18
    assert found["guard", "observers"] >= 18


def test_the_table_shows_all_hooks_and_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    ExtensionContract().loop(HookProfiler(), Sleeps()).train()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["hook", "extension", "calls", "µs", "per", "call", "share"]
    assert lines[1].split()[:3] == ["Sleeps.post_train_step_batch", "sleeps", "18"]
    assert lines[-2].startswith("all hooks: ")
    assert lines[-2].endswith(" µs per batch in total")
    names = ["data", "forward", "loss", "backward", "optimizer step", "evaluation", "hooks", "other"]
    shares = dict(part.rsplit(" ", 1) for part in lines[-1].removeprefix("training: ").split(", "))
    assert list(shares) == names
    assert sum(float(share.rstrip("%")) for share in shares.values()) == pytest.approx(100, abs=1)


class SlowData:
    """A dataset whose batches take 20 ms each."""

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(4):
            time.sleep(0.02)
            yield torch.ones(2, 3)


def test_the_time_to_read_data_is_a_part_of_its_own() -> None:
    from trainmaster import TrainManager

    profiler = HookProfiler(output=None)
    model = nn.Linear(3, 1)
    tm = TrainManager(model, lambda batch, out: out.mean(), 2, SlowData(), {"valid": SlowData()}, extensions=[Sleeps(), profiler])
    tm.train()
    parts = profiler.parts()
    assert 8 * 0.02 <= parts["data"] < 8 * 0.05  # without the 60 ms of the hook after each batch
    assert parts["evaluation"] >= 2 * 4 * 0.02
    assert sum(parts.values()) == pytest.approx(profiler._seconds)


def test_an_output_that_is_not_a_function_is_refused() -> None:
    with pytest.raises(SettingError) as caught:
        HookProfiler(output=3)  # type: ignore[arg-type]
    assert (
        str(caught.value) == "`output` must be a function that takes the table, or None, not 3 (int)\n  try     HookProfiler(output=print)"
    )


def test_hooks_are_no_longer_timed_after_training() -> None:
    sleeps = Sleeps()
    manager = ExtensionContract().loop(HookProfiler(output=None), sleeps)
    manager.train()
    assert manager.get_extension_methods("post", "train_step_batch")[-1] == sleeps.post_train_step_batch


def test_an_error_in_a_timed_hook_shows_the_location_of_the_hook() -> None:
    class Breaks(Extension):
        def post_train_step_batch(self) -> None:
            raise RuntimeError("broken")

    times = HookProfiler(output=None)
    with pytest.raises(RuntimeError, match="broken") as found:
        ExtensionContract().loop(times, Breaks()).train()
    assert "test_hook_profiler.py:" in found.value.__notes__[0]
    assert times.times()[0].num_calls >= 1


def test_it_works_in_a_train_test_loop() -> None:
    class Work(LoopComponent):
        def on_forward_pass(self, loop: Any) -> None:
            loop.loss = loop.model(loop.batch).sum()

    times = HookProfiler(output=None)
    TrainTestLoop(nn.Linear(2, 1), [Work(), times, Sleeps()], [torch.ones(1, 2)] * 3, []).train(2)
    assert {each.hook: each.num_calls for each in times.times()}["Sleeps.post_train_step_batch"] == 6
