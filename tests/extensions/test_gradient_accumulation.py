"""GradientAccumulation makes one update for several batches, with the right weight for each batch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Extension, LoopComponent, TrainManager, TrainTestLoop
from trainmaster.errors import FixtureNotFoundError, LossError, SettingError, shown
from trainmaster.extensions.gradient_accumulation import GradientAccumulation
from trainmaster.extensions.loss_plot import LossPlot
from trainmaster.testing import ExtensionContract


class TestAccumulate(ExtensionContract):
    def make(self) -> GradientAccumulation:
        return GradientAccumulation(2)


class Stream:
    """An iterable of batches without a length."""

    def __init__(self, data: list[torch.Tensor]) -> None:
        self.data = data

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.data)


class Updates(Extension):
    """Records the numbers of the batches that made an update, counted over all epochs."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.num_batches = 0

    def post_train_step_batch(self, is_update: bool) -> None:
        if is_update:
            self.seen.append(self.num_batches)
        self.num_batches += 1


def batches(num: int = 7) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 3, generator=generator) for _ in range(num)]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def loss(batch: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
    return prediction.pow(2).mean()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.9)


def manager_of(data: Any, *extensions: Any, epochs: int | None = 2, **more: Any) -> TrainManager:
    return TrainManager(net(), more.pop("loss", loss), epochs, data, optimizer=sgd, extensions=extensions, device="cpu", **more)


def by_hand(data: list[torch.Tensor], groups: list[int]) -> list[torch.Tensor]:
    """Train with a plain loop whose updates use groups of these sizes, and return the weights."""
    model = net()
    optimizer = sgd(model.parameters())
    rest = iter(data)
    for size in groups:
        for _ in range(size):
            batch = next(rest)
            (loss(batch, model(batch)) / size).backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


def is_same(manager: TrainManager, wanted: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, manager.model.parameters(), wanted))


def test_the_last_group_of_an_epoch_is_divided_by_its_own_size() -> None:
    manager = manager_of(batches(), GradientAccumulation(3), updates := Updates())
    manager.train()
    assert updates.seen == [2, 5, 6, 9, 12, 13]
    assert manager.step_num == 6
    assert is_same(manager, by_hand(batches() * 2, [3, 3, 1, 3, 3, 1]))


def test_without_a_known_length_a_group_can_span_two_epochs() -> None:
    manager = manager_of(Stream(batches()), GradientAccumulation(3), updates := Updates())
    manager.train()
    assert updates.seen == [2, 5, 8, 11]
    assert is_same(manager, by_hand(batches() * 2, [3, 3, 3, 3]))


def test_a_group_that_spans_two_epochs_is_part_of_the_state() -> None:
    first = manager_of(Stream(batches()), GradientAccumulation(3), epochs=1)
    first.train()
    resumed = manager_of(Stream(batches()), GradientAccumulation(3))
    resumed.restore(first.capture())
    resumed.train()
    assert is_same(resumed, by_hand(batches() * 2, [3, 3, 3, 3]))


def test_a_group_that_is_larger_than_the_epoch_ends_with_it() -> None:
    manager = manager_of(batches(2), GradientAccumulation(100))
    manager.train()
    assert is_same(manager, by_hand(batches(2) * 2, [2, 2]))


def test_groups_of_one_batch_change_no_bit() -> None:
    plain, manager = manager_of(batches()), manager_of(batches(), GradientAccumulation(1))
    plain.train()
    manager.train()
    assert is_same(manager, list(plain.model.parameters()))


def test_a_group_changes_the_weights_like_one_large_batch() -> None:
    manager, large = manager_of(batches(4), GradientAccumulation(4)), manager_of([torch.cat(batches(4))])
    manager.train()
    large.train()
    assert all(map(torch.allclose, manager.model.parameters(), large.model.parameters()))


def test_max_steps_counts_updates() -> None:
    manager = manager_of(batches(), GradientAccumulation(3), updates := Updates(), epochs=None, max_steps=4)
    manager.train()
    assert updates.seen == [2, 5, 6, 9]
    assert is_same(manager, by_hand(batches() * 2, [3, 3, 1, 3]))


def test_a_failed_batch_is_repeated_at_the_same_position_in_its_group() -> None:
    class Break(Extension):
        is_done = False

        def pre_backward(self, epoch_index: int, batch_num: int) -> None:
            if batch_num == 4 and not self.is_done:
                self.is_done = True
                raise RuntimeError("once")

    manager = manager_of(batches(), GradientAccumulation(3), Break(), updates := Updates(), epochs=1)
    with pytest.raises(RuntimeError, match="once"):
        manager.train()
    manager.train()
    assert updates.seen == [2, 5, 6]


def test_another_extension_can_skip_an_update_in_any_order() -> None:
    class Never(Extension):
        def pre_train_step_batch(self, fixtures: Any) -> None:
            fixtures.modify("is_update", False)

    for extensions in ([Never(), GradientAccumulation(2)], [GradientAccumulation(2), Never()], [Never(), GradientAccumulation(1)]):
        manager = manager_of(batches(), *extensions)
        manager.train()
        assert manager.step_num == 0


def test_loss_plots_show_undivided_losses() -> None:
    def recorded(*extensions: Extension) -> Any:
        manager = TrainManager(
            net(), loss, 2, batches(), optimizer=lambda p: torch.optim.SGD(p, 0.0), extensions=[*extensions, LossPlot()], device="cpu"
        )
        manager.train()
        return manager.history

    plain = recorded()
    assert plain
    assert recorded(GradientAccumulation(3)) == plain


def test_resuming_with_another_group_size_finishes_the_current_group_first() -> None:
    class Stop(Extension):
        def post_train_step_batch(self, train_manager: TrainManager, batch_num: int) -> None:
            if batch_num == 3:
                train_manager.stop()

    first = manager_of(batches(), GradientAccumulation(3), Stop(), epochs=1)
    first.train()
    resumed = manager_of(batches(), GradientAccumulation(1), updates := Updates(), epochs=1)
    resumed.restore(copy.copy(first.capture()))
    resumed.train()
    assert updates.seen == [1, 2]  # the first of the remaining three batches makes no update


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2", None, float("nan")])
def test_bad_arguments_are_refused_at_construction(value: Any) -> None:
    with pytest.raises(SettingError) as caught:
        GradientAccumulation(value)
    assert str(caught.value) == f"`num_batches` must be a whole number of at least 1, not {shown(value)}\n  try     GradientAccumulation(4)"


def test_a_loss_that_is_not_a_tensor_is_an_error() -> None:
    with pytest.raises(LossError, match=r"GradientAccumulation needs a loss that is a tensor, not 1.5 \(float\)"):
        manager_of(batches(), GradientAccumulation(2), loss=lambda batch, prediction: 1.5).train()


def test_attaching_it_to_a_train_test_loop_is_refused() -> None:
    loop = TrainTestLoop(net(), [LoopComponent(), GradientAccumulation(2)], batches(), [])
    with pytest.raises(
        FixtureNotFoundError, match=r"`GradientAccumulation.pre_train_step_batch` asks for `train_manager`, which no open stage provides"
    ):
        loop.train(1)
