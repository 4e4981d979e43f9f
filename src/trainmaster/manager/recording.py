"""What a manager wants to know of a loop: its mean losses, how long its epochs take, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainmaster.loop.train_loss import TRAIN_LOSS, LossMean, record_train_loss
from trainmaster.manager.run_writer import RunWriter
from trainmaster.stages import Extension, Fixtures, always

_OLD_WEIGHT = 0.8
"""How much of a running mean of times is what it was."""


class MeanTimes:
    """Running means of how long things take (J11); None for what never happened."""

    def __init__(self, **means: float | None) -> None:
        self.means: dict[str, float | None] = {"t_train": None, "t_eval": None, **means}

    def took(self, name: str, started: float) -> float:
        seconds = time.monotonic() - started
        before = self.means[name]
        self.means[name] = seconds if before is None else _OLD_WEIGHT * before + (1 - _OLD_WEIGHT) * seconds
        return seconds


class Recording(Extension):
    """Writes the mean training loss of each epoch, holds the rows of an evaluation together, and takes times."""

    creates = {TRAIN_LOSS: "train_step_epoch"}
    is_optional = True

    def __init__(self, writer: RunWriter, times: MeanTimes, told: Callable[[float], None], asked: Callable[[], str | None]) -> None:
        self._writer, self._times, self._told, self._asked = writer, times, told, asked
        self._loss = LossMean()
        self._seconds = 0.0
        self._started = {"t_train": 0.0, "t_eval": 0.0}

    def pre_train(self, train_manager: Any) -> None:
        if (reason := self._asked()) is not None:  # it came before there was anything to stop
            train_manager.stop(reason)
        self._writer.mute(train_manager.moment.batch > 0)  # in the middle of an epoch, its beginning is told already

    def pre_train_step_epoch(self) -> None:
        self._writer.mute(False)
        self._started["t_train"] = time.monotonic()
        self._loss.reset()

    def post_train_step_batch(self, train_manager: Any, loss: Any, batch: Any) -> None:
        # Not the lazy fixture `true_batch_size`, which costs more in every step.
        self._loss.add(loss, train_manager.get_true_batch_size(batch))

    def post_train_step_epoch(self, train_manager: Any, fixtures: Fixtures, epoch_num: int) -> None:
        if not train_manager.moment.batch:  # it is complete, also where somebody has asked for a stop since
            record_train_loss(fixtures, self._writer, self._loss.mean, epoch_num)
            self._seconds = self._times.took("t_train", self._started["t_train"])

    def pre_eval(self) -> None:
        self._started["t_eval"] = time.monotonic()
        self._writer.hold()

    @always
    def post_eval(
        self, train_manager: Any, stopped: str | None, standalone_eval: bool, exc_type: type[BaseException] | None = None
    ) -> None:
        is_complete = (stopped is None or train_manager.moment.is_evaluated) and exc_type is None
        self._writer.let_go(is_complete)
        if is_complete:
            self._times.took("t_eval", self._started["t_eval"])
            if not standalone_eval:
                self._told(self._seconds)

    def state_dict(self) -> dict[str, Any]:
        return self._loss.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loss.load_state_dict(state)
