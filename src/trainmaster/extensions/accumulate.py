"""One update for several batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from trainmaster.errors import LossError, SettingError
from trainmaster.loop.position import length_of
from trainmaster.loop.settings import shown
from trainmaster.stages import Extension, Fixtures

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager


class Accumulate(Extension):
    """Makes one update for each group of `num_batches` batches, of the mean of their losses.

    Where the length of the training data is known, an epoch ends with an update: its last group may be smaller, and is divided by its own
    size. Where it is not, groups run on over the end of the epoch. `loss` stays the loss of the batch; what is divided is `objective`.
    """

    def __init__(self, num_batches: int) -> None:
        if isinstance(num_batches, bool) or not isinstance(num_batches, int) or num_batches < 1:
            raise SettingError(f"`num_batches` is a whole number of at least 1, not {num_batches!r}", hint="Accumulate(4)")
        self.num_batches = num_batches
        self._place = self._size = 0
        """Batches of the group so far, the one that runs included; and how many it will have."""
        self._at: tuple[int, int] | None = None

    def pre_train_step_batch(self, fixtures: Fixtures, train_manager: TrainManager, epoch_num: int, batch_num: int) -> None:
        # Counted at the start of a batch, so that whoever captures a state after it, in any order of the list, finds the same.
        if self._at != (epoch_num, batch_num):  # a batch that broke off comes again, and is no further one
            self._at = (epoch_num, batch_num)
            if self._place >= self._size:
                self._place, self._size = 0, self._next_size(train_manager, batch_num)
            self._place += 1
        if self._place < self._size:  # only ever to False: others, too, may have a reason to leave an update out
            fixtures.modify("is_update", False)

    def pre_backward(self, fixtures: Fixtures, objective: Any) -> None:
        if not isinstance(objective, torch.Tensor):
            raise LossError(
                f"Accumulate divides a loss that is a tensor, not {shown(objective)}", hint="return the tensor, without .item()"
            )
        if self._size > 1:
            fixtures.modify("objective", objective / self._size)

    def _next_size(self, train_manager: TrainManager, batch_num: int) -> int:
        left = (length_of(train_manager.train_data) or 0) - batch_num
        return min(self.num_batches, left) if left > 0 else self.num_batches

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place, "size": self._size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._place, self._size = state["place"], state["size"]
        self._at = None
