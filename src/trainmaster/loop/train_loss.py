"""The mean training loss of an epoch."""

from __future__ import annotations

from typing import Any

from trainmaster.loop.pending import Pending
from trainmaster.loop.writer import Writer
from trainmaster.stages import Fixtures

TRAIN_LOSS = "train_loss"
"""The fixture that whoever records it first creates, in `train_step_epoch`."""


class LossMean:
    """The mean loss over the samples of an epoch, added up in the order of the batches."""

    def __init__(self) -> None:
        self._pending = Pending()
        self._sum, self._num = 0.0, 0

    def reset(self) -> None:
        self._pending.clear()
        self._sum, self._num = 0.0, 0

    def add(self, loss: Any, size: int) -> None:
        if self._pending.add(size, loss):
            self._add_up()

    @property
    def mean(self) -> float:
        self._add_up()
        return self._sum / max(1, self._num)

    def _add_up(self) -> None:
        """One after the other, so that it makes no difference how many waited."""
        for size, loss in self._pending.drain():
            self._sum += loss * size
            self._num += size

    def state_dict(self) -> dict[str, Any]:
        self._add_up()
        return {"sum": self._sum, "num": self._num}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pending.clear()
        self._sum, self._num = state["sum"], state["num"]


def record_train_loss(fixtures: Fixtures, writer: Writer | None, mean: float, epoch_num: int) -> None:
    """Record the mean training loss of an epoch as `losses/train/loss`, unless somebody else has: called in `post_train_step_epoch`."""
    if TRAIN_LOSS not in fixtures:
        fixtures[TRAIN_LOSS] = mean
        if writer is not None:
            writer.add_scalar("losses/train/loss", mean, epoch_num)
