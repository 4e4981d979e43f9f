"""Measures the size of updates relative to the weights that they change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
from torch import nn

from trainmaster.arguments import check_int
from trainmaster.extensions.epochs import is_epoch_complete, updates_done
from trainmaster.extensions.figure_writer import FigureObserver
from trainmaster.extensions.layer_stats import LayerStats
from trainmaster.extensions.metric_history import heat_map, lines
from trainmaster.extensions.norm_sums import norms_for
from trainmaster.figures.panels import Line, Lines, Panel
from trainmaster.loop.sharding import refuse_shards
from trainmaster.loop.writer import Writer
from trainmaster.stages import Fixtures, always

USUAL = 1e-3
"""A rule of thumb: if training works well, most ratios are within a factor of ten of this value."""
_TAG = "update_ratio"


class UpdateRatio(FigureObserver):
    """Logs, for each parameter, the norm of its update divided by the norm of its weights. Every `every`-th update is measured.

    The update is the change that the optimizer step makes to the weights, including momentum, weight decay and
    clipping. The weights are copied before a measured step and compared after it; other steps have no overhead. A
    parameter whose weights are all 0, such as a new bias, has no ratio.

    The ratio is logged as `update_ratio/<parameter>`, against `step_num`. A logged value is the mean over the
    measured updates of an epoch. In long epochs, a mean is logged after every 256 measured updates. The figure
    `update_ratio` also shows how the ratios change within an epoch.
    """

    def __init__(self, every: int = 10, path: str | PathLike[str] | None = None) -> None:
        check_int("every", every, min=1, hint="UpdateRatio(every=10)")
        super().__init__(_TAG, path)
        self.every = every
        self._stats = LayerStats(_TAG)
        self._parameters: list[nn.Parameter] = []
        self._before: list[torch.Tensor] = []
        self._num_updates = 0

    def pre_train(self, loop: Any) -> None:
        refuse_shards(loop.model, "UpdateRatio")
        super().pre_train(loop)

    def pre_train_step_epoch(self, model: nn.Module, writer: Writer | None = None) -> None:
        named = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._stats.set_layers({name: name for name in named}, writer)
        self._parameters = list(named.values())

    def pre_optimizer_step(self) -> None:
        self._num_updates += 1
        if self._num_updates % self.every == 0:
            self._before = [each.detach().clone() for each in self._parameters]

    def post_optimizer_step(self, fixtures: Fixtures) -> None:
        if self._before:
            before, self._before = self._before, []
            if self._stats.add(updates_done(fixtures), _ratios(before, self._parameters)):
                self._log(fixtures.get("writer"))

    def post_train_step_epoch(self, loop: Any, writer: Writer | None = None) -> None:
        if is_epoch_complete(loop):
            self._log(writer)

    @always
    def post_train(self) -> None:
        self._before = []
        super().post_train()

    def _log(self, writer: Writer | None) -> None:
        self._stats.log(writer)
        self._figure_writer.draw_if_due()

    def panels(self) -> list[Panel]:
        history = self._stats.history()
        if not history.xs:
            return []
        curves = lines(history, "size of updates", "update", "norm of update / norm of weights", is_log=True)
        usual = Line(f"usual: {USUAL:g}", history.xs, [USUAL] * len(history.xs))
        return [
            Lines(curves.title, curves.x_label, curves.y_label, [usual, *curves.lines], is_log=True),
            heat_map(history, f"parameters over time (usual: {USUAL:g})", "update", "update / weights", is_log=True),
        ]

    def state_dict(self) -> dict[str, Any]:
        return {"stats": self._stats.state_dict(), "num_updates": self._num_updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._stats.load_state_dict(state["stats"])
        self._num_updates = state["num_updates"]


@torch.no_grad()
def _ratios(before: list[torch.Tensor], parameters: list[nn.Parameter]) -> torch.Tensor:
    """Return a column with one ratio for each parameter. The ratio is NaN if the weights are all 0. `before` is overwritten."""
    norms = norms_for(before)
    weights = norms(before)
    torch._foreach_sub_(before, [each.detach() for each in parameters])
    updates = norms(before)
    device = weights[0].device
    table = torch.stack([each.to(device, torch.float32) for each in (*updates, *weights)]).view(2, -1)
    return (table[0] / table[1]).where(table[1] > 0, math.nan).unsqueeze(1)
