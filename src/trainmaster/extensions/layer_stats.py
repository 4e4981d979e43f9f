"""Statistics of every layer, measured in some of the updates and kept on the device until they are logged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trainmaster.extensions.metric_history import MetricHistory
from trainmaster.loop.writer import Writer, record

MAX_WAITING = 256
"""The maximum number of tables that are kept on the device, so that memory use does not grow with the length of an epoch."""


class LayerStats:
    """Collects a table of shape (layers, statistics) for each measured update.

    `add` does not wait for the device, because the tables stay there until `log` fetches them all at once. NaN means
    that a layer has no value.
    """

    def __init__(self, tag: str, statistics: Sequence[str] = ("",)) -> None:
        """Values are logged as `<tag>/<layer>/<statistic>`, or as `<tag>/<layer>` if the statistic has no name."""
        self._tag = tag
        self._labels: dict[str, str] = {}
        """The label of each layer in the figure, by the layer's name."""
        self._histories = {statistic: MetricHistory() for statistic in statistics}
        self._steps: list[int] = []
        self._tables: list[torch.Tensor] = []

    def set_layers(self, labels: Mapping[str, str], writer: Writer | None) -> None:
        if labels != self._labels:
            self.log(writer)  # the tables on the device belong to the previous layers
            self._labels = dict(labels)

    def label(self, layer: str) -> str:
        return self._labels.get(layer, layer)

    def add(self, step: int, table: torch.Tensor) -> bool:
        """Add a table of statistics for one update. Returns True when it is time to call `log`."""
        self._steps.append(step)
        self._tables.append(table)
        return len(self._steps) >= MAX_WAITING

    def log(self, writer: Writer | None) -> None:
        """Fetch the tables from the device, add them to the histories, and log the mean of each value."""
        rows = self._waiting_rows()
        step = self._steps[-1] if self._steps else 0
        self._steps, self._tables = [], []
        for statistic, columns in rows.items():
            for at, column in columns:
                self._histories[statistic].add(at, column)
            for layer, label in self._labels.items():
                values = [column[label] for _, column in columns if not math.isnan(column[label])]
                if values:
                    record(writer, "/".join(filter(None, (self._tag, layer, statistic))), sum(values) / len(values), step, "update")

    def history(self, statistic: str = "") -> MetricHistory:
        """Return the history of a statistic, including tables that have not been logged yet."""
        return self._histories[statistic].extended(self._waiting_rows()[statistic])

    def _waiting_rows(self) -> dict[str, list[tuple[int, dict[str, float]]]]:
        """Return the tables that have not been logged yet: for each statistic, a list of (step, values of all layers) pairs."""
        rows: dict[str, list[tuple[int, dict[str, float]]]] = {statistic: [] for statistic in self._histories}
        for step, table in zip(self._steps, _stacked(self._tables).tolist() if self._tables else (), strict=True):
            for statistic, column in zip(rows, zip(*table, strict=True), strict=True):
                rows[statistic].append((step, dict(zip(self._labels.values(), column, strict=True))))
        return rows

    def state_dict(self) -> dict[str, Any]:
        return {
            "labels": dict(self._labels),
            "histories": {statistic: history.state_dict() for statistic, history in self._histories.items()},
            "steps": list(self._steps),
            "tables": _stacked(self._tables) if self._tables else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._labels, self._steps = dict(state["labels"]), list(state["steps"])
        self._tables = [] if state["tables"] is None else list(state["tables"].unbind())
        for statistic, history in self._histories.items():
            history.load_state_dict(state["histories"][statistic])


def _stacked(tables: list[torch.Tensor]) -> torch.Tensor:
    device = tables[-1].device
    return torch.stack([table.to(device) for table in tables])  # a restored table may be on a different device
