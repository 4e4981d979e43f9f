"""How large updates are beside the weights that they change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainmaster.errors import SettingError
from trainmaster.extensions.course import Course, heat_map, lines
from trainmaster.extensions.curves import is_epoch_complete
from trainmaster.extensions.drawing import Drawing
from trainmaster.extensions.looks import Looks
from trainmaster.extensions.norm_sums import norms_for
from trainmaster.figures.panels import Line, Lines, Panel
from trainmaster.figures.png import draw
from trainmaster.loop.writer import Writer
from trainmaster.stages import Fixtures, Observer, always

if TYPE_CHECKING:
    from matplotlib.figure import Figure

USUAL = 1e-3
"""Where the ratio of the weights of a healthy training is, by an old rule of thumb: within a factor of ten or so."""
_TAG = "update_ratio"


class UpdateRatio(Observer):
    """The norm of an update over the norm of the weights it changes, for each parameter, at every so many updates.

    What counts is what the optimizer's step did: momentum, weight decay and clipping included. The weights are copied before such a step
    and compared after it; between them it costs nothing. A parameter whose weights are all 0, as many a bias at first, has no ratio.

    `update_ratio/<parameter>/ratio` is recorded once an epoch, the mean over its looks, against `step_num`; in longer epochs, every 256
    looks. The figure, `plots/update_ratio.png` and `.html`, has every look.
    """

    is_guarded = False  # nothing is drawn or switched here

    def __init__(self, every: int = 10, path: str | PathLike[str] | None = None) -> None:
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise SettingError(f"every={every!r}: wanted a number of updates from one look to the next", hint="UpdateRatio(every=10)")
        self.every = every
        self._drawing = Drawing(_TAG, path, self.panels)
        self._looks = Looks()
        self._course = Course()
        self._names: list[str] = []
        self._parameters: list[nn.Parameter] = []
        self._before: list[torch.Tensor] = []
        self._num_updates = 0

    # Hooks.

    def pre_train(self, loop: Any) -> None:
        self._drawing.begin(loop)

    def pre_train_step_epoch(self, model: nn.Module, epoch_num: int, writer: Writer | None = None) -> None:
        named = {name: each for name, each in model.named_parameters() if each.requires_grad}
        if list(named) != self._names:
            self._record(writer)  # what waits has other names
        self._names, self._parameters = list(named), list(named.values())

    def pre_optimizer_step(self) -> None:
        self._num_updates += 1
        if self._num_updates % self.every == 0:
            self._before = [each.detach().clone() for each in self._parameters]

    def post_optimizer_step(self, fixtures: Fixtures) -> None:
        if self._before:
            before, self._before = self._before, []
            step = int(fixtures["step_num"]) if "step_num" in fixtures else int(fixtures["optim_step_num"]) + 1
            if self._looks.add(step, _ratios(before, self._parameters)):
                self._record(fixtures.get("writer"))

    def post_train_step_epoch(self, loop: Any, writer: Writer | None = None) -> None:
        if is_epoch_complete(loop):
            self._record(writer)

    @always
    def post_train(self) -> None:
        self._before = []
        self._drawing.draw()

    def _record(self, writer: Writer | None) -> None:
        """Fetch what waits, for the figure, and write its means."""
        rows = self._looks.take()
        for step, row in rows:
            self._course.add(step, dict(zip(self._names, row, strict=True)))
        if rows and writer is not None:
            for name, *values in zip(self._names, *(row for _, row in rows), strict=True):
                known = [value for value in values if not math.isnan(value)]
                if known:
                    writer.add_scalar(f"{_TAG}/{name}/ratio", sum(known) / len(known), rows[-1][0])
        self._drawing.refresh()

    # What was found.

    def panels(self) -> list[Panel]:
        """The course of each parameter, and all of them by time; nothing before the first look."""
        course = self._course.followed_by((step, dict(zip(self._names, row, strict=True))) for step, row in self._looks.read())
        if not course.xs:
            return []
        curves = lines(course, "size of updates", "update", "norm of update / norm of weights", is_log=True)
        usual = Line(f"usual: {USUAL:g}", course.xs, [USUAL] * len(course.xs))
        return [
            Lines(curves.title, curves.x_label, curves.y_label, [usual, *curves.lines], is_log=True),
            heat_map(course, f"parameters by time (usual: {USUAL:g})", "update", "update / weights", is_log=True),
        ]

    def figure(self) -> Figure:
        """The figure as it is now, for a notebook."""
        return draw(self.panels())

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {
            "names": list(self._names),
            "looks": self._looks.state_dict(),
            "course": self._course.state_dict(),
            "num_updates": self._num_updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_updates = state["num_updates"]
        self._course.load_state_dict(state["course"])
        self._looks.load_state_dict(state["looks"])
        if not self._parameters:
            self._names = list(state["names"])
        elif self._names != list(state["names"]):
            self._looks.clear()  # they are of another model


@torch.no_grad()
def _ratios(before: list[torch.Tensor], parameters: list[nn.Parameter]) -> torch.Tensor:
    """One ratio for each parameter, NaN where there is none; `before` is used up."""
    norms = norms_for(before)
    weights = norms(before)
    torch._foreach_sub_(before, [each.detach() for each in parameters])
    updates = norms(before)
    device = weights[0].device
    table = torch.stack([each.to(device, torch.float32) for each in (*updates, *weights)]).view(2, -1)
    return (table[0] / table[1]).where(table[1] > 0, math.nan)
