"""The mean training loss of an epoch, and the default extension that records it."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from trainmaster.loop.batches import true_batch_size
from trainmaster.loop.deferred_scalars import Pending
from trainmaster.loop.writer import Writer, record
from trainmaster.stages import Fixtures, Observer, always

TRAIN_LOSS = "train_loss"
"""The name of the fixture with the mean loss of an epoch.

The extension that records the loss creates it in `train_step_epoch`.
"""
NON_FINITE = "non_finite"
"""The name of the fixture with the error that an extension such as `NaNGuard` reports for a non-finite batch."""

SKIPPED = "is_skipped"
"""The name of the fixture with which an extension such as `NaNGuard` marks a skipped batch. Other batches do not have it."""


def guarded_fixtures(loop: Any) -> Fixtures | None:
    """Return the fixtures of a loop if one of its extensions may skip batches, otherwise None.

    The caller checks whether these fixtures contain `SKIPPED`.
    """
    can_skip = any(SKIPPED in (getattr(each, "creates", None) or ()) for each in loop.extensions.values())
    return loop.fixtures if can_skip else None


class LossMean:
    """The mean loss over the samples of an epoch, added up in batch order. Skipped batches are counted, but do not affect the mean."""

    def __init__(self) -> None:
        self._pending = Pending()
        self.reset()

    def reset(self) -> None:
        self._pending.clear()
        self._sum, self._num, self._num_batches = 0.0, 0, 0
        self._num_skipped = 0
        """The number of samples in skipped batches."""
        self.first_bad: tuple[int, float] | None = None
        """The first batch whose loss is nan or inf, and that loss; set when the loss is added to the sum."""

    def add(self, loss: Any, size: int) -> bool:
        """Add the loss of a batch.

        Return whether the sum is now up to date. Losses on a GPU are not added at once, but wait until many can be read together.
        """
        if isinstance(loss, torch.Tensor):
            if not loss.is_cpu:
                if self._pending.add(size, loss):
                    self.add_up()
                    return True
                return False
            loss = loss.item()
        self._add(loss, size)
        return True

    def skip(self, size: int) -> None:
        """Count a batch whose loss is not part of the mean."""
        self.add_up()
        self._num_batches += 1
        self._num_skipped += size

    @property
    def num_batches(self) -> int:
        """The number of batches, including skipped ones. Call `add_up` first to include batches whose losses are still waiting."""
        return self._num_batches

    @property
    def num_samples(self) -> int:
        """The number of samples, including skipped ones. Call `add_up` first to include those whose losses are still waiting."""
        return self._num + self._num_skipped

    @property
    def is_all_skipped(self) -> bool:
        """Whether there are batches, but all of them were skipped, so that there is no mean."""
        self.add_up()
        return self._num == 0 < self._num_skipped

    @property
    def mean(self) -> float:
        self.add_up()
        return self._sum / max(1, self._num)

    def add_up(self) -> None:
        """Add the waiting losses to the sum one by one, so that the sum does not depend on how many were waiting."""
        for size, loss in self._pending.drain():
            self._add(loss, size)

    def _add(self, loss: float, size: int) -> None:
        self._sum += loss * size
        self._num += size
        self._num_batches += 1
        if loss - loss != 0 and self.first_bad is None:  # nan or inf
            self.first_bad = (self._num_batches - 1, loss)

    def state_dict(self) -> dict[str, Any]:
        self.add_up()
        return {"sum": self._sum, "num": self._num, "num_batches": self._num_batches, "num_skipped": self._num_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reset()
        self._sum, self._num, self._num_batches = state["sum"], state["num"], state.get("num_batches", 0)
        self._num_skipped = state.get("num_skipped", 0)


class TrainLoss(Observer):
    """Records the mean training loss of each epoch as `train/loss`, and warns when a loss is nan or inf for the first time.

    Losses on a GPU are read many at a time, so that no step waits for its loss. The warning may therefore appear up to 256
    batches late, but it names the batch. If a loss is not a single number, which is possible if `backward` is overridden,
    nothing is recorded. Batches that `NaNGuard` skips are not part of the mean.
    """

    is_guarded = False
    creates = {TRAIN_LOSS: "train_step_epoch"}

    def __init__(self) -> None:
        self._mean = LossMean()
        self._size_of = true_batch_size
        self._guarded: Fixtures | None = None
        self._epoch_index = 0
        self._is_number = True
        self._has_warned = False

    def pre_train(self, loop: Any) -> None:
        has_own_size = loop.is_overridden("get_true_batch_size") or loop.ranks.num > 1
        self._size_of = loop.whole_batch_size if has_own_size else true_batch_size  # saves one call per batch
        self._guarded = guarded_fixtures(loop)
        # If another extension handles non-finite losses, that extension warns.
        self._has_warned = any(NON_FINITE in getattr(each, "creates", ()) for each in loop.extensions.values())

    @always
    def post_train(self) -> None:
        self._guarded = None  # so that the extension can be pickled

    def pre_train_step_epoch(self, loop: Any, epoch_index: int) -> None:
        if loop.moment.batch and epoch_index == self._epoch_index:  # an error ended the last call of `train()` in this epoch
            return
        self._mean.reset()
        self._epoch_index, self._is_number = epoch_index, True

    def post_train_step_batch(self, loss: Any, batch: Any) -> None:
        if self._guarded is not None and SKIPPED in self._guarded:
            self._mean.skip(self._size_of(batch))
        elif not (loss.numel() == 1 if isinstance(loss, torch.Tensor) else isinstance(loss, (int, float))):
            self._is_number = False
        elif self._mean.add(loss, self._size_of(batch)) and self._mean.first_bad is not None:
            self._warn()

    def post_train_step_epoch(self, loop: Any, fixtures: Fixtures, writer: Writer, epoch_num: int) -> None:
        mean = self._mean.mean
        self._warn()
        is_complete = not loop.moment.batch  # even if a stop has been requested since
        if is_complete and self._is_number and not self._mean.is_all_skipped:
            record_train_loss(fixtures, writer, mean, epoch_num)

    def size_of_epoch(self) -> tuple[int, int] | None:
        """Return the number of batches and samples of the current epoch so far.

        Return None if a batch was not counted because its loss was not a single number.
        """
        self._mean.add_up()
        return (self._mean.num_batches, self._mean.num_samples) if self._is_number else None

    def _warn(self) -> None:
        if self._mean.first_bad is not None and not self._has_warned:
            self._has_warned = True
            number, loss = self._mean.first_bad
            warnings.warn(
                f"the training loss is {loss} in epoch {self._epoch_index}, batch {number}; "
                "the extension NaNGuard() stops there and finds where it comes from",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        return {**self._mean.state_dict(), "is_number": self._is_number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mean.load_state_dict(state)
        self._is_number = state["is_number"]


def record_train_loss(fixtures: Fixtures, writer: Writer | None, mean: float, epoch_num: int) -> None:
    """Record the mean training loss of an epoch as `train/loss`, unless another extension has already recorded it.

    Call it in `post_train_step_epoch`.
    """
    if TRAIN_LOSS not in fixtures:
        fixtures[TRAIN_LOSS] = mean
        record(writer, "train/loss", mean, epoch_num, "epoch")
