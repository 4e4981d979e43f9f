"""Deferred scalars are read from their device later."""

from __future__ import annotations

import torch

from trainmaster.loop.deferred_scalars import MAX_WAITING, Pending
from trainmaster.loop.train_loss import TrainLoss


def test_scalars_are_drained_in_order_as_plain_numbers() -> None:
    pending = Pending()
    for number in range(5):
        pending.add(number, torch.tensor(number / 4, requires_grad=True))
    assert pending.drain() == [(number, number / 4) for number in range(5)]
    assert pending.drain() == []


def test_numbers_and_tensors_of_several_types_can_be_mixed() -> None:
    pending = Pending()
    for value in (1, 2.5, torch.tensor([3.0]), torch.tensor(4), torch.tensor(True)):
        pending.add(None, value)
    assert [value for _, value in pending.drain()] == [1.0, 2.5, 3.0, 4.0, 1.0]


def test_add_returns_true_when_it_is_time_to_drain() -> None:
    pending = Pending()
    assert [pending.add(number, 0.0) for number in range(MAX_WAITING)].index(True) == MAX_WAITING - 1


def test_a_mean_weights_batches_by_their_sizes_and_does_not_depend_on_when_it_was_saved() -> None:
    losses = [torch.rand(()) for _ in range(600)]
    whole, saved = TrainLoss(), TrainLoss()
    for number, loss in enumerate(losses):
        whole.post_train_step_batch(loss, torch.zeros(1 + number % 3))
        saved.post_train_step_batch(loss, torch.zeros(1 + number % 3))
        if number % 7 == 0:
            again = TrainLoss()
            again.load_state_dict(saved.state_dict())
            saved = again
    assert whole.state_dict() == saved.state_dict()
    sizes = [1 + number % 3 for number in range(600)]
    expected = sum(float(loss) * size for loss, size in zip(losses, sizes, strict=True))
    assert abs(whole.state_dict()["sum"] - expected) < 1e-9
    assert whole.size_of_epoch() == (600, sum(sizes))
