"""Heat maps and bars on paper: one row for each name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainmaster.figures.colours import COLOURS, MARKED, NUM_SHADES
from trainmaster.figures.frame import (
    LABEL,
    ROW,
    TICK,
    Box,
    Space,
    add_axes,
    add_title,
    bottom_of,
    height_of,
    say_empty,
    set_x,
    top_of,
    width_of,
)
from trainmaster.figures.lettering import fitted, literal, width
from trainmaster.figures.panels import Bars, HeatMap
from trainmaster.figures.scale import Numbers, Scale, are_whole, gapped, scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.4
_ROW_HEIGHT = 0.19
_LEAST_HEIGHT, _MOST_HEIGHT = 1.2, 7.6
_MAX_NAME, _MAX_MARK = 2.4, 0.9
_BAR_WIDTH, _BAR_HEIGHT, _BAR_GAP = 0.14, 3.0, 0.12
"""Of the bar that says which colour is which value."""
_MAX_COLUMNS = 1000


@dataclass(frozen=True)
class Rows:
    """Names beside rows, with a word before those that are marked; where there are too many, the marked ones and some others."""

    num: int
    shown: Sequence[int]
    names: Sequence[str]
    marks: Sequence[str]
    """Empty for a row without one."""

    @classmethod
    def of(cls, names: Sequence[str], marks: Mapping[str, str], height: float) -> Rows:
        marked = [number for number, name in enumerate(names) if name in marks]
        shown = chosen(len(names), marked, math.ceil(height_of(ROW) * 0.95 * len(names) / height))
        return cls(
            len(names),
            shown,
            [fitted(names[number], ROW, _MAX_NAME) for number in shown],
            [fitted(marks.get(names[number], ""), ROW, _MAX_MARK) for number in shown],
        )

    @property
    def width(self) -> float:
        return 0.15 + max((width(name, ROW) + (width(mark, ROW) + 0.08 if mark else 0.0) for name, mark in self._pairs()), default=0.0)

    def paint(self, axes: Axes, box: Box) -> None:
        axes.set_ylim(max(1, self.num) - 0.5, -0.5)
        axes.set_yticks(self.shown, [literal(name) for name in self.names], fontsize=ROW)
        axes.tick_params(axis="y", length=2, pad=2)
        across = axes.get_yaxis_transform()
        for number, (name, mark) in zip(self.shown, self._pairs(), strict=True):
            if mark:
                x = -(0.12 + width(name, ROW)) / box.width
                axes.text(x, number, literal(mark), transform=across, ha="right", va="center_baseline", fontsize=ROW, color=MARKED)

    def _pairs(self) -> list[tuple[str, str]]:
        return list(zip(self.names, self.marks, strict=True))


def rows_height(num: int) -> float:
    return min(max(_LEAST_HEIGHT, _ROW_HEIGHT * num), _MOST_HEIGHT)


def chosen(num: int, marked: Sequence[int], stride: int) -> list[int]:
    """Rows whose names are shown, at least `stride` apart: of the marked ones as many as there is room for, then others.

    >>> chosen(10, [4], 3)
    [0, 4, 7]
    """
    taken = np.zeros(num + 2 * stride, dtype=bool)  # row `r` is at `r + stride`
    found = []
    for number in [*marked, *range(num)]:
        if not taken[number + 1 : number + 2 * stride].any():
            taken[number + stride] = True
            found.append(number)
    return sorted(found)


class HeatMapArtist:
    """Draws a colour for each value."""

    def __init__(self, panel: HeatMap) -> None:
        self._panel = panel
        self._xs = gapped(panel.xs)
        order = np.argsort(self._xs, kind="stable")[: int(np.isfinite(self._xs).sum())]
        values = gapped(panel.values, panel.is_log).reshape(len(panel.rows), len(panel.xs))
        self._xs, self._values = self._xs[order], values[:, order]
        self._edges = edges_around(self._xs)
        self._x = scale([self._edges], is_whole=are_whole([self._xs]), margin=0.0)
        self._shades = scale([self._values], panel.is_log, margin=0.0)
        height = rows_height(len(panel.rows))
        self._rows = Rows.of(panel.rows, panel.marks, height)
        right = _BAR_GAP + _BAR_WIDTH + 0.15 + width_of(self._shades.labels, TICK) + (height_of(LABEL) if panel.value_label else 0.0)
        self.space = Space(self._rows.width, right + 0.1, top_of(panel.title), bottom_of(panel.x_label), WIDTH, height)

    def paint(self, figure: Figure, box: Box) -> None:
        axes = add_axes(figure, box)
        set_x(axes, box, self._x, self._panel.x_label)
        self._rows.paint(axes, box)
        add_title(axes, box, self._panel.title)
        if not np.isfinite(self._values).any():
            say_empty(axes)
            return
        place = (self._x.low, self._x.high, self._rows.num - 0.5, -0.5)
        axes.imshow(painted(self._shades, evenly(self._values, self._edges)), extent=place, aspect="auto", interpolation="nearest")
        self._add_bar(figure, box)

    def _add_bar(self, figure: Figure, box: Box) -> None:
        high = min(box.height, _BAR_HEIGHT)
        place = Box(box.x + box.width + _BAR_GAP, box.y + box.height - high, _BAR_WIDTH, high)
        axes = add_axes(figure, place)
        shades = np.linspace(0.0, 1.0, NUM_SHADES)[:, None]
        axes.imshow(_coloured(shades), extent=(0.0, 1.0, 0.0, 1.0), origin="lower", aspect="auto", interpolation="nearest")
        axes.set_xticks([])
        axes.yaxis.tick_right()
        axes.set_yticks(self._shades.shares(self._shades.ticks), self._shades.labels, fontsize=TICK)
        axes.set_ylim(0.0, 1.0)
        if self._panel.value_label:
            axes.yaxis.set_label_position("right")
            axes.set_ylabel(literal(fitted(self._panel.value_label, LABEL, high)), fontsize=LABEL)


class BarsArtist:
    """Draws a bar for each value."""

    def __init__(self, panel: Bars) -> None:
        self._panel = panel
        self._values = gapped(panel.values, panel.is_log)
        height = rows_height(len(panel.names))
        self._rows = Rows.of(panel.names, panel.marks, height)
        self._x = _from_zero(self._values) if not panel.is_log else scale([self._values], is_log=True)
        self.space = Space(self._rows.width, 0.25, top_of(panel.title), bottom_of(panel.x_label), WIDTH, height)

    def paint(self, figure: Figure, box: Box) -> None:
        from matplotlib.collections import PolyCollection

        axes = add_axes(figure, box)
        set_x(axes, box, self._x, self._panel.x_label)
        self._rows.paint(axes, box)
        add_title(axes, box, self._panel.title)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        drawn = [(row, value) for row, value in enumerate(self._values.tolist()) if value == value]
        if not drawn:
            say_empty(axes)
            return
        start = self._x.low if self._panel.is_log else 0.0
        corners = [[(start, row - 0.36), (value, row - 0.36), (value, row + 0.36), (start, row + 0.36)] for row, value in drawn]
        colours = [MARKED if self._panel.names[row] in self._panel.marks else COLOURS[0] for row, _ in drawn]
        # One artist for all: one each costs ten times as much.
        axes.add_collection(PolyCollection(corners, facecolors=colours, linewidths=0), autolim=False)


def edges_around(xs: Numbers) -> Numbers:
    """The borders of columns: half-way between neighbours."""
    if xs.size == 0:
        return np.array([0.0, 1.0])
    if xs.size == 1:
        return np.array([xs[0] - 0.5, xs[0] + 0.5])
    between = (xs[:-1] + xs[1:]) / 2
    return np.concatenate([[2 * xs[0] - between[0]], between, [2 * xs[-1] - between[-1]]])


def evenly(values: Numbers, edges: Numbers) -> Numbers:
    """Values in columns of one width, for a picture has no others."""
    widths = np.diff(edges)
    if widths.max() - widths.min() <= 0.01 * widths.mean():
        return values
    places = np.linspace(edges[0], edges[-1], 2 * _MAX_COLUMNS + 1)[1::2]
    columns = np.clip(np.searchsorted(edges, places, side="right") - 1, 0, values.shape[1] - 1)
    return values[:, columns]


def painted(shades: Scale, values: Numbers) -> NDArray[np.uint8]:
    """Values as colours; what is no number is left blank."""
    return _coloured(shades.shares(values))


def _coloured(shares: Numbers) -> NDArray[np.uint8]:
    from matplotlib import colormaps

    table: Any = colormaps["viridis"](np.arange(NUM_SHADES), bytes=True)
    is_blank = np.isnan(shares)
    found = table[np.clip(np.where(is_blank, 0, shares) * NUM_SHADES, 0, NUM_SHADES - 1).astype(int)]
    found[is_blank] = 0
    return np.asarray(found, dtype=np.uint8)


def _from_zero(values: Numbers) -> Scale:
    found = scale([np.zeros(1), values])
    low = found.low if (values < 0).any() else 0.0
    high = found.high if (values > 0).any() or low == 0.0 else 0.0
    ticks = [(tick, label) for tick, label in zip(found.ticks, found.labels, strict=True) if low <= tick <= high]
    return replace(found, low=low, high=high, ticks=[tick for tick, _ in ticks], labels=[label for _, label in ticks])
