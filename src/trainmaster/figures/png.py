"""Draws figures with matplotlib and renders them as PNG."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmaster.figures.colors import COLORS, MARK_COLOR, line_styles
from trainmaster.figures.forest import draw_forest
from trainmaster.figures.labels import shorten
from trainmaster.figures.panels import (
    Array,
    Bars,
    Forest,
    HeatMap,
    Histogram,
    Lines,
    Panel,
    Parallel,
    Scatter,
    Violins,
    are_integers,
    finite,
    has_density,
    isolated,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT, _ROW_HEIGHT = 6.0, 3.4, 0.19
"""The width and height of a panel, and the height of a row in it, in inches."""
_MAX_ROWS_HEIGHT = 8.0
_PARALLEL_WIDTH = 1.3
"""The width of one axis of parallel coordinates, in inches."""
_MAX_NAMED_ROWS = 48
_MAX_TITLE, _MAX_LABEL, _MAX_ROW_NAME, _MAX_MARK, _MAX_LEGEND_LABEL = 60, 40, 48, 16, 40
"""Maximum lengths in characters."""
_MAX_LEGEND_ENTRIES = 24
_MAX_POINTS_WITH_MARKERS = 30
_LINE_STYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


def draw(panels: Sequence[Panel], title: str = "") -> Figure:
    """Draw panels in one figure. Several panels are arranged in two columns."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from trainmaster.figures.notebook_figure import NotebookFigure

    num_columns = min(len(panels), 2)
    width = _WIDTH * max([num_columns, *(_PARALLEL_WIDTH * len(panel.axes) / _WIDTH for panel in panels if isinstance(panel, Parallel))])
    if len(panels) == 1 and isinstance(panels[0], Lines) and panels[0].has_legend:  # make room for a long legend
        width += 0.05 * max(0, max(len(_text(line.label, _MAX_LEGEND_LABEL)) for line in panels[0].lines) - 12)
    heights = [max(map(_height, panels[start : start + 2])) for start in range(0, len(panels), 2)]
    figure = NotebookFigure(figsize=(max(width, _WIDTH), max(sum(heights), 0.5) + (0.3 if title else 0.0)), layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(_text(title, 60 * max(num_columns, 1)), fontsize=12)
    if panels:
        grid = figure.add_gridspec(len(heights), num_columns, height_ratios=heights)
        for number, panel in enumerate(panels):
            _draw_panel(figure.add_subplot(grid[number // 2, number % 2]), panel)
    return figure


def png(figure: Figure) -> bytes:
    """Render a figure as a PNG file."""
    data = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # missing glyphs are drawn as boxes
        figure.savefig(data, format="png", dpi=100, pil_kwargs={"compress_level": 3})
    return data.getvalue()


def _height(panel: Panel) -> float:
    if not isinstance(panel, HeatMap | Bars | Forest):
        return _HEIGHT
    if isinstance(panel, Forest):
        return 1.0 + min(max(1.0, 0.26 * len(panel.rows)), _MAX_ROWS_HEIGHT)
    num_rows = len(panel.rows if isinstance(panel, HeatMap) else panel.names)
    return 1.0 + min(max(1.0, _ROW_HEIGHT * num_rows), _MAX_ROWS_HEIGHT)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(_text(panel.title, _MAX_TITLE), fontsize=10)
    axes.set_xlabel(_text(panel.x_label, _MAX_LABEL), fontsize=9)
    axes.tick_params(labelsize=8)
    axes.margins(0.03, 0.05)
    if panel.is_empty:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", va="center", fontsize=9, color="grey")
    elif isinstance(panel, HeatMap):
        _draw_heat_map(axes, panel)
    elif isinstance(panel, Bars):
        _draw_bars(axes, panel)
    elif isinstance(panel, Parallel):
        _draw_parallel(axes, panel)
    elif isinstance(panel, Scatter | Violins):
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        _draw_scatter(axes, panel) if isinstance(panel, Scatter) else _draw_violins(axes, panel)
    elif isinstance(panel, Forest):
        draw_forest(axes, panel)
        _name_rows(axes, [row.name for row in panel.rows], {})
    else:
        axes.grid(alpha=0.3)
        handles = _draw_lines(axes, panel) if isinstance(panel, Lines) else _draw_histogram(axes, panel)
        if panel.has_legend:
            _add_legend(axes, handles)
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        if axis.get_scale() == "log" and high >= 100 * low:
            axis.minorticks_off()  # the major ticks are enough, and every tick slows down the layout
    if isinstance(panel, Lines | Histogram | Scatter | Violins):
        axes.set_ylabel(_text(panel.y_label, _MAX_LABEL), fontsize=9)


def _draw_lines(axes: Axes, panel: Lines) -> dict[str, Any]:
    is_log = panel.has_log_scale
    if is_log:
        axes.set_yscale("log")
    handles = {}
    num_bands = sum(line.low is not None for line in panel.lines)
    for line, style in zip(panel.lines, line_styles(panel.lines), strict=True):
        xs, ys = finite(line.xs), finite(line.ys, is_log)
        opacity = 0.3 if line.is_faint else 1.0
        if line.low is not None and line.high is not None:
            # If `low` is not positive, the band on a log scale extends to the end of the axis.
            low, high = finite(line.low), finite(line.high, is_log)
            axes.fill_between(xs, low, high, color=style.color, alpha=min(0.2, 0.6 / num_bands) * opacity, linewidth=0, zorder=1)
        marked = None if len(ys) <= _MAX_POINTS_WITH_MARKERS else isolated(ys)  # None draws a marker at every point
        (handle,) = axes.plot(
            xs,
            ys,
            _LINE_STYLES[style.dash],
            color=style.color,
            alpha=opacity,
            linewidth=1.0 if line.is_faint else 1.4,
            marker=None if marked == [] else "o",
            markersize=3,
            markevery=marked,
            zorder=1.5 if line.is_faint else 2.0,
        )
        if not line.is_faint:
            handles[line.label] = handle
    _use_integer_ticks(axes, [line.xs for line in panel.lines])
    return handles


def _draw_histogram(axes: Axes, panel: Histogram) -> dict[str, Any]:
    handles = {}
    opacity = 0.85 if len(panel.counts) == 1 else 0.45
    for number, (label, counts) in enumerate(panel.counts.items()):
        color = COLORS[number % len(COLORS)]
        handles[label] = axes.stairs(
            finite(counts), finite(panel.edges), fill=True, facecolor=(color, opacity), edgecolor=color, linewidth=1.2
        )
    return handles


def _draw_scatter(axes: Axes, panel: Scatter) -> None:
    xs, ys = finite(panel.xs, panel.is_log_x), finite(panel.ys, panel.is_log_y)
    axes.set_xscale("log" if panel.is_log_x else "linear")
    axes.set_yscale("log" if panel.is_log_y else "linear")
    opacity = min(0.8, max(0.15, 40 / max(1, len(xs))))
    axes.scatter(xs, ys, s=14, color=COLORS[0], alpha=opacity, linewidths=0, zorder=2, rasterized=True)
    if panel.fit is not None:
        line = panel.fit
        if line.low is not None and line.high is not None:
            low, high = finite(line.low, panel.is_log_y), finite(line.high, panel.is_log_y)
            axes.fill_between(finite(line.xs, panel.is_log_x), low, high, color=MARK_COLOR, alpha=0.2, linewidth=0, zorder=2.5)
        (handle,) = axes.plot(finite(line.xs, panel.is_log_x), finite(line.ys, panel.is_log_y), color=MARK_COLOR, linewidth=1.4, zorder=3)
        if line.label:
            axes.legend([handle], [_text(line.label, _MAX_LABEL)], loc="best", fontsize=7, framealpha=0.8, edgecolor="none")


def _draw_violins(axes: Axes, panel: Violins) -> None:
    if panel.is_log:
        axes.set_yscale("log")
    for number, values in enumerate(panel.values.values()):
        ys = finite(values, panel.is_log)
        ys = ys[np.isfinite(ys)]
        if len(ys) == 0:
            continue
        color = COLORS[number % len(COLORS)]
        scaled = np.log(ys) if panel.is_log else ys
        if has_density(scaled):
            positions, widths = density(scaled)
            positions = np.exp(positions) if panel.is_log else positions
            axes.fill_betweenx(positions, number - 0.4 * widths, number + 0.4 * widths, color=color, alpha=0.25, linewidth=0)
        spread = (np.arange(len(ys)) * 0.618034 % 1 - 0.5) * 0.24  # jitter that is even and reproducible
        axes.scatter(number + spread, ys, s=10, color=color, alpha=min(0.8, max(0.1, 60 / len(ys))), linewidths=0)
        axes.plot([number - 0.22, number + 0.22], [np.median(ys)] * 2, color="black", linewidth=1.4)
    names = [_text(name, _MAX_LEGEND_LABEL) for name in panel.values]
    is_crowded = sum(map(len, names)) > 60
    axes.set_xticks(range(len(names)), names, rotation=30 if is_crowded else 0, ha="right" if is_crowded else "center", fontsize=8)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(axis="x", visible=False)


def density(values: Array, num_points: int = 100) -> tuple[Array, Array]:
    """Return positions between the smallest and the largest value, and the kernel density estimates there, scaled to a maximum of 1."""
    quartiles = np.quantile(values, [0.25, 0.75])
    spread = min(float(values.std(ddof=1)), float(np.ptp(quartiles)) / 1.34 or np.inf)
    width = 0.9 * spread * len(values) ** -0.2
    counts, edges = np.histogram(values, bins=512)  # many values are put into bins first, which is faster
    positions = np.linspace(values.min(), values.max(), num_points)
    kernel = np.exp(-0.5 * ((positions[:, None] - (edges[:-1] + edges[1:]) / 2) / width) ** 2) @ counts
    return positions, kernel / kernel.max()


def _draw_parallel(axes: Axes, panel: Parallel) -> None:
    from matplotlib.collections import LineCollection

    positions = np.array([finite(axis.positions) for axis in panel.axes]).T
    order = panel.order()
    xs = np.arange(len(panel.axes), dtype=float)
    segments = [np.column_stack([xs, positions[line]]) for line in order]
    colors = positions[order, -1]
    lines = LineCollection(
        segments,
        array=1 - colors if panel.is_reversed else colors,
        cmap="viridis",
        linewidths=1.0,
        alpha=min(0.8, max(0.1, 40 / len(order))),
    )
    lines.set_clim(0.0, 1.0)
    axes.add_collection(lines)
    axes.set_xlim(-0.3, len(xs) - 0.4)
    axes.set_ylim(-0.05, 1.05)
    axes.set_xticks(xs, [_text(axis.name, _MAX_LEGEND_LABEL) for axis in panel.axes], fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    for x, axis in zip(xs, panel.axes, strict=True):
        axes.axvline(x, color="#4D4D4D", linewidth=0.8, zorder=3)
        for position, text in axis.ticks:
            box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8}
            axes.text(x + 0.04, position, _text(text, 14), fontsize=6.5, va="center", zorder=4, bbox=box)


def _draw_heat_map(axes: Axes, panel: HeatMap) -> None:
    from matplotlib.colors import LogNorm, Normalize

    xs, values = panel.columns()
    edges = np.arange(len(panel.rows) + 1) - 0.5
    norm = LogNorm() if panel.is_log else Normalize()
    image = axes.pcolorfast(_column_edges(xs), edges, values, cmap="viridis", norm=norm, interpolation_stage="rgba")
    _use_integer_ticks(axes, [xs])
    _name_rows(axes, panel.rows, panel.marks)
    bar = axes.figure.colorbar(image, ax=axes, aspect=30)
    bar.ax.tick_params(labelsize=8)
    bar.set_label(_text(panel.value_label, _MAX_LABEL), fontsize=9)


def _draw_bars(axes: Axes, panel: Bars) -> None:
    values = finite(panel.values, panel.is_log)
    colors = [MARK_COLOR if name in panel.marks else COLORS[0] for name in panel.names]
    axes.barh(range(len(values)), values, height=0.72, color=colors, log=panel.is_log)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    _name_rows(axes, panel.names, panel.marks)


def _column_edges(xs: Array) -> Array:
    """Return the edges of the columns, halfway between neighboring x values."""
    if np.ptp(xs) <= 1e-6 * abs(xs[0]):  # a single column, or several columns at the same x
        half = max(0.5, 1e-5 * abs(xs[0]))
        return np.linspace(xs[0] - half, xs[0] + half, len(xs) + 1)
    between = (xs[:-1] + xs[1:]) / 2
    return np.concatenate([[2 * xs[0] - between[0]], between, [2 * xs[-1] - between[-1]]])


def _use_integer_ticks(axes: Axes, xs: Sequence[Any]) -> None:
    from matplotlib.ticker import MaxNLocator

    if are_integers(finite(each) for each in xs):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def _name_rows(axes: Axes, names: Sequence[str], marks: Mapping[str, str]) -> None:
    axes.set_ylim(len(names) - 0.5, -0.5)
    marked = [row for row, name in enumerate(names) if name in marks]
    rows = rows_to_name(len(names), marked, math.ceil(len(names) / _MAX_NAMED_ROWS))
    texts = [f"{_text(marks.get(names[row], ''), _MAX_MARK)}  {_text(names[row], _MAX_ROW_NAME)}".strip() for row in rows]
    axes.set_yticks(rows, texts, fontsize=7)
    axes.tick_params(axis="y", length=0)
    for row, label in zip(rows, axes.get_yticklabels(), strict=True):
        label.set_color(MARK_COLOR if names[row] in marks else "black")


def rows_to_name(num_rows: int, marked: Sequence[int], stride: int) -> list[int]:
    """Choose the rows to label, at least `stride` rows apart. Marked rows take precedence over others.

    >>> rows_to_name(10, [4], 3)
    [0, 4, 7]
    """
    named: list[int] = []
    for number in [*marked, *range(num_rows)]:
        if all(abs(number - other) >= stride for other in named):
            named.append(number)
    return sorted(named)


def _add_legend(axes: Axes, handles: Mapping[str, Any]) -> None:
    """Put a legend to the right of the axes, where it covers nothing."""
    from matplotlib.lines import Line2D

    shown = dict(list(handles.items())[:_MAX_LEGEND_ENTRIES])
    labels = [_text(label, _MAX_LEGEND_LABEL) for label in shown]
    if len(handles) > len(shown):
        labels.append(f"... and {len(handles) - len(shown)} more")
    entries = [*shown.values(), Line2D([], [], linestyle="none")][: len(labels)]
    axes.legend(entries, labels, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7, frameon=False, labelspacing=0.3)


def _text(name: str, max_chars: int) -> str:
    """Shorten a name and escape dollar signs in it, because matplotlib would render text between them as a formula."""
    return shorten(name, max_chars).replace("$", r"\$")
