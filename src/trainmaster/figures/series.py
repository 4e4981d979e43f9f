"""`Series`: keeps the history of a metric in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainmaster.arguments import check_int

_MAX_POINTS = 1000


class Point(NamedTuple):
    """One value, or several neighboring values that were merged."""

    x: float
    """The x value of the last merged value."""
    mean: float
    low: float
    high: float
    count: int  # type: ignore[assignment]  # shadows tuple.count


class Series:
    """A metric over time.

    A short series keeps every value. A long series keeps the mean, minimum and maximum of neighboring values.

    When there are more than `max_points` points, neighboring points are merged in pairs. The result depends only on the values, not on
    when the series was read or saved.

    >>> series = Series(max_points=4)
    >>> series.extend((x, float(x)) for x in range(6))
    >>> [(point.x, point.mean) for point in series.points()]
    [(1, 0.5), (3, 2.5), (5, 4.5)]
    """

    def __init__(self, max_points: int = _MAX_POINTS) -> None:
        check_int("max_points", max_points, min=2, hint="a full series merges pairs of points")
        self._max_points = max_points
        self._width = 1
        self._done: list[Point] = []
        self._last: Point | None = None

    def __len__(self) -> int:
        return len(self._done) + (self._last is not None)

    def add(self, x: float, value: float) -> None:
        new = Point(x, value, value, value, 1)
        self._last = new if self._last is None else _merged(self._last, new)
        if self._last.count >= self._width:
            self._done.append(self._last)
            self._last = None
        if len(self._done) > self._max_points:
            self._halve()

    def extend(self, pairs: Iterable[tuple[float, float]]) -> None:
        for x, value in pairs:
            self.add(x, value)

    def points(self) -> list[Point]:
        return [*self._done, *([] if self._last is None else [self._last])]

    def _halve(self) -> None:
        self._width *= 2
        odd = self._done.pop() if len(self._done) % 2 else None
        self._done = [_merged(one, other) for one, other in zip(self._done[::2], self._done[1::2], strict=True)]
        if odd is not None:
            self._last = odd if self._last is None else _merged(odd, self._last)

    def state_dict(self) -> dict[str, Any]:
        return {"width": self._width, "done": _array(self._done), "last": _array([] if self._last is None else [self._last])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._width = state["width"]
        self._done = _points(state["done"])
        self._last = next(iter(_points(state["last"])), None)


def smoothed(values: Iterable[float], weight: float) -> list[float]:
    """Return the exponential moving average, with bias correction.

    `weight` is the weight of earlier values. With a weight of 0, the values are not smoothed. Values that are not finite are
    returned unchanged and do not influence the average.

    >>> smoothed([1.0, 1.0, 4.0], 0.5)[:2]
    [1.0, 1.0]
    """
    found, total, whole = [], 0.0, 0.0
    for value in values:
        if math.isfinite(value):
            total = weight * total + (1 - weight) * value
            whole = weight * whole + (1 - weight)
            found.append(total / whole)
        else:
            found.append(value)
    return found


def _merged(one: Point, other: Point) -> Point:
    count = one.count + other.count
    mean = (one.mean * one.count + other.mean * other.count) / count
    return Point(other.x, mean, min(one.low, other.low), max(one.high, other.high), count)


def _array(points: list[Point]) -> NDArray[np.float64]:
    return np.array(points, dtype=np.float64).reshape(-1, 5)


def _points(array: NDArray[np.float64]) -> list[Point]:
    return [Point(x, mean, low, high, int(count)) for x, mean, low, high, count in array.tolist()]
