"""Panels: the content of figures as plain data. `png.py` draws panels with matplotlib, and `html.py` with plotly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainmaster.errors import SettingError

Array = NDArray[np.float64]

_HUGE, _TINY = 1e100, 1e-100
"""Values beyond these limits are treated as infinite or zero, because they could overflow in the plotting libraries."""
_MIN_FOR_DENSITY = 5
_LOG_RATIO = 30.0
"""A `Lines` panel gets a log scale if its largest value is at least this many times its smallest value."""


@dataclass(frozen=True)
class Line:
    """A curve, with a band around it if it has `low` and `high`. Values that are not finite leave a gap."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    is_faint: bool = False
    """Whether the line is drawn pale, behind the other lines and without a legend entry, like the raw values of a smoothed curve."""

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise SettingError(f"line {self.label!r} has only one side of a band", hint="pass both `low` and `high`, or neither")
        bands = {} if self.low is None or self.high is None else {"low": self.low, "high": self.high}
        _check_lengths(f"line {self.label!r}", xs=self.xs, ys=self.ys, **bands)


@dataclass(frozen=True)
class Lines:
    """Curves that share their axes."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    is_log: bool | None = None
    """Whether the y axis is logarithmic.

    If None, the axis is logarithmic if all values are positive and span a wide range.
    """

    @property
    def has_log_scale(self) -> bool:
        if self.is_log is not None:
            return self.is_log
        ys = np.concatenate([np.zeros(0), *(finite(line.ys) for line in self.lines)])
        ys = ys[np.isfinite(ys)]
        return ys.size > 0 and bool(0 < _LOG_RATIO * ys.min() <= ys.max())

    @property
    def is_empty(self) -> bool:
        return not any(np.isfinite(finite(line.ys, self.has_log_scale)).any() for line in self.lines)

    @property
    def has_legend(self) -> bool:
        return _needs_legend([line.label for line in self.lines if not line.is_faint], self.title, self.y_label)


@dataclass(frozen=True)
class HeatMap:
    """A heat map with one row for each name, one column for each x, and a color for each value."""

    title: str
    x_label: str
    value_label: str
    xs: Sequence[float]
    rows: Sequence[str]
    """The names of the rows, from top to bottom."""
    values: Array
    """An array with one row for each name and one column for each x. NaN values are left blank."""
    is_log: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)
    """Words to show next to the names of some rows."""

    def __post_init__(self) -> None:
        shape, wanted = np.shape(self.values), (len(self.rows), len(self.xs))
        if shape != wanted and np.size(self.values) + math.prod(wanted):
            raise SettingError(f"heat map {self.title!r} has values of shape {shape}", hint=f"one row per name, one column per x: {wanted}")

    @property
    def is_empty(self) -> bool:
        return not np.isfinite(self.columns()[1]).any()

    def columns(self) -> tuple[Array, Array]:
        """Return the x values in ascending order, and the columns in the same order. Columns whose x is not finite are left out."""
        xs = finite(self.xs)
        order = np.argsort(xs, kind="stable")[: np.count_nonzero(np.isfinite(xs))]
        return xs[order], finite(self.values, self.is_log).reshape(len(self.rows), len(xs))[:, order]


@dataclass(frozen=True)
class Bars:
    """One horizontal bar for each name, from top to bottom."""

    title: str
    x_label: str
    names: Sequence[str]
    values: Sequence[float]
    is_log: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)
    """Words to show next to the names of some bars."""

    def __post_init__(self) -> None:
        _check_lengths(f"bars {self.title!r}", names=self.names, values=self.values)

    @property
    def is_empty(self) -> bool:
        return not np.isfinite(finite(self.values, self.is_log)).any()


@dataclass(frozen=True)
class Histogram:
    """The number of values in each interval."""

    title: str
    x_label: str
    y_label: str
    counts: Mapping[str, Sequence[int]]
    """The counts of all intervals, by label. Histograms with different labels are drawn on top of each other."""
    edges: Sequence[float]
    """The edges of the intervals. There is one more edge than there are intervals."""

    def __post_init__(self) -> None:
        for label, counts in self.counts.items():
            _check_lengths(f"histogram {self.title!r}", intervals=self.edges[1:], **{f"counts of {label!r}": counts})

    @property
    def is_empty(self) -> bool:
        has_counts = any(np.isfinite(finite(counts)).any() for counts in self.counts.values())
        return not has_counts or bool(np.isnan(finite(self.edges)).any())

    @property
    def has_legend(self) -> bool:
        return _needs_legend(list(self.counts), self.title, self.x_label)


@dataclass(frozen=True)
class Scatter:
    """Points and, optionally, a fitted line with its band."""

    title: str
    x_label: str
    y_label: str
    xs: Sequence[float]
    ys: Sequence[float]
    names: Sequence[str] = ()
    """The names of the points. The HTML page shows a name when you hover over its point."""
    fit: Line | None = None
    is_log_x: bool = False
    is_log_y: bool = False

    def __post_init__(self) -> None:
        _check_lengths(f"scatter {self.title!r}", xs=self.xs, ys=self.ys, names=self.names if len(self.names) else self.xs)

    @property
    def is_empty(self) -> bool:
        return not (np.isfinite(finite(self.xs, self.is_log_x)) & np.isfinite(finite(self.ys, self.is_log_y))).any()


@dataclass(frozen=True)
class Violins:
    """The distribution of a numeric value in each category. All values are drawn as points. If there are many, a density is drawn too."""

    title: str
    x_label: str
    y_label: str
    values: Mapping[str, Sequence[float]]
    """The values of each category. Categories are drawn from left to right."""
    is_log: bool = False

    @property
    def is_empty(self) -> bool:
        return not any(np.isfinite(finite(each, self.is_log)).any() for each in self.values.values())


@dataclass(frozen=True)
class ParallelAxis:
    """One axis of a `Parallel` panel: the position of each line on the axis, and tick labels."""

    name: str
    positions: Sequence[float]
    """The positions of the lines, from 0 (bottom) to 1 (top). NaN leaves a gap in a line."""
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Parallel:
    """Parallel coordinates: each run is a line that crosses all axes. Its position on the last axis determines its color."""

    title: str
    axes: Sequence[ParallelAxis]
    is_reversed: bool = False
    """Whether low positions on the last axis are better. The best lines are drawn last, on top of the others."""

    def __post_init__(self) -> None:
        _check_lengths(f"parallel coordinates {self.title!r}", **{f"positions of {axis.name!r}": axis.positions for axis in self.axes})

    @property
    def x_label(self) -> str:
        return ""

    @property
    def is_empty(self) -> bool:
        return not self.axes or not np.isfinite(finite(self.axes[-1].positions)).any()

    def order(self) -> list[int]:
        """Return the indices of the lines that have a value on the last axis, from worst to best."""
        last = finite(self.axes[-1].positions)
        lines = np.argsort(-last if self.is_reversed else last, kind="stable")
        return [line for line in lines.tolist() if np.isfinite(last[line])]


@dataclass(frozen=True)
class ForestRow:
    """A mean with its interval, or a single value without an interval."""

    name: str
    mean: float
    low: float = math.nan
    high: float = math.nan
    color: Literal["good", "bad", "unclear", "point"] = "point"
    is_summary: bool = False
    """Whether the row is drawn as a diamond and set apart from the rows above."""


@dataclass(frozen=True)
class Forest:
    """Means with their intervals, from top to bottom, and a vertical reference line."""

    title: str
    x_label: str
    rows: Sequence[ForestRow]
    line: float = 0.0

    @property
    def is_empty(self) -> bool:
        return not np.isfinite(finite([row.mean for row in self.rows])).any()


Panel = Lines | HeatMap | Bars | Histogram | Scatter | Violins | Parallel | Forest


def _check_lengths(panel: str, **parts: Sized) -> None:
    """Raise an error if the parts of a panel have different lengths. plotly would leave out the values that do not match."""
    if len(set(map(len, parts.values()))) > 1:
        found = ", ".join(f"{len(values)} {name}" for name, values in parts.items())
        raise SettingError(f"{panel}: {found}", hint="pass the same number of each")


def finite(values: ArrayLike, is_log: bool = False) -> Array:
    """Return `values` as an array in which infinities and, on a log scale, values that are not positive are replaced by NaN."""
    found = np.array(values, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        found[np.abs(found) < _TINY] = 0.0
        found[~(np.abs(found) <= _HUGE) | (is_log & (found <= 0))] = np.nan
    return found


def has_density(values: ArrayLike) -> bool:
    """Return whether there are enough different values to draw a density. With fewer values, a density would be misleading."""
    found = finite(values)
    found = found[np.isfinite(found)]
    return len(found) >= _MIN_FOR_DENSITY and bool(np.ptp(found) > 1e-9 * np.abs(found).max())


def isolated(ys: Array) -> list[int]:
    """Return the indices of points that have a gap on both sides. The line does not show them, so they need a marker."""
    is_finite = np.pad(np.isfinite(ys), 1)
    return np.flatnonzero(is_finite[1:-1] & ~is_finite[:-2] & ~is_finite[2:]).tolist()


def are_integers(values: Iterable[Array]) -> bool:
    return all(bool(np.all(np.isnan(each) | (each == np.round(each)))) for each in values)


def _needs_legend(labels: Sequence[str], *shown: str) -> bool:
    """Return whether the labels contain information that the title and the axis labels do not."""
    return len(labels) > 1 or any(label not in ("", *shown) for label in labels)
