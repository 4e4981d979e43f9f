"""The limits of a `TrainManager`: `epochs`, `max_steps` and `max_time`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.loop.training import Training


class Limits:
    """The limits of one loop, read from its attributes, and the deadline of its current call to `train()`."""

    def __init__(self, loop: Training) -> None:
        self._loop = loop
        self._deadline: float | None = None

    def start(self) -> None:
        """Start the clock for `max_time`."""
        self._deadline = None if self._loop.max_time is None else time.monotonic() + self._loop.max_time

    @property
    def can_end_an_epoch(self) -> bool:
        """Whether training may reach a limit in the middle of an epoch."""
        return self._loop.max_steps is not None or self._deadline is not None

    def is_over(self) -> bool:
        """Return whether `epochs` or `max_steps` has been reached."""
        loop = self._loop
        has_epochs = loop.epochs is not None and loop.epoch_num >= loop.epochs
        return has_epochs or (loop.max_steps is not None and loop.step_num >= loop.max_steps)

    def is_out_of_time(self) -> bool:
        """Return whether `max_time` has passed and training is not complete."""
        return self._deadline is not None and time.monotonic() >= self._deadline and not self.is_over()

    def reached(self) -> str | None:
        """Return the reason for a stop if `max_steps` or `max_time` has been reached, otherwise None."""
        loop = self._loop
        if loop.max_steps is not None and loop.fixtures["step_num"] >= loop.max_steps:
            return f"max_steps={loop.max_steps} is reached"
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return f"max_time={loop.max_time} s has passed"
        return None

    def nothing_left(self) -> str:
        """Return the message that `train()` prints if it has nothing to do."""
        loop = self._loop
        if loop.epochs is not None and loop.epoch_num >= loop.epochs:
            return f"nothing left to train: {loop.epoch_num} of {loop.epochs} epochs are done; increase `epochs` to continue"
        return f"nothing left to train: {loop.step_num} of {loop.max_steps} updates are done; increase `max_steps` to continue"
