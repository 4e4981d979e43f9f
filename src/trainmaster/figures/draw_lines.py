"""Curves and histograms on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainmaster.figures.colours import Look, look, looks
from trainmaster.figures.frame import (
    Box,
    Legend,
    Space,
    add_axes,
    add_title,
    bottom_of,
    left_of,
    say_empty,
    set_x,
    set_y,
    top_of,
    wanted,
)
from trainmaster.figures.panels import Histogram, Line, Lines
from trainmaster.figures.scale import Numbers, Scale, are_whole, gapped, scale, spans_much

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDTH, HEIGHT = 4.4, 2.5
_STROKES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_MAX_DOTTED = 30
"""Points of a line up to which each has a dot."""


class Curve(NamedTuple):
    """A line as it is drawn: NaN where there is a gap."""

    xs: Numbers
    ys: Numbers
    low: Numbers | None
    high: Numbers | None
    look: Look
    is_faint: bool


class LinesArtist:
    """Draws curves."""

    def __init__(self, panel: Lines) -> None:
        self._panel = panel
        self._curves = [_curve(line, look, is_log_axis(panel)) for line, look in zip(panel.lines, looks(panel.lines), strict=True)]
        self._x = scale([each.xs for each in self._curves], is_whole=are_whole(each.xs for each in self._curves), margin=0.03)
        self._y = scale([part for each in self._curves for part in (each.ys, each.low, each.high) if part is not None], is_log_axis(panel))
        labels = [line.label for line in panel.lines if not line.is_faint]
        self._legend = Legend.of(wanted(labels, [panel.title, panel.y_label]), WIDTH)
        self.space = Space(
            left_of(self._y.labels, panel.y_label), 0.2, top_of(panel.title, self._legend.height), bottom_of(panel.x_label), WIDTH, HEIGHT
        )

    def paint(self, figure: Figure, box: Box) -> None:
        axes = add_axes(figure, box)
        # The ticks come first: matplotlib would look for some of its own each time that something is added.
        set_x(axes, box, self._x, self._panel.x_label)
        set_y(axes, box, self._y, self._panel.y_label)
        axes.grid(alpha=0.3)
        handles = [_add_curve(axes, each, self._y) for each in self._curves]
        self._legend.paint(axes, [handle for handle, each in zip(handles, self._curves, strict=True) if not each.is_faint])
        add_title(axes, box, self._panel.title, self._legend.height)
        if not any(np.isfinite(each.ys).any() for each in self._curves):
            say_empty(axes)


class HistogramArtist:
    """Draws how often values are."""

    def __init__(self, panel: Histogram) -> None:
        self._panel = panel
        self._edges, self._counts = counted(panel)
        self._x = scale([self._edges], margin=0.02)
        most = scale([np.zeros(1), *self._counts.values()], is_whole=are_whole(self._counts.values()))
        self._y = replace(most, low=0.0) if not any((each < 0).any() for each in self._counts.values()) else most
        self._legend = Legend.of(wanted([*self._counts], [panel.title, panel.x_label]), WIDTH)
        self.space = Space(
            left_of(self._y.labels, panel.y_label), 0.2, top_of(panel.title, self._legend.height), bottom_of(panel.x_label), WIDTH, HEIGHT
        )

    def paint(self, figure: Figure, box: Box) -> None:
        axes = add_axes(figure, box)
        set_x(axes, box, self._x, self._panel.x_label)
        set_y(axes, box, self._y, self._panel.y_label)
        axes.grid(alpha=0.3)
        alpha = 0.85 if len(self._counts) == 1 else 0.45
        handles = []
        for number, counts in enumerate(self._counts.values()):
            colour = look(number).colour
            handles.append(axes.stairs(counts, self._edges, fill=True, facecolor=colour, alpha=alpha))
            axes.stairs(counts, self._edges, color=colour, linewidth=1.2)  # where several lie over each other, each has its outline
        self._legend.paint(axes, handles)
        add_title(axes, box, self._panel.title, self._legend.height)
        if not any(np.isfinite(each).any() for each in self._counts.values()):
            say_empty(axes)


def counted(panel: Histogram) -> tuple[Numbers, dict[str, Numbers]]:
    """The edges and counts that can be drawn; none where an edge is not finite."""
    edges = gapped(panel.edges)
    has_intervals = len(edges) > 1 and bool(np.isfinite(edges).all())
    return edges, {label: gapped(counts) for label, counts in panel.counts.items()} if has_intervals else {}


def is_log_axis(panel: Lines) -> bool:
    return spans_much(gapped(line.ys) for line in panel.lines) if panel.is_log is None else panel.is_log


def lone(ys: Numbers) -> list[int]:
    """Points with a gap on both sides, which a line without dots does not show."""
    has = np.concatenate([[False], np.isfinite(ys), [False]])
    return np.flatnonzero(has[1:-1] & ~has[:-2] & ~has[2:]).tolist()


def _curve(line: Line, look: Look, is_log: bool) -> Curve:
    xs, ys = gapped(line.xs), gapped(line.ys, is_log)
    if line.low is None or line.high is None:
        return Curve(xs, ys, None, None, look, line.is_faint)
    return Curve(xs, ys, gapped(line.low, is_log), gapped(line.high, is_log), look, line.is_faint)


def _add_curve(axes: Axes, curve: Curve, y: Scale) -> object:
    behind = 0.3 if curve.is_faint else 1.0
    dots = None if len(curve.ys) <= _MAX_DOTTED else lone(curve.ys)  # None is for each
    if curve.low is not None and curve.high is not None:
        low = np.where(np.isnan(curve.low) & np.isfinite(curve.high), y.low, curve.low) if y.is_log else curve.low
        axes.fill_between(curve.xs, low, curve.high, color=curve.look.colour, alpha=0.2 * behind, linewidth=0, zorder=1)
    (line,) = axes.plot(
        curve.xs,
        curve.ys,
        _STROKES[curve.look.dash],
        color=curve.look.colour,
        alpha=behind,
        linewidth=1.0 if curve.is_faint else 1.4,
        marker=None if dots == [] else "o",
        markersize=3,
        markevery=dots,
        zorder=1.5 if curve.is_faint else 2.0,
    )
    return line
