"""What surrounds a panel on paper: margins, title, axes, legend; lengths are in inches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from trainmaster.figures.lettering import fitted, literal, width
from trainmaster.figures.scale import Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

TITLE, LABEL, TICK, ROW = 10.0, 9.0, 8.0, 7.0
"""Sizes of letters, in points."""
_LINE_HEIGHT = 1.4 / 72
"""Of a point of letters."""
_MAX_ENTRIES = 24
_HANDLE = 2.0
"""Length of the stroke beside a label, in sizes of the font."""


@dataclass(frozen=True)
class Space:
    """What a panel asks for: margins around its axes, and the least size of these."""

    left: float
    right: float
    top: float
    bottom: float
    width: float
    height: float

    @property
    def whole_width(self) -> float:
        return self.left + self.width + self.right


@dataclass(frozen=True)
class Box:
    """A place in a figure, from its lower left corner."""

    x: float
    y: float
    width: float
    height: float


class Artist(Protocol):
    """Draws one panel, once it is known where."""

    @property
    def space(self) -> Space: ...

    def paint(self, figure: Figure, box: Box) -> None:
        """Draw the axes into the box; title, numbers and names around it."""


def height_of(size: float) -> float:
    """How much a line of letters of a size takes from top to bottom."""
    return size * _LINE_HEIGHT


def width_of(texts: Sequence[str], size: float) -> float:
    return max((width(text, size) for text in texts), default=0.0)


def left_of(labels: Sequence[str], y_label: str) -> float:
    """The margin for numbers and a name of an upright axis."""
    return 0.2 + width_of(labels, TICK) + (height_of(LABEL) + 0.05 if y_label else 0.0)


def bottom_of(x_label: str) -> float:
    return 0.15 + height_of(TICK) + (height_of(LABEL) if x_label else 0.0)


def top_of(title: str, legend_height: float = 0.0) -> float:
    return 0.1 + (height_of(TITLE) if title else 0.0) + legend_height


def add_axes(figure: Figure, box: Box) -> Axes:
    wide, high = figure.get_size_inches()
    return figure.add_axes((box.x / wide, box.y / high, box.width / wide, box.height / high))


def add_title(axes: Axes, box: Box, title: str, legend_height: float = 0.0) -> None:
    # With a y of its own: else matplotlib looks for it among all that is drawn, each time.
    axes.set_title(literal(fitted(title, TITLE, box.width)), fontsize=TITLE, y=1.0, pad=72 * (legend_height + 0.06))


def set_x(axes: Axes, box: Box, scale: Scale, label: str) -> None:
    if scale.is_log:
        _set_log(axes.set_xscale, axes.xaxis)
    axes.set_xlim(scale.low, scale.high)
    axes.set_xticks(*_apart(scale, box.width), fontsize=TICK)
    if label:
        axes.set_xlabel(literal(fitted(label, LABEL, box.width)), fontsize=LABEL)


def set_y(axes: Axes, box: Box, scale: Scale, label: str) -> None:
    if scale.is_log:
        _set_log(axes.set_yscale, axes.yaxis)
    axes.set_ylim(scale.low, scale.high)
    axes.set_yticks(scale.ticks, scale.labels, fontsize=TICK)
    if label:
        axes.set_ylabel(literal(fitted(label, LABEL, box.height)), fontsize=LABEL)


def _set_log(set_scale: Callable[[str], None], axis: Axis) -> None:
    from matplotlib.ticker import NullLocator

    set_scale("log")
    axis.set_minor_locator(NullLocator())  # else there are numbers of matplotlib's own between ours


def _apart(scale: Scale, length: float) -> tuple[Sequence[float], Sequence[str]]:
    """Ticks along a line with so much room that their numbers do not touch."""
    wide = width_of(scale.labels, TICK) + 0.12
    stride = max(1, math.ceil(wide * max(0, len(scale.ticks) - 1) / length))
    return scale.ticks[::stride], scale.labels[::stride]


def say_empty(axes: Axes) -> None:
    axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", va="center", fontsize=LABEL, color="grey")


@dataclass(frozen=True)
class Legend:
    """Labels above the axes, in as many columns as there is room for: so they never cover what is drawn."""

    labels: Sequence[str]
    num_columns: int
    num_left_out: int = 0

    @classmethod
    def of(cls, labels: Sequence[str], inches: float) -> Legend:
        shown = [fitted(label, TICK, inches / 2) for label in labels[:_MAX_ENTRIES]]
        num_left_out = len(labels) - len(shown)
        if num_left_out:
            shown.append(f"... and {num_left_out} more")
        entry = width_of(shown, TICK) + (_HANDLE + 2.0) * TICK / 72
        return cls(shown, min(max(1, int(inches / entry)), max(1, len(shown))), num_left_out)

    @property
    def height(self) -> float:
        return math.ceil(len(self.labels) / self.num_columns) * height_of(TICK) + 0.06 if self.labels else 0.0

    def paint(self, axes: Axes, handles: Sequence[Any]) -> None:
        from matplotlib.lines import Line2D

        if self.labels:
            axes.legend(
                [*handles[:_MAX_ENTRIES], *([Line2D([], [], linestyle="none")] if self.num_left_out else [])],
                [literal(label) for label in self.labels],
                loc="lower center",
                bbox_to_anchor=(0.5, 1.0),
                ncols=self.num_columns,
                fontsize=TICK,
                frameon=False,
                borderpad=0,
                borderaxespad=0.3,
                handlelength=_HANDLE,
                handletextpad=0.6,
                columnspacing=1.4,
                labelspacing=0.2,
            )


def wanted(labels: Sequence[str], said: Sequence[str]) -> Sequence[str]:
    """The labels that a legend needs: none where there is one line, and its name is said elsewhere."""
    return [] if len(labels) == 1 and labels[0] in ("", *said) else labels
