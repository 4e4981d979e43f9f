"""The learning rate as a curve."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trainmaster.errors import SettingError
from trainmaster.extensions.curves import Curves, is_epoch_complete
from trainmaster.extensions.drawing import Drawing
from trainmaster.figures.panels import Lines
from trainmaster.figures.png import draw
from trainmaster.loop.pending import Pending
from trainmaster.loop.train_test_loop import TrainTestLoop
from trainmaster.loop.writer import Writer
from trainmaster.stages import Observer, always

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LABEL = "learning rate"
_LOG_FROM = 30.0
"""How many times one of the lower rates the greatest is where the axis becomes logarithmic."""


class LearningRate(Observer):
    """Records the learning rate that each update is made with, and draws it: one curve for each group of parameters.

    Only what changes is recorded: the first update, the last before and the first after each change, and the last of each epoch. The tag
    is `lr`, or `lr/<group>/lr` where the optimizer has several groups; a group goes by its `name`, if it has one, or by its number. The
    figure is `learning_rate`.
    """

    is_guarded = False

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        self._drawing = Drawing("learning_rate", path, self.panels)
        self._curves = Curves()
        self._pending = Pending()
        self._writer: Writer | None = None
        self._num_updates = 0
        self._is_full = False
        self._last: dict[str, tuple[int, float]] = {}
        """The update that was looked at last, and its rate, by tag."""
        self._recorded: dict[str, int] = {}
        """The update that was recorded last, by tag."""

    # ---- hooks

    def pre_train(self, loop: Any, writer: Writer | None = None) -> None:
        self._writer = writer
        self._num_updates = getattr(loop, "step_num", self._num_updates)
        if not isinstance(loop, TrainTestLoop):  # whose components may make it later
            _groups(getattr(loop, "optimizer", None))
        self._drawing.begin(loop)

    def pre_optimizer_step(self, optimizer: Any) -> None:
        """Before the update, because afterwards the schedule has made its step already."""
        self._num_updates = number = self._num_updates + 1
        groups = _groups(optimizer)
        names = [group.get("name") for group in groups]
        for index, group in enumerate(groups):
            name = names[index] if names[index] is not None and names.count(names[index]) == 1 else index
            tag = "lr" if len(groups) == 1 else f"lr/{name}/lr"
            rate = group["lr"]
            # A rate may be a tensor that is changed in place; where it is on a device, nobody waits for it.
            self._is_full |= self._pending.add((tag, number), rate.clone() if isinstance(rate, torch.Tensor) else rate)

    def post_train_step_batch(self) -> None:
        if self._is_full:
            self._record()
            self._drawing.refresh()

    def post_train_step_epoch(self, loop: Any) -> None:
        self._record()
        if is_epoch_complete(loop):
            for tag in self._last:
                self._write(tag)
        self._drawing.refresh()

    @always
    def post_train(self) -> None:
        self._record()
        self._drawing.draw()

    # ---- numbers

    def _record(self) -> None:
        self._is_full = False
        for (tag, number), rate in self._pending.drain():
            before = self._last.get(tag)
            has_changed = before is None or before[1] != rate
            if has_changed and before is not None:
                self._write(tag)
            self._last[tag] = (number, rate)
            if has_changed:
                self._write(tag)

    def _write(self, tag: str) -> None:
        """Record what was seen last, unless that is done."""
        number, rate = self._last[tag]
        if self._recorded.get(tag) == number:
            return
        self._recorded[tag] = number
        self._curves.add(_LABEL if tag == "lr" else tag.removeprefix("lr/").removesuffix("/lr"), number, rate)
        if self._writer is not None:
            self._writer.add_scalar(tag, rate, number)

    def state_dict(self) -> dict[str, Any]:
        self._record()  # what is in a checkpoint is in the log
        return {
            "num_updates": self._num_updates,
            "last": {tag: list(seen) for tag, seen in self._last.items()},
            "recorded": dict(self._recorded),
            "curves": self._curves.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pending.clear()
        self._num_updates = state["num_updates"]
        self._last = {tag: (number, rate) for tag, (number, rate) in state["last"].items()}
        self._recorded = dict(state["recorded"])
        self._curves.load_state_dict(state["curves"])

    # ---- the figure

    def panels(self) -> list[Lines]:
        """The figure as data; nothing before the first update."""
        self._record()
        lines = self._curves.lines()
        if not lines:
            return []
        # Logarithmic where it is small for long, as after steps by ten; not for the last updates of a schedule that ends at 0.
        rates = [rate for line in lines for rate in line.ys]
        is_log = 0 < _LOG_FROM * float(np.quantile(rates, 0.25)) <= max(rates)
        return [Lines("Learning rate", "update", _LABEL, lines, is_log)]

    def figure(self) -> Figure:
        """The figure as one of matplotlib, for a notebook."""
        return draw(self.panels())


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] | None = getattr(optimizer, "param_groups", None)
    if not groups:
        raise SettingError(
            f"LearningRate finds no groups of parameters in the optimizer {type(optimizer).__name__}"
            if optimizer is not None
            else "LearningRate finds no optimizer",
            hint="leave the extension out, or give the loop an optimizer with `param_groups`, as those of torch have",
        )
    return groups
