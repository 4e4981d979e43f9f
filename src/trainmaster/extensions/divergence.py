"""An error for a loss that runs away."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainmaster.errors import LossDivergedError, SettingError
from trainmaster.extensions.watched import check_is_known, check_name, current_metric, is_from_elsewhere, metric_name
from trainmaster.loop.metric import is_greater_better, is_recorded_name
from trainmaster.stages import Extension

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager

SMALL: Final = 0.01
"""A loss below this part of what it was after the warm-up counts as if it were that part: near 0, noise would be a large change."""


class Value(NamedTuple):
    """A number, and the epochs done when it was found."""

    value: float
    epoch: int

    def __str__(self) -> str:
        return f"{self.value:.6g} after epoch {self.epoch}"


class Divergence(Extension):
    """Raises a `LossDivergedError` where a loss, at an evaluation, has become far greater than it was (A27).

    That is when the mean of two changes is above `factor`: against the best loss so far, and against the one before, each relative to
    its size. A loss that is nan or inf is an error at once, also in the warm-up.

    Args:
        factor: the greatest change that is let pass; None looks for nan and inf only.
        by: the evaluation set whose loss to watch, or the name of a recorded number, of which less is better; by default the first set.
        warm_up_epochs: epochs after which nothing is compared yet.
    """

    is_optional = True

    def __init__(self, factor: float | None = 10.0, by: str | None = None, warm_up_epochs: int = 1) -> None:
        if factor is not None and (isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf):
            raise SettingError(f"`factor` is a number greater than 0, or None, not {factor!r}", hint="Divergence(factor=10.0)")
        check_name(by, 'Divergence(by="valid")')
        if by is not None and is_recorded_name(by) and is_greater_better(by):
            raise SettingError(
                f"Divergence looks at losses, and not at {by!r}",
                why="of such a number the greatest is the best: to rise is no harm, and it cannot run away",
                hint='name an evaluation set, or a loss: by="valid"; EarlyStopping looks at any number',
            )
        if isinstance(warm_up_epochs, bool) or not isinstance(warm_up_epochs, int) or warm_up_epochs < 0:
            raise SettingError(
                f"`warm_up_epochs` is a whole number of at least 0, not {warm_up_epochs!r}", hint="Divergence(warm_up_epochs=1)"
            )
        self.factor = None if factor is None else float(factor)
        self.by, self.warm_up_epochs = by, warm_up_epochs
        self.best: Value | None = None
        self.last: Value | None = None
        self._name: str | None = None
        """The number that was watched so far."""
        self._scale = 0.0
        """The greatest size of the loss since the end of the warm-up."""

    def pre_train(self, train_manager: TrainManager) -> None:
        check_is_known(self.by, train_manager, "Divergence")
        name = metric_name(self.by, train_manager)
        if self._name != name or is_from_elsewhere(self.last.epoch if self.last is not None else None, train_manager):
            self._name, self.best, self.last, self._scale = name, None, None, 0.0

    def post_eval(self, train_manager: TrainManager, eval_losses: dict[str, float], epoch_num: int) -> None:
        is_seen = self.last is not None and self.last.epoch == epoch_num
        if not train_manager.moment.is_evaluated or is_seen:  # a hook has evaluated
            return
        found = current_metric(self.by, train_manager, eval_losses, "Divergence")
        if found is None:
            return
        now = Value(found.value, epoch_num)
        if not math.isfinite(now.value):
            raise self._error(f"{found.name} is {now.value}", now, None)
        if self.factor is not None and epoch_num > self.warm_up_epochs:
            change = self._change(now.value)
            if change > self.factor:
                raise self._error(f"{found.name} has diverged: it is {now.value:.6g}", now, change)
        if self.best is None or self._scale == 0 or now.value < self.best.value:
            self.best = now
        self._scale = abs(now.value) if epoch_num <= self.warm_up_epochs else max(self._scale, abs(now.value))
        self.last = now

    def _change(self, value: float) -> float:
        """The mean of the changes against the best and against the last; 0 where there is nothing to compare with."""
        if self.best is None or self.last is None or self._scale == 0:  # all were exactly 0: how large a loss is here, nobody knows
            return 0.0
        # Where a loss can be negative, 0 is a number like any other, and a loss near it is not a small one.
        least = self._scale if self.best.value < 0 else SMALL * self._scale
        return sum((value - each) / max(abs(each), least) for each in (self.best.value, self.last.value)) / 2

    def _error(self, fact: str, now: Value, change: float | None) -> LossDivergedError:
        before = f"the best was {self.best}, the last {self.last}" if self.best is not None else "it is the first"
        why = (
            None
            if change is None
            else f"the mean of the changes against both is {change:.4g} times their size, above factor={self.factor:g}"
        )
        more = "NonFinite() names the batch and the module it comes from" if change is None else "a greater `factor` lets it pass"
        return LossDivergedError(
            fact,
            where=f"stage eval, after epoch {now.epoch}",
            values=before,
            why=why,
            hint=f"lower the learning rate, let it rise in a warm-up, or clip the gradients; {more}",
        )

    def state_dict(self) -> dict[str, Any]:
        values = {name: None if each is None else tuple(each) for name, each in (("best", self.best), ("last", self.last))}
        return {**values, "name": self._name, "scale": self._scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.last = (None if state[name] is None else Value(*state[name]) for name in ("best", "last"))
        self._name, self._scale = state["name"], state["scale"]
