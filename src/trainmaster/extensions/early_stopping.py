"""An end for a training that does not get better any more."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from trainmaster.errors import SettingError, did_you_mean
from trainmaster.extensions.watched import check_is_known, check_name, current_metric, is_from_elsewhere, metric_name
from trainmaster.loop.metric import better_of
from trainmaster.stages import Extension

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager

MODES: Final = ("min", "max")


class EarlyStopping(Extension):
    """Stops a training after `patience` evaluations in a row that were no better than the best one before them.

    It looks at the evaluations of training itself, that before the first epoch included. A number that is nan or inf is never better. A
    training that it has ended stays ended: started again, it stops at once, unless `patience` is greater now.

    Args:
        by: the evaluation set whose loss to watch, or the name of a recorded number ("metrics/valid/accuracy"); by default the first set.
        min_delta: by how much a number must be better to count.
        mode: "min" or "max", what is better. It may be left out where the name tells: for losses and errors, and for accuracies, returns
            and other well-known scores.
    """

    is_optional = True

    def __init__(self, by: str | None = None, patience: int = 5, min_delta: float = 0.0, mode: str | None = None) -> None:
        check_name(by, 'EarlyStopping(by="valid")')
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise SettingError(f"`patience` is a whole number of at least 1, not {patience!r}", hint="EarlyStopping(patience=5)")
        if isinstance(min_delta, bool) or not isinstance(min_delta, int | float) or not 0 <= min_delta < math.inf:
            raise SettingError(f"`min_delta` is a number of at least 0, not {min_delta!r}", hint="EarlyStopping(min_delta=0.001)")
        if mode is not None and mode not in MODES:
            hint = did_you_mean(str(mode), MODES) or 'EarlyStopping(by="metrics/valid/f1", mode="max")'
            raise SettingError(f"`mode` is min, max or None, not {mode!r}", hint=hint)
        self.by, self.patience, self.min_delta, self.mode = by, patience, float(min_delta), mode
        self.best: float | None = None
        self.best_epoch: int | None = None
        """The epochs done when the best was found."""
        self._judged: tuple[str, str] | None = None
        """The number that was watched so far, and what is better of it."""
        self._epoch: int | None = None
        """The last epoch whose evaluation was seen."""
        self._num_bad = 0

    # The hooks, in their order.

    def pre_train(self, train_manager: TrainManager) -> None:
        check_is_known(self.by, train_manager, "EarlyStopping")
        if self.mode is None and better_of(metric_name(self.by, train_manager)) is None:
            raise SettingError(
                f"EarlyStopping cannot tell whether less or more is better of {self.by!r}",
                hint=f'EarlyStopping(by="{self.by}", mode="max"), or "min"',
            )
        is_other = self._judged is not None and self._judged != self._judging(train_manager)
        if is_other or is_from_elsewhere(self._epoch, train_manager):
            self._start_anew()
        if self._num_bad >= self.patience:
            print(f"trainmaster: training was stopped early before, and is not taken up: {self._reason()}", file=sys.stderr)
            train_manager.stop(self._reason())

    def post_eval(self, train_manager: TrainManager, eval_losses: dict[str, float], epoch_num: int) -> None:
        if not train_manager.moment.is_evaluated or self._epoch == epoch_num:  # a hook has evaluated, or it is done and seen
            return
        found = current_metric(self.by, train_manager, eval_losses, "EarlyStopping")
        if found is None:
            return
        self._epoch, self._judged = epoch_num, self._judging(train_manager)
        if self._is_better(found.value):
            self.best, self.best_epoch, self._num_bad = found.value, epoch_num, 0
            return
        self._num_bad += 1
        if self._num_bad >= self.patience:
            train_manager.stop(self._reason())

    # What is judged.

    def _judging(self, train_manager: TrainManager) -> tuple[str, str]:
        name = metric_name(self.by, train_manager)
        return name, self.mode or better_of(name) or "min"

    def _is_better(self, value: float) -> bool:
        if not math.isfinite(value) or self.best is None:
            return math.isfinite(value)
        assert self._judged is not None
        gain = self.best - value if self._judged[1] == "min" else value - self.best
        return gain > self.min_delta

    def _reason(self) -> str:
        assert self._judged is not None
        past = f"{self._num_bad} evaluation{'s' if self._num_bad > 1 else ''}"
        if self.best is None:
            return f"{self._judged[0]} was not finite in {past}"
        return f"{self._judged[0]} is no better after {past}: the best is {self.best:.6g}, of epoch {self.best_epoch}"

    # Its state.

    def _start_anew(self) -> None:
        self.best = self.best_epoch = self._judged = self._epoch = None
        self._num_bad = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "best_epoch": self.best_epoch,
            "judged": self._judged,
            "epoch": self._epoch,
            "num_bad": self._num_bad,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.best_epoch, self._epoch, self._num_bad = state["best"], state["best_epoch"], state["epoch"], state["num_bad"]
        self._judged = None if state["judged"] is None else (state["judged"][0], state["judged"][1])
