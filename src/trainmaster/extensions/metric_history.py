"""Keeps the values of many layers during training in bounded memory, and draws panels that show them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainmaster.figures.panels import HeatMap, Line, Lines

MAX_COLUMNS = 256
_MAX_ROWS = 48
_MAX_LINES = 10


class MetricHistory:
    """A table of values with a row for each name and a column for each x.

    When there are more than `max_columns` columns, each pair of columns is replaced by its mean. The history depends
    only on the values that were added, not on when it was read or saved. NaN marks a missing value and is left out of
    means.

    >>> history = MetricHistory(max_columns=2)
    >>> for x in (1, 2, 3):
    ...     history.add(x, {"first": float(x), "second": 10.0 * x})
    >>> history.xs, history.values(["second"]).tolist()
    ([2, 3], [[15.0, 30.0]])
    """

    def __init__(self, max_columns: int = MAX_COLUMNS) -> None:
        self.names: list[str] = []
        self.xs: list[float] = []
        """The last x of each column."""
        self._max_columns = max_columns
        self._columns: list[NDArray[np.float64]] = []
        self._counts: list[int] = []
        self._width = 1

    def add(self, x: float, values: Mapping[str, float]) -> None:
        if list(values) != self.names:
            self.names = list(dict.fromkeys([*self.names, *values]))
            values = {name: values.get(name, np.nan) for name in self.names}
        column = np.fromiter(values.values(), np.float64, len(values))
        if self._counts and self._counts[-1] < self._width:
            self._columns[-1] = _mean(self._columns[-1], self._counts[-1], column, 1)
            self._counts[-1] += 1
            self.xs[-1] = x
        else:
            self._columns.append(column)
            self._counts.append(1)
            self.xs.append(x)
        if len(self._columns) > self._max_columns:
            self._merge_pairs()

    def _merge_pairs(self) -> None:
        self._width *= 2
        columns, counts, pairs = self._columns, self._counts, range(0, len(self._columns) - 1, 2)
        rest = slice(len(columns) - len(columns) % 2, None)
        self.xs = [self.xs[at + 1] for at in pairs] + self.xs[rest]
        self._columns = [_mean(columns[at], counts[at], columns[at + 1], counts[at + 1]) for at in pairs] + columns[rest]
        self._counts = [counts[at] + counts[at + 1] for at in pairs] + counts[rest]

    def values(self, names: Sequence[str] | None = None) -> NDArray[np.float64]:
        """Return the values of `names`, or of all names, with one row for each name and one column for each x."""
        table = np.full((len(self.xs), len(self.names)), np.nan)
        for row, column in zip(table, self._columns, strict=True):
            row[: len(column)] = column
        indices = range(len(self.names)) if names is None else map(self.names.index, names)
        return np.ascontiguousarray(table[:, list(indices)].T)

    def extended(self, columns: Iterable[tuple[float, Mapping[str, float]]]) -> MetricHistory:
        """Return a copy with more columns."""
        history = MetricHistory(self._max_columns)
        history.load_state_dict(self.state_dict())
        for x, values in columns:
            history.add(x, values)
        return history

    def medians(self, min_columns: int) -> dict[str, float]:
        """Return the median of each name that has at least `min_columns` finite values."""
        finite = {name: row[np.isfinite(row)] for name, row in zip(self.names, self.values(), strict=True)}
        return {name: float(np.median(values)) for name, values in finite.items() if len(values) >= min_columns}

    def state_dict(self) -> dict[str, Any]:
        return {
            "names": list(self.names),
            "xs": list(self.xs),
            "columns": torch.from_numpy(np.ascontiguousarray(self.values().T)),
            "counts": list(self._counts),
            "width": self._width,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.names, self.xs = list(state["names"]), list(state["xs"])
        self._columns = list(state["columns"].cpu().double().numpy().copy())
        self._counts, self._width = list(state["counts"]), state["width"]


def names_with_values(history: MetricHistory, marked: Collection[str] = ()) -> list[str]:
    """Return the names that have a finite value or are in `marked`."""
    rows = zip(history.names, history.values(), strict=True)
    return [name for name, row in rows if name in marked or np.isfinite(row).any()]


def shown_names(history: MetricHistory, marked: Collection[str] = (), limit: int = _MAX_ROWS) -> list[str]:
    """Choose at most `limit` names for a figure, at even intervals. Up to half of them are chosen from `marked` first."""
    names = names_with_values(history, marked)
    if len(names) <= limit:
        return names
    first = _evenly([name for name in names if name in marked], limit // 2)
    chosen = {*first, *_evenly([name for name in names if name not in first], limit - len(first))}
    return [name for name in names if name in chosen]


def _evenly(names: list[str], limit: int) -> list[str]:
    indices = np.linspace(0, len(names) - 1, min(limit, len(names))).round().astype(int)
    return [names[index] for index in indices]


def heat_map(
    history: MetricHistory, title: str, x_label: str, value_label: str, *, is_log: bool = False, marks: Mapping[str, str] | None = None
) -> HeatMap:
    """Draw a heat map with layers from top to bottom and time from left to right."""
    marks = marks or {}
    names = shown_names(history, marks)
    values = history.values(names)
    is_shown = np.isfinite(values) & (values > 0) if is_log else np.isfinite(values)
    title += _shown_note(len(names), len(names_with_values(history, marks)))
    return HeatMap(title, x_label, value_label, history.xs, names, np.where(is_shown, values, np.nan), is_log, marks)


def lines(history: MetricHistory, title: str, x_label: str, y_label: str, *, is_log: bool | None = None) -> Lines:
    """Draw one curve for each name. If there are too many names, only some are drawn."""
    names = shown_names(history, limit=_MAX_LINES)
    title += _shown_note(len(names), len(names_with_values(history)))
    curves = [Line(name, history.xs, values.tolist()) for name, values in zip(names, history.values(names), strict=True)]
    return Lines(title, x_label, y_label, curves, is_log)


def _shown_note(num_shown: int, num_names: int) -> str:
    return f" ({num_shown} of {num_names} shown)" if num_shown < num_names else ""


def _mean(one: NDArray[np.float64], num_one: int, other: NDArray[np.float64], num_other: int) -> NDArray[np.float64]:
    """Return the weighted mean of two columns. The first column may be shorter, because names can be added later."""
    one = np.concatenate([one, np.full(len(other) - len(one), np.nan)])
    mean = (one * num_one + other * num_other) / (num_one + num_other)
    return np.where(np.isnan(one), other, np.where(np.isnan(other), one, mean))
