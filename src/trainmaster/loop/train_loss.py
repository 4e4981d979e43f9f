"""The default extension that records the mean training loss of each epoch."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from trainmaster.loop.batches import true_batch_size
from trainmaster.loop.deferred_scalars import MAX_WAITING, Pending
from trainmaster.loop.writer import Writer, record
from trainmaster.stages import Fixtures, Observer, always

TRAIN_LOSS = "train_loss"
"""The name of the fixture that contains the mean loss of an epoch.

The extension that records the loss creates this fixture in `train_step_epoch`.
"""
NON_FINITE = "non_finite"
"""The name of the fixture that contains the error that an extension such as `NaNGuard` reports for a non-finite batch."""

SKIPPED = "is_skipped"
"""The name of the fixture that an extension such as `NaNGuard` creates only for batches that it skips."""


def is_created(fixture: str, loop: Any) -> bool:
    """Return whether an extension of a loop declares that it creates `fixture`."""
    return any(fixture in (getattr(each, "creates", None) or ()) for each in loop.extensions.values())


def guarded_fixtures(loop: Any) -> Fixtures | None:
    """Return the fixtures of a loop if one of its extensions may skip batches, otherwise None.

    The caller checks whether these fixtures contain `SKIPPED`.
    """
    return loop.fixtures if is_created(SKIPPED, loop) else None


class TrainLoss(Observer):
    """Records the mean training loss of each epoch as `train/loss`, and warns when a loss is nan or inf for the first time.

    Losses on a GPU are read many at a time, so that no step waits for its loss. The warning may therefore appear up to 256
    batches late, but it names the batch. If a loss is not a single number, which is possible if `backward` is overridden,
    nothing is recorded. Batches that `NaNGuard` skips are counted, but are not part of the mean.
    """

    is_guarded = False
    creates = {TRAIN_LOSS: "train_step_epoch"}

    def __init__(self) -> None:
        self._pending = Pending()
        self._size_of = true_batch_size
        self._guarded: Fixtures | None = None
        self._epoch_index = 0
        self._has_warned = False
        self._reset()

    def _reset(self) -> None:
        self._pending.clear()
        self._sum, self._num, self._num_batches = 0.0, 0, 0
        self._num_skipped = 0
        """The number of samples in skipped batches. These batches are included in `_num_batches`."""
        self._is_number = True

    def pre_train(self, loop: Any) -> None:
        has_own_size = loop.is_overridden("get_true_batch_size") or loop.ranks.num > 1
        self._size_of = loop.whole_batch_size if has_own_size else true_batch_size  # saves one call per batch
        self._guarded = guarded_fixtures(loop)
        self._has_warned = is_created(NON_FINITE, loop)  # the extension that creates this fixture also warns

    @always
    def post_train(self) -> None:
        self._guarded = None  # so that the extension can be pickled

    def pre_train_step_epoch(self, loop: Any, epoch_index: int) -> None:
        if loop.moment.batch and epoch_index == self._epoch_index:  # an error ended the last call of `train()` in this epoch
            return
        self._reset()
        self._epoch_index = epoch_index

    def post_train_step_batch(self, loss: Any, batch: Any) -> None:
        # This runs in every step, so it calls as few functions as possible.
        if self._guarded is not None and SKIPPED in self._guarded:
            self._add_up()
            self._num_batches += 1
            self._num_skipped += self._size_of(batch)
        elif not (loss.numel() == 1 if isinstance(loss, torch.Tensor) else isinstance(loss, (int, float))):
            self._is_number = False
        else:
            if isinstance(loss, torch.Tensor):
                loss = loss.item() if loss.is_cpu else loss.detach()
            pending = self._pending
            pending.append((self._size_of(batch), loss))
            if len(pending) >= MAX_WAITING or (type(loss) is float and loss - loss != 0):  # nan or inf
                self._add_up()

    def post_train_step_epoch(self, loop: Any, fixtures: Fixtures, writer: Writer, epoch_num: int) -> None:
        self._add_up()
        is_all_skipped = self._num == 0 < self._num_skipped
        is_complete = not loop.moment.batch  # even if a stop has been requested since
        if is_complete and self._is_number and not is_all_skipped and TRAIN_LOSS not in fixtures:  # else another extension recorded it
            fixtures[TRAIN_LOSS] = self._sum / max(1, self._num)
            record(writer, "train/loss", fixtures[TRAIN_LOSS], epoch_num, "epoch")

    def size_of_epoch(self) -> tuple[int, int] | None:
        """Return the number of batches and samples of the current epoch so far.

        Return None if a batch was not counted because its loss was not a single number.
        """
        self._add_up()
        return (self._num_batches, self._num + self._num_skipped) if self._is_number else None

    def _add_up(self) -> None:
        """Add the waiting losses to the sum one by one, so that the sum does not depend on how many were waiting."""
        bad = []
        for size, loss in self._pending.drain():
            self._sum += loss * size
            self._num += size
            if loss - loss != 0:
                bad.append((loss, self._num_batches))
            self._num_batches += 1
        if bad and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the training loss is {bad[0][0]} in epoch {self._epoch_index}, batch {bad[0][1]}; "
                "the extension NaNGuard() stops there and finds where it comes from",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        self._add_up()
        counts = {"num_batches": self._num_batches, "num_skipped": self._num_skipped}
        return {"sum": self._sum, "num": self._num, **counts, "is_number": self._is_number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._reset()
        self._sum, self._num, self._num_batches = state["sum"], state["num"], state.get("num_batches", 0)
        self._num_skipped, self._is_number = state.get("num_skipped", 0), state["is_number"]
