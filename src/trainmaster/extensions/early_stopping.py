"""Stops training when a metric no longer improves."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from trainmaster.arguments import check_choice, check_int, check_number
from trainmaster.errors import LoopError
from trainmaster.extensions.monitored_metric import check_is_known, is_from_other_training, next_value
from trainmaster.loop.metric import check_direction, check_monitor, expected_name, is_called, recorded_names
from trainmaster.loop.train_manager import TrainManager
from trainmaster.stages import Extension
from trainmaster.store.metric_names import better_of, listed

_SAVED: Final = ("best", "best_epoch", "_metric", "_last_epoch", "_num_bad")
"""The attributes that are part of the training state."""


class EarlyStopping(Extension):
    """Stops training after `patience` consecutive evaluations without an improvement in the monitored metric.

    It counts the evaluations that `train()` starts, including the one before the first epoch. NaN and inf never count
    as an improvement. A training run that was stopped early stops immediately if you start it again, unless you
    increase `patience`.

    Args:
        monitor: the name of a metric ("valid/accuracy"), or the last part of the name ("accuracy"); by default the loss
            of the first evaluation set.
        min_delta: the minimum change that counts as an improvement.
        mode: "min" if lower is better, or "max" if higher is better. It can be omitted for losses, errors,
            accuracies, returns and other well-known metrics.
    """

    is_optional = True

    def __init__(self, monitor: str | None = None, patience: int = 5, min_delta: float = 0.0, mode: str | None = None) -> None:
        check_monitor(monitor, 'EarlyStopping(monitor="valid/loss")')
        check_int("patience", patience, min=1, hint="EarlyStopping(patience=5)")
        check_number("min_delta", min_delta, min=0, hint="EarlyStopping(min_delta=0.001)")
        if mode is not None:
            check_choice("mode", mode, ("min", "max"), hint='EarlyStopping(monitor="valid/f1", mode="max")')
        self.monitor, self.patience, self.min_delta, self.mode = monitor, patience, float(min_delta), mode
        self._reset()

    def _reset(self) -> None:
        self.best: float | None = None
        self.best_epoch: float | None = None
        """The number of finished epochs at the evaluation with the best value."""
        self._metric: tuple[str, str] | None = None
        """The full name of the monitored metric, and its mode."""
        self._last_epoch: float | None = None
        self._num_bad = 0

    # Hooks.

    def pre_train(self, train_manager: TrainManager) -> None:
        check_is_known(self.monitor, train_manager, "EarlyStopping")
        check_direction(self.monitor, self.mode, train_manager, "EarlyStopping")
        expected = expected_name(self.monitor, train_manager)
        is_other = self._metric is not None and (not is_called(self._metric[0], expected) or self._metric[1] != self._mode_of(expected))
        if is_other or is_from_other_training(self._last_epoch, train_manager):
            self._reset()
        if self._num_bad >= self.patience:
            print(f"trainmaster: this training run was stopped early before and does not continue: {self._reason()}", file=sys.stderr)
            train_manager.stop(self._reason())

    def post_eval(self, train_manager: TrainManager, eval_losses: dict[str, float]) -> None:
        epochs_done = train_manager.epochs_done
        metric = next_value(self.monitor, train_manager, eval_losses, self._last_epoch, "EarlyStopping")
        if metric is None:
            if self.monitor is None and not eval_losses and train_manager.is_own_evaluation and train_manager.moment.is_evaluated:
                raise _no_loss_error(train_manager)
            return
        if self._metric is not None and self._metric[0] != metric.name:
            self._reset()
        self._last_epoch, self._metric = epochs_done, (metric.name, self._mode_of(expected_name(self.monitor, train_manager)))
        if self._is_improvement(metric.value, self._metric[1]):
            self.best, self.best_epoch, self._num_bad = metric.value, epochs_done, 0
            return
        self._num_bad += 1
        if self._num_bad >= self.patience:
            train_manager.stop(self._reason())

    def _mode_of(self, name: str) -> str:
        return self.mode or better_of(name) or "min"

    def _is_improvement(self, value: float, mode: str) -> bool:
        if not isfinite(value) or self.best is None:
            return isfinite(value)
        return (self.best - value if mode == "min" else value - self.best) > self.min_delta

    def _reason(self) -> str:
        assert self._metric is not None
        evaluations = f"{self._num_bad} evaluation{'s' if self._num_bad > 1 else ''}"
        if self.best is None:
            return f"{self._metric[0]} was not finite in {evaluations}"
        return f"{self._metric[0]} did not improve in {evaluations}: the best is {self.best:.6g}, after epoch {self.best_epoch:g}"

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {name.removeprefix("_"): getattr(self, name) for name in _SAVED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in _SAVED:
            setattr(self, name, state[name.removeprefix("_")])


def _no_loss_error(loop: TrainManager) -> LoopError:
    known = [name for name in recorded_names(loop.writer) if name.startswith(tuple(f"{each}/" for each in loop.eval_data))]
    name = next((each for each in known if better_of(each) is not None), None)
    return LoopError(
        "EarlyStopping has nothing to monitor: the evaluation recorded no loss",
        where=f"stage eval, after epoch {loop.epoch_num}",
        known=listed(known) or "none",
        hint=f'EarlyStopping(monitor="{name}")' if name else 'name a recorded metric: EarlyStopping(monitor="valid/score", mode="max")',
    )
