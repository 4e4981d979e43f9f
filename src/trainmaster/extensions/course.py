"""How the numbers of many layers went over a training: in bounded memory, and as parts of a figure."""

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


class Course:
    """A column of numbers by name for each moment: all of them while there are few, and means of neighbours of many.

    When there are too many columns, each two become one. So what is kept depends on the numbers alone, and not on when it was looked at
    or saved. NaN stands for a number that is missing, and counts in no mean.

    >>> course = Course(max_columns=2)
    >>> for x in (1, 2, 3):
    ...     course.add(x, {"first": float(x), "second": 10.0 * x})
    >>> course.xs, course.values(["second"]).tolist()
    ([2, 3], [[15.0, 30.0]])
    """

    def __init__(self, max_columns: int = MAX_COLUMNS) -> None:
        self.names: list[str] = []
        self.xs: list[float] = []
        """Where the last moment of each column is."""
        self._max_columns = max_columns
        self._columns: list[NDArray[np.float64]] = []
        self._counts: list[int] = []
        self._width = 1

    def add(self, x: float, numbers: Mapping[str, float]) -> None:
        if list(numbers) != self.names:
            known = set(self.names)
            self.names += [name for name in numbers if name not in known]
            numbers = {name: numbers.get(name, np.nan) for name in self.names}
        column = np.fromiter(numbers.values(), np.float64, len(numbers))
        if self._counts and self._counts[-1] < self._width:
            self._columns[-1] = _mean(self._columns[-1], self._counts[-1], column, 1)
            self._counts[-1] += 1
            self.xs[-1] = x
        else:
            self._columns.append(column)
            self._counts.append(1)
            self.xs.append(x)
        if len(self._columns) > self._max_columns:
            self._halve()

    def _halve(self) -> None:
        self._width *= 2
        columns, counts, pairs = self._columns, self._counts, range(0, len(self._columns) - 1, 2)
        rest = slice(len(columns) - len(columns) % 2, None)
        self.xs = [self.xs[at + 1] for at in pairs] + self.xs[rest]
        self._columns = [_mean(columns[at], counts[at], columns[at + 1], counts[at + 1]) for at in pairs] + columns[rest]
        self._counts = [counts[at] + counts[at + 1] for at in pairs] + counts[rest]

    def values(self, names: Sequence[str] | None = None) -> NDArray[np.float64]:
        """The numbers of some names, or of all: one row for each name, one column for each moment."""
        table = np.full((len(self.xs), len(self.names)), np.nan)
        for row, column in zip(table, self._columns, strict=True):
            row[: len(column)] = column
        places = range(len(self.names)) if names is None else map(self.names.index, names)
        return np.ascontiguousarray(table[:, list(places)].T)

    def followed_by(self, more: Iterable[tuple[float, Mapping[str, float]]]) -> Course:
        """A copy that goes on with these columns."""
        other = Course(self._max_columns)
        other.load_state_dict(self.state_dict())
        for x, numbers in more:
            other.add(x, numbers)
        return other

    def medians(self, min_columns: int) -> dict[str, float]:
        """What the numbers of each name mostly were; nothing of names with fewer columns than that."""
        found = {}
        for name, row in zip(self.names, self.values(), strict=True):
            finite = row[np.isfinite(row)]
            if len(finite) >= min_columns:
                found[name] = float(np.median(finite))
        return found

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


def shown_names(course: Course, marked: Collection[str] = (), limit: int = _MAX_ROWS) -> list[str]:
    """The names that have numbers; of more than a figure can hold some, evenly, and half of them marked ones."""
    names = [name for name, row in zip(course.names, course.values(), strict=True) if name in marked or np.isfinite(row).any()]
    if len(names) <= limit:
        return names
    first = _evenly([name for name in names if name in marked], limit // 2)
    chosen = {*first, *_evenly([name for name in names if name not in first], limit - len(first))}
    return [name for name in names if name in chosen]


def _evenly(names: list[str], number: int) -> list[str]:
    """So many of the names, or all, from the first to the last."""
    places = np.linspace(0, len(names) - 1, min(number, len(names))).round().astype(int)
    return [names[place] for place in places]


def heat_map(
    course: Course, title: str, x_label: str, value_label: str, *, is_log: bool = False, marks: Mapping[str, str] | None = None
) -> HeatMap:
    """Layers from top to bottom, time from left to right."""
    marks = marks or {}
    names = shown_names(course, marks)
    values = course.values(names)
    is_shown = np.isfinite(values) & (values > 0) if is_log else np.isfinite(values)
    if len(names) < len(course.names):
        title += f" ({len(names)} of {len(course.names)} shown)"
    return HeatMap(title, x_label, value_label, course.xs, names, np.where(is_shown, values, np.nan), is_log, marks)


def lines(course: Course, title: str, x_label: str, y_label: str, *, is_log: bool | None = None) -> Lines:
    """A curve for each name, or for a few of many."""
    names = shown_names(course, limit=_MAX_LINES)
    if len(names) < len(course.names):
        title += f" ({len(names)} of {len(course.names)} shown)"
    curves = [Line(name, course.xs, values.tolist()) for name, values in zip(names, course.values(names), strict=True)]
    return Lines(title, x_label, y_label, curves, is_log)


def _mean(one: NDArray[np.float64], num_one: int, other: NDArray[np.float64], num_other: int) -> NDArray[np.float64]:
    """The mean of two columns of so many moments each; the earlier one may lack the names that came later."""
    one = np.concatenate([one, np.full(len(other) - len(one), np.nan)])
    mean = (one * num_one + other * num_other) / (num_one + num_other)
    return np.where(np.isnan(one), other, np.where(np.isnan(other), one, mean))
