"""Logs and draws the learning rate."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
import torch

from trainmaster.errors import SettingError
from trainmaster.extensions.curves import Curves
from trainmaster.extensions.epochs import is_epoch_complete
from trainmaster.extensions.figure_writer import FigureObserver
from trainmaster.figures.panels import Lines
from trainmaster.loop.deferred_scalars import Pending
from trainmaster.loop.train_test_loop import TrainTestLoop
from trainmaster.loop.writer import Writer, record
from trainmaster.stages import always

_LABEL = "learning rate"
_LOG_RATIO = 30.0
"""The axis becomes logarithmic if the maximum is at least this many times the lower quartile."""


class LearningRateMonitor(FigureObserver):
    """Logs the learning rate and draws one curve for each parameter group.

    The rate is logged for the first update, for the updates right before and after each change, and for the last update
    of each epoch. The metric is `lr`, or `lr/<group>` if the optimizer has several groups; `<group>` is the group's
    `name` if it has one, otherwise its index. The figure is called `learning_rate`.
    """

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        super().__init__("learning_rate", path)
        self._curves = Curves()
        self._pending = Pending()
        self._writer: Writer | None = None
        self._num_updates = 0
        self._last: dict[str, tuple[int, float]] = {}
        """For each tag, the last update and its learning rate."""
        self._logged: dict[str, int] = {}
        """For each tag, the last update that was logged."""

    # Hooks.

    def pre_train(self, loop: Any, writer: Writer | None = None) -> None:
        self._writer = writer
        self._num_updates = getattr(loop, "step_num", self._num_updates)
        if not isinstance(loop, TrainTestLoop):  # the components of a TrainTestLoop may create the optimizer later
            _param_groups(getattr(loop, "optimizer", None))
        super().pre_train(loop)

    def pre_optimizer_step(self, optimizer: Any) -> None:
        """Read the learning rates before the update, because the schedule steps after it."""
        self._num_updates += 1
        groups, is_full = _param_groups(optimizer), False
        names = [group.get("name") for group in groups]
        for index, group in enumerate(groups):
            name = names[index] if names[index] is not None and names.count(names[index]) == 1 else index
            tag = "lr" if len(groups) == 1 else f"lr/{name}"
            rate = group["lr"]
            # The rate may be a tensor that changes in place. It is copied without waiting for its device.
            is_full |= self._pending.add((tag, self._num_updates), rate.clone() if isinstance(rate, torch.Tensor) else rate)
        if is_full:
            self._log_changes()
            self._figure_writer.draw_if_due()

    def post_train_step_epoch(self, loop: Any) -> None:
        self._log_changes()
        if is_epoch_complete(loop):
            for tag in self._last:
                self._log_last(tag)
        self._figure_writer.draw_if_due()

    @always
    def post_train(self) -> None:
        self._log_changes()
        super().post_train()

    # Values.

    def _log_changes(self) -> None:
        for (tag, number), rate in self._pending.drain():
            before = self._last.get(tag)
            if before is not None and before[1] == rate:
                self._last[tag] = (number, rate)
                continue
            if before is not None:
                self._log_last(tag)
            self._last[tag] = (number, rate)
            self._log_last(tag)

    def _log_last(self, tag: str) -> None:
        number, rate = self._last[tag]
        if self._logged.get(tag) != number:
            self._logged[tag] = number
            self._curves.add(_LABEL if tag == "lr" else tag.removeprefix("lr/"), number, rate)
            record(self._writer, tag, rate, number, "update")

    def panels(self) -> list[Lines]:
        self._log_changes()
        lines = self._curves.lines()
        if not lines:
            return []
        # The axis is logarithmic if the rate is small for a long time, not only in the last updates of a schedule.
        rates = [rate for line in lines for rate in line.ys]
        is_log = 0 < _LOG_RATIO * float(np.quantile(rates, 0.25)) <= max(rates)
        return [Lines("Learning rate", "update", _LABEL, lines, is_log)]

    # State.

    def state_dict(self) -> dict[str, Any]:
        self._log_changes()  # a checkpoint must not contain values that are not in the log
        return {
            "num_updates": self._num_updates,
            "last": {tag: list(last) for tag, last in self._last.items()},
            "logged": dict(self._logged),
            "curves": self._curves.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pending.clear()
        self._num_updates = state["num_updates"]
        self._last = {tag: (number, rate) for tag, (number, rate) in state["last"].items()}
        self._logged = dict(state["logged"])
        self._curves.load_state_dict(state["curves"])


def _param_groups(optimizer: Any) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] | None = getattr(optimizer, "param_groups", None)
    if not groups:
        raise SettingError(
            "LearningRateMonitor found no optimizer"
            if optimizer is None
            else f"LearningRateMonitor found no parameter groups in the optimizer {type(optimizer).__name__}",
            hint="remove the extension, or use an optimizer with `param_groups`, like those in torch.optim",
        )
    return groups
