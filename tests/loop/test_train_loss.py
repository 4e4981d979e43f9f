"""The mean training loss counts every sample once, also across a resume."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Extension, NaNGuard, TrainManager
from trainmaster.loop.train_loss import TrainLoss


@pytest.mark.filterwarnings("ignore:the loss is nan in stage")
def test_a_restored_epoch_counts_skipped_samples_too() -> None:
    class StopAfterTheSkip(Extension):
        def post_train_step_batch(self, loop: TrainManager, batch_num: int) -> None:
            if batch_num == 1:
                loop.stop()

    def loop() -> TrainManager:
        def loss(batch: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
            return batch.mean() + 0 * prediction.sum()

        data = [torch.full((4, 1), value) for value in (2.0, float("nan"), 4.0)]
        return TrainManager(nn.Linear(1, 1), loss, 1, data, extensions=[NaNGuard("skip"), StopAfterTheSkip()], device="cpu")

    stopped, resumed = loop(), loop()
    stopped.train()
    resumed.restore(stopped.capture())
    resumed.train()
    counter: Any = resumed.extensions["train_loss"]
    assert isinstance(counter, TrainLoss)
    assert resumed.history["train/loss"] == [(1, 3.0)]
    assert counter.size_of_epoch() == (3, 12)


def test_an_extension_may_leave_open_which_fixtures_it_creates() -> None:
    class Open(Extension):
        creates = None  # type: ignore[assignment]  # as if it were not set

    TrainManager(nn.Linear(1, 1), lambda _, out: out.mean(), 1, [torch.ones(2, 1)], extensions=[Open()], device="cpu").train()
