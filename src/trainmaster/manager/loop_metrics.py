"""Measures how long epochs take, and writes the metrics of an evaluation when the evaluation is complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.loop.train_loss import TrainLoss
from trainmaster.manager.run_writer import RunWriter
from trainmaster.stages import Extension, always

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager

_OLD_WEIGHT = 0.8


class MeanTimes:
    """Moving averages of the seconds per training epoch and per evaluation, or None before the first measurement."""

    def __init__(self) -> None:
        self.means: dict[str, float | None] = {"t_train": None, "t_eval": None}

    def restore(self, status: Mapping[str, Any]) -> None:
        self.means = {name: status.get(name) for name in self.means}

    def add(self, name: str, started: float) -> float:
        """Add the time since `started` to a moving average, and return this time in seconds."""
        seconds = time.monotonic() - started
        before = self.means[name]
        self.means[name] = seconds if before is None else _OLD_WEIGHT * before + (1 - _OLD_WEIGHT) * seconds
        return seconds


def position_of(loop: TrainManager) -> dict[str, int] | None:
    """Return the numbers of finished epochs and updates, or None in the middle of an epoch.

    If the batches and samples of the last epoch were counted, the result also contains these counts.
    """
    if loop.moment.batch or not loop.epoch_num:
        return None
    position = {"epoch": loop.epoch_num, "update": loop.step_num}
    counter = loop.extensions.get("train_loss")
    size = counter.size_of_epoch() if isinstance(counter, TrainLoss) else None
    return position if size is None else {**position, "num_batches": size[0], "num_samples": size[1]}


class LoopMetrics(Extension):
    """Writes all rows of an evaluation at once, and measures how long training and evaluation take."""

    def __init__(
        self, writer: RunWriter, times: MeanTimes, on_evaluated: Callable[[float], None], stop_reason: Callable[[], str | None]
    ) -> None:
        self._writer, self._times, self._on_evaluated, self._stop_reason = writer, times, on_evaluated, stop_reason
        self._seconds = 0.0
        self._started = 0.0
        self._evaluations: list[tuple[object, float]] = []
        """The `eval_losses` object (which identifies the evaluation) and the start time of each running evaluation, innermost last."""

    def pre_run(self) -> None:
        while self._evaluations:  # an interrupt ended these evaluations
            self._evaluations.pop()
            self._writer.let_go(is_complete=False)

    def pre_train(self, train_manager: Any) -> None:
        if (reason := self._stop_reason()) is not None:  # the request came before the loop started
            train_manager.stop(reason)
        self._writer.mute(train_manager.moment.batch > 0)  # in the middle of an epoch, the epoch's first rows are already in the log

    def pre_train_step_epoch(self) -> None:
        self._started = time.monotonic()

    def post_train_step_epoch(self, train_manager: Any) -> None:
        if not train_manager.moment.batch:  # the epoch is complete, even if a stop was requested in the meantime
            self._seconds = self._times.add("t_train", self._started)

    def pre_eval(self, eval_losses: object) -> None:
        self._evaluations.append((eval_losses, time.monotonic()))
        self._writer.hold()

    @always
    def post_eval(
        self,
        train_manager: Any,
        eval_losses: object,
        stopped: str | None,
        exc_type: type[BaseException] | None = None,
    ) -> None:
        if exc_type is not None and not (self._evaluations and self._evaluations[-1][0] is eval_losses):
            return  # a hook failed before `pre_eval` was called
        _, started = self._evaluations.pop()
        is_complete = (stopped is None or train_manager.moment.is_evaluated) and exc_type is None
        self._writer.let_go(is_complete)
        if is_complete:
            self._times.add("t_eval", started)
            if train_manager.is_own_evaluation:
                self._on_evaluated(self._seconds)
