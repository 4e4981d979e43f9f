"""Accumulates gradients over several batches before each update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trainmaster.arguments import check_int
from trainmaster.errors import LossError, shown
from trainmaster.loop.data_position import length_of
from trainmaster.loop.train_manager import TrainManager
from trainmaster.stages import Extension, Fixtures


class GradientAccumulation(Extension):
    """Makes one update for each group of `num_batches` batches, with the mean of their losses.

    If the length of the training data is known, each epoch ends with an update. The last group of an epoch may then be
    smaller, and its losses are divided by its actual size. If the length is unknown, a group may span two epochs. The
    fixture `loss` stays the loss of the batch; only `objective`, on which `backward()` is called, is divided by the size
    of the group.
    """

    on_every_rank = True
    creates = {}

    def __init__(self, num_batches: int) -> None:
        check_int("num_batches", num_batches, min=1, hint="GradientAccumulation(4)")
        self.num_batches = num_batches
        self._num_done = self._group_size = 0
        """The number of batches in the current group so far (including the current batch), and the size of the group."""
        self._counted: tuple[int, int] | None = None
        """The epoch and batch that were counted last."""

    def pre_train_step_batch(self, fixtures: Fixtures, train_manager: TrainManager, epoch_num: int, batch_num: int) -> None:
        # A batch is counted at its start, so that a state captured at its end does not depend on the order of
        # extensions.
        if self._counted != (epoch_num, batch_num):  # after an error, the same batch may start again
            self._counted = (epoch_num, batch_num)
            if self._num_done >= self._group_size:
                self._num_done, self._group_size = 0, self._next_size(train_manager, batch_num)
            self._num_done += 1
        if self._num_done < self._group_size:  # never set to True, because another extension may skip the update
            fixtures.modify("is_update", False)

    def pre_backward(self, fixtures: Fixtures, objective: Any) -> None:
        if not isinstance(objective, torch.Tensor):
            raise LossError(
                f"GradientAccumulation needs a loss that is a tensor, not {shown(objective)}", hint="return the tensor, without .item()"
            )
        if self._group_size > 1:
            fixtures.modify("objective", objective / self._group_size)

    def _next_size(self, loop: TrainManager, batch_num: int) -> int:
        num_left = (length_of(loop.train_data) or 0) - batch_num
        return min(self.num_batches, num_left) if num_left > 0 else self.num_batches

    def state_dict(self) -> dict[str, Any]:
        return {"num_done": self._num_done, "group_size": self._group_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_done, self._group_size = state["num_done"], state["group_size"]
        self._counted = None
