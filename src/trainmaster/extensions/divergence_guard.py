"""Raises an error if a loss diverges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from trainmaster.arguments import check_number
from trainmaster.errors import LossDivergedError, SettingError
from trainmaster.extensions.monitored_metric import check_is_known, is_from_other_training, next_value
from trainmaster.loop.metric import check_monitor
from trainmaster.loop.train_manager import TrainManager
from trainmaster.stages import Extension
from trainmaster.store.metric_names import is_greater_better

MIN_SCALE: Final = 0.01
"""A change is divided by the earlier loss or by this share of the largest loss since the warm-up, whichever is greater.
Without this minimum, noise near 0 would look like a large change."""


class Value(NamedTuple):
    """A loss, and the number of epochs that were finished when it was evaluated."""

    value: float
    epoch: float

    def __str__(self) -> str:
        return f"{self.value:.6g} after epoch {self.epoch:g}"


class DivergenceGuard(Extension):
    """Raises a `LossDivergedError` if a loss becomes much greater than it was at earlier evaluations.

    The loss has diverged if the mean of two relative changes is above `factor`: the change since the evaluation with
    the lowest loss, and the change since the previous evaluation. A loss of NaN or inf is always an error, even during
    the warm-up.

    Args:
        factor: the maximum allowed value of this mean. With None, only NaN and inf are errors.
        monitor: the name of a loss, or the last part of the name; by default the loss of the first evaluation set.
        warm_up_epochs: the number of epochs after which changes are checked.
    """

    is_optional = True

    def __init__(self, factor: float | None = 10.0, monitor: str | None = None, warm_up_epochs: float = 1) -> None:
        if factor is not None:
            check_number("factor", factor, above=0, hint="DivergenceGuard(factor=10.0), or factor=None to check for NaN and inf only")
        check_monitor(monitor, 'DivergenceGuard(monitor="valid/loss")')
        if monitor is not None and is_greater_better(monitor):
            raise SettingError(
                f"DivergenceGuard monitors losses, not {monitor!r}",
                why="higher is better for this metric, so it cannot diverge upwards",
                hint='monitor a loss: monitor="valid/loss"; EarlyStopping monitors any metric',
            )
        check_number("warm_up_epochs", warm_up_epochs, min=0, hint="DivergenceGuard(warm_up_epochs=1)")
        self.factor = None if factor is None else float(factor)
        self.monitor, self.warm_up_epochs = monitor, warm_up_epochs
        self._reset(None)

    def _reset(self, name: str | None) -> None:
        self.best: Value | None = None
        self.last: Value | None = None
        self._name = name
        """The full name of the monitored loss, once it is known."""
        self._scale = 0.0
        """The greatest absolute loss since the end of the warm-up."""

    def pre_train(self, train_manager: TrainManager) -> None:
        check_is_known(self.monitor, train_manager, "DivergenceGuard")
        if is_from_other_training(None if self.last is None else self.last.epoch, train_manager):
            self._reset(None)

    def post_eval(self, train_manager: TrainManager, eval_losses: dict[str, float]) -> None:
        epoch_num = train_manager.epochs_done
        last_epoch = None if self.last is None else self.last.epoch
        metric = next_value(self.monitor, train_manager, eval_losses, last_epoch, "DivergenceGuard")
        if metric is None:
            return
        if self._name != metric.name:
            self._reset(metric.name)
        now = Value(metric.value, epoch_num)
        if not math.isfinite(now.value):
            raise self._error(f"{metric.name} is {now.value}", epoch_num, None)
        if self.factor is not None and epoch_num > self.warm_up_epochs:
            change = self._change(now.value)
            if change > self.factor:
                raise self._error(f"{metric.name} has diverged: it is {now.value:.6g}", epoch_num, change)
        if self.best is None or self._scale == 0 or now.value < self.best.value:
            self.best = now
        self._scale = abs(now.value) if epoch_num <= self.warm_up_epochs else max(self._scale, abs(now.value))
        self.last = now

    def _change(self, value: float) -> float:
        """Return the mean of the relative changes since the best and since the previous loss, or 0 if there is no earlier loss."""
        if self.best is None or self.last is None or self._scale == 0:  # if all losses were exactly 0, their scale is unknown
            return 0.0
        # For a loss that can be negative, 0 is an ordinary value, so a loss near 0 says nothing about the scale.
        min_scale = self._scale if self.best.value < 0 else MIN_SCALE * self._scale
        return sum((value - each) / max(abs(each), min_scale) for each in (self.best.value, self.last.value)) / 2

    def _error(self, fact: str, epoch_num: float, change: float | None) -> LossDivergedError:
        is_nan = change is None
        return LossDivergedError(
            fact,
            where=f"stage eval, after epoch {epoch_num:g}",
            values="this is the first value" if self.best is None else f"the best was {self.best}, the last {self.last}",
            why=None if is_nan else f"the mean of the relative changes since these two is {change:.4g}, above factor={self.factor:g}",
            hint="lower the learning rate, add a warm-up, or clip the gradients; "
            + ("NaNGuard() names the batch and the module it comes from" if is_nan else "a greater `factor` allows it"),
        )

    def state_dict(self) -> dict[str, Any]:
        values = {name: None if each is None else tuple(each) for name, each in (("best", self.best), ("last", self.last))}
        return {**values, "name": self._name, "scale": self._scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.last = (None if state[name] is None else Value(*state[name]) for name in ("best", "last"))
        self._name, self._scale = state["name"], state["scale"]
