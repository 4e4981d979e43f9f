"""Draws forest plots: means with their intervals, one below the other, and a vertical reference line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmaster.figures.colors import COLORS
from trainmaster.figures.panels import Forest, ForestRow, finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {"good": COLORS[2], "bad": COLORS[1], "unclear": COLORS[6], "point": COLORS[0]}
_LINE_COLOR = "#808080"


def draw_forest(axes: Axes, panel: Forest) -> None:
    axes.axvline(panel.line, color=_LINE_COLOR, linewidth=1.2, linestyle="--", zorder=1)
    for number, row in enumerate(panel.rows):
        mean, low, high = finite([row.mean, row.low, row.high]).tolist()
        color = _COLORS[row.color]
        axes.plot([low, high], [number, number], color=color, linewidth=2.2 if row.is_summary else 1.6, solid_capstyle="butt", zorder=2)
        axes.plot([low, high], [number, number], linestyle="none", marker="|", color=color, markersize=7, zorder=2)
        axes.plot([mean], [number], linestyle="none", marker="D" if row.is_summary else "o", color=color, markersize=6, zorder=3)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    summaries = [number for number, row in enumerate(panel.rows) if row.is_summary and number]
    if summaries:
        axes.axhline(summaries[0] - 0.5, color=_LINE_COLOR, linewidth=0.8)


def forest_traces(panel: Forest, names: list[str]) -> list[dict[str, Any]]:
    return [_trace(row, name) for row, name in zip(panel.rows, names, strict=True)]


def forest_shapes(panel: Forest) -> list[dict[str, Any]]:
    line = {"color": _LINE_COLOR, "width": 1.5, "dash": "dash"}
    return [{"type": "line", "x0": panel.line, "x1": panel.line, "yref": "paper", "y0": 0, "y1": 1, "line": line, "layer": "below"}]


def _trace(row: ForestRow, name: str) -> dict[str, Any]:
    mean, low, high = (None if value != value else value for value in finite([row.mean, row.low, row.high]).tolist())
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": [mean],
        "y": [name],
        "showlegend": False,
        "marker": {"color": _COLORS[row.color], "size": 10, "symbol": "diamond" if row.is_summary else "circle"},
        "hovertemplate": "%{y}<br>%{x:.6~g}<extra></extra>",
    }
    if mean is not None and low is not None and high is not None:
        trace["error_x"] = {"type": "data", "symmetric": False, "array": [high - mean], "arrayminus": [mean - low], "thickness": 2}
        trace["hovertemplate"] = f"%{{y}}<br>%{{x:.6~g}} [{low:.6g}, {high:.6g}]<extra></extra>"
    return trace
