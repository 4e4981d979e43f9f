"""Converts figures to interactive HTML pages, which plotly.js draws in the browser."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainmaster.figures.colors import COLORS, MARK_COLOR, line_styles
from trainmaster.figures.forest import forest_shapes, forest_traces
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
    finite,
    has_density,
    isolated,
)
from trainmaster.text import printable

SCRIPT = "plotly.min.js"
"""The script that a page loads from its own folder."""
_HEIGHT, _ROW_HEIGHT, _MAX_ROWS_HEIGHT, _MARGINS = 400, 18, 1000, 120
"""Sizes in pixels."""
_MAX_NAME, _MAX_TITLE = 60, 120
"""Maximum lengths in characters."""
_MAX_POINTS_WITH_MARKERS = 30
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<script src="{script}"></script>
</head>
<body style="margin: 0; font-family: sans-serif">
<h3 style="margin: 1em; text-align: center; font-weight: normal">{heading}</h3>
<script>
const panels = {panels};
if (!window.Plotly) {{
  document.body.textContent = "This page needs the file {script} in the same folder.";
}} else for (const panel of panels) {{
  const plot = document.body.appendChild(document.createElement("div"));
  Plotly.newPlot(plot, panel.data, panel.layout, {{responsive: true, displaylogo: false}});
}}
</script>
</body>
</html>
"""


def page(panels: Sequence[Panel], title: str = "", name: str = "") -> str:
    """Return an HTML page with all plots, one below the other.

    The only file that the page loads is `plotly.min.js`, from the folder of the page.

    `name` is the title of the browser tab if the figure has no title.
    """
    data = json.dumps([plot(panel) for panel in panels])
    for char in "<>&\u2028\u2029":  # a name with `</script>` must not end the script
        data = data.replace(char, f"\\u{ord(char):04x}")
    heading = html.escape(printable(title))
    return _PAGE.format(title=heading or html.escape(printable(name)), heading=heading, script=SCRIPT, panels=data)


def plot(panel: Panel) -> dict[str, Any]:
    """Convert a panel to `data` and `layout` for plotly."""
    layout: dict[str, Any] = {
        "title": {"text": _text(panel.title, _MAX_TITLE), "font": {"size": 16}},
        "height": _HEIGHT,
        "margin": {"t": 60, "b": 60},
        "hovermode": "closest",
        "xaxis": _axis(panel.x_label),
    }
    if panel.is_empty:
        layout |= {"xaxis": {"visible": False}, "yaxis": {"visible": False}}
        layout["annotations"] = [{"text": "no values", "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False}]
        return {"data": [], "layout": layout}
    if isinstance(panel, Lines):
        layout |= {"yaxis": _axis(panel.y_label, panel.has_log_scale)}
        return {"data": _lines(panel), "layout": layout}
    if isinstance(panel, Histogram):
        layout |= {"yaxis": _axis(panel.y_label), "barmode": "overlay"}
        return {"data": _histogram(panel), "layout": layout}
    if isinstance(panel, Scatter):
        layout |= {"xaxis": _axis(panel.x_label, panel.is_log_x), "yaxis": _axis(panel.y_label, panel.is_log_y)}
        return {"data": _scatter(panel), "layout": layout}
    if isinstance(panel, Violins):
        layout |= {"xaxis": {**layout["xaxis"], "type": "category"}, "yaxis": _axis(panel.y_label, panel.is_log)}
        return {"data": _violins(panel), "layout": layout}
    if isinstance(panel, Parallel):
        return {"data": [_parallel(panel)], "layout": {**layout, "margin": {"t": 100, "b": 40, "l": 80, "r": 80}}}
    if isinstance(panel, Forest):
        rows = _rows([row.name for row in panel.rows], {})
        layout["height"] = _MARGINS + min(26 * max(6, len(rows)), _MAX_ROWS_HEIGHT)
        layout["yaxis"] = {"type": "category", "categoryarray": rows, "range": [len(rows) - 0.5, -0.5], "automargin": True}
        layout["shapes"] = forest_shapes(panel)
        return {"data": forest_traces(panel, rows), "layout": layout}
    rows = _rows(panel.rows if isinstance(panel, HeatMap) else panel.names, panel.marks)
    layout["height"] = _MARGINS + min(_ROW_HEIGHT * max(8, len(rows)), _MAX_ROWS_HEIGHT)
    layout["yaxis"] = {"type": "category", "autorange": "reversed", "automargin": True, "tickfont": {"size": 10}}
    if isinstance(panel, HeatMap):
        return {"data": [_heat_map(panel, rows)], "layout": layout}
    layout["xaxis"] = _axis(panel.x_label, panel.is_log)
    return {"data": [_bars(panel, rows)], "layout": layout}


def _lines(panel: Lines) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    for line, style in zip(panel.lines, line_styles(panel.lines), strict=True):
        xs, ys = finite(line.xs), finite(line.ys, panel.has_log_scale)
        common = {"type": "scatter", "name": _text(line.label), "legendgroup": printable(line.label)}
        if line.low is not None and line.high is not None:
            low, high = finite(line.low, panel.has_log_scale), finite(line.high, panel.has_log_scale)
            outline = {"fill": "toself", "fillcolor": style.color, "line": {"width": 0, "color": style.color}, "opacity": 0.25}
            traces.append({**common, **outline, **_band(xs, low, high), "mode": "lines", "hoverinfo": "skip", "showlegend": False})
        marked = isolated(ys) if len(ys) > _MAX_POINTS_WITH_MARKERS else list(range(len(ys)))
        sizes = np.zeros(len(ys))
        sizes[marked] = 6.0
        traces.append(
            {
                **common,
                "x": _array(xs),
                "y": _array(ys),
                "mode": "lines+markers" if marked else "lines",
                "marker": {"size": _array(sizes), "color": style.color, "opacity": 1, "line": {"width": 0}},
                "line": {"color": style.color, "dash": style.dash, "width": 1 if line.is_faint else 2},
                "opacity": 0.35 if line.is_faint else 1.0,
                "showlegend": panel.has_legend and not line.is_faint,
                "hovertemplate": "%{x}<br>%{y:.6~g}<extra>%{fullData.name}</extra>",
            }
        )
    return traces


def _band(xs: Array, low: Array, high: Array) -> dict[str, Any]:
    """Return the outline of a band: along `low`, then back along `high`. If the data has gaps, each part gets its own outline."""
    parts = np.ma.clump_unmasked(np.ma.masked_invalid(xs + low + high))  # type: ignore[no-untyped-call]
    x = [np.concatenate([xs[part], xs[part][::-1], [np.nan]]) for part in parts]
    y = [np.concatenate([low[part], high[part][::-1], [np.nan]]) for part in parts]
    return {"x": _array(np.concatenate([np.zeros(0), *x])), "y": _array(np.concatenate([np.zeros(0), *y]))}


def _scatter(panel: Scatter) -> list[dict[str, Any]]:
    points: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": _array(finite(panel.xs, panel.is_log_x)),
        "y": _array(finite(panel.ys, panel.is_log_y)),
        "text": [_text(name) for name in panel.names],
        "marker": {"color": COLORS[0], "size": 6, "opacity": 0.6},
        "showlegend": False,
        "hovertemplate": "%{x:.6~g}<br>%{y:.6~g}<extra>%{text}</extra>" if panel.names else "%{x:.6~g}<br>%{y:.6~g}<extra></extra>",
    }
    if panel.fit is None:
        return [points]
    fit = panel.fit
    common: dict[str, Any] = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "name": _text(fit.label)}
    xs = finite(fit.xs, panel.is_log_x)
    traces = [points, {**common, "x": _array(xs), "y": _array(finite(fit.ys, panel.is_log_y)), "line": {"color": MARK_COLOR}}]
    if fit.low is not None and fit.high is not None:
        low, high = finite(fit.low, panel.is_log_y), finite(fit.high, panel.is_log_y)
        outline = {"fill": "toself", "fillcolor": MARK_COLOR, "line": {"width": 0, "color": MARK_COLOR}, "opacity": 0.2}
        traces.insert(1, {**common, **outline, **_band(xs, low, high), "showlegend": False})
    return traces


def _violins(panel: Violins) -> list[dict[str, Any]]:
    return [
        {
            "type": "violin",
            "name": _text(name),
            "y": _array(finite(values, panel.is_log)),
            "points": "all",
            "pointpos": 0,
            "jitter": 0.3,
            "spanmode": "hard",
            "box": {"visible": True, "width": 0.05},
            "line": {"color": COLORS[number % len(COLORS)], "width": 1 if has_density(values) else 0},
            **({} if has_density(values) else {"fillcolor": "rgba(0,0,0,0)", "box": {"visible": False}}),
            "marker": {"size": 4, "opacity": 0.6},
            "showlegend": False,
            "hoverinfo": "y+name",
        }
        for number, (name, values) in enumerate(panel.values.items())
    ]


def _parallel(panel: Parallel) -> dict[str, Any]:
    """Return a plot of parallel coordinates.

    Plotly cannot draw gaps in such a plot, so missing values are drawn at the bottom.
    """
    order = panel.order()
    axes = [np.nan_to_num(finite(axis.positions)[order]) for axis in panel.axes]
    dimensions = [
        {
            "label": _text(axis.name),
            "range": [0, 1],
            "values": values.tolist(),
            "tickvals": [position for position, _ in axis.ticks],
            "ticktext": [_text(text) for _, text in axis.ticks],
        }
        for axis, values in zip(panel.axes, axes, strict=True)
    ]
    line = {"color": axes[-1].tolist(), "colorscale": "Viridis", "cmin": 0, "cmax": 1, "reversescale": panel.is_reversed}
    return {"type": "parcoords", "dimensions": dimensions, "line": line}


def _histogram(panel: Histogram) -> list[dict[str, Any]]:
    edges = finite(panel.edges)
    return [
        {
            "type": "bar",
            "name": _text(label),
            "x": _array(edges[:-1]),
            "y": _array(finite(counts)),
            "width": _array(np.diff(edges)),
            "offset": 0,
            "customdata": _array(edges[1:]),
            "marker": {"color": COLORS[number % len(COLORS)], "line": {"width": 0}},
            "opacity": 0.85 if len(panel.counts) == 1 else 0.5,
            "showlegend": panel.has_legend,
            "hovertemplate": "%{x:.4~g} to %{customdata:.4~g}<br>%{y}<extra>%{fullData.name}</extra>",
        }
        for number, (label, counts) in enumerate(panel.counts.items())
    ]


def _heat_map(panel: HeatMap, rows: list[str]) -> dict[str, Any]:
    xs, values = panel.columns()
    bar: dict[str, Any] = {"title": {"text": _text(panel.value_label), "side": "right"}, "thickness": 16}
    colors = values
    if panel.is_log:  # plotly has no log scale for colors
        colors = np.log10(values)
        ticks = np.linspace(np.nanmin(colors), np.nanmax(colors), 5)
        bar |= {"tickvals": ticks.tolist(), "ticktext": [f"{10**tick:.3g}" for tick in ticks]}
    return {
        "type": "heatmap",
        "x": _array(xs),
        "y": rows,
        "z": _array(colors),
        "customdata": _array(values),
        "colorscale": "Viridis",
        "colorbar": bar,
        "hoverongaps": False,
        "hovertemplate": "%{y}<br>%{x}: %{customdata:.4~g}<extra></extra>",
    }


def _bars(panel: Bars, rows: list[str]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "x": _array(finite(panel.values, panel.is_log)),
        "y": rows,
        "marker": {"color": [MARK_COLOR if name in panel.marks else COLORS[0] for name in panel.names]},
        "hovertemplate": "%{y}<br>%{x:.6~g}<extra></extra>",
    }


def _rows(names: Sequence[str], marks: Mapping[str, str]) -> list[str]:
    """Return a label for each row: its mark, if any, and its name. Repeated labels are numbered, because plotly would merge them."""
    found: dict[str, None] = {}
    for name in names:
        mark = f"<span style='color: {MARK_COLOR}'>{_text(marks[name])}</span> " if name in marks else ""
        text, number = mark + _text(name), 1
        while text in found:
            number += 1
            text = f"{mark}{_text(name)} ({number})"
        found[text] = None
    return list(found)


def _axis(label: str, is_log: bool = False) -> dict[str, Any]:
    numbers = {"type": "log", "exponentformat": "e"} if is_log else {"tickformat": ".10~g"}  # plotly would write 100μ for 0.0001
    return {**numbers, "title": {"text": _text(label)}, "automargin": True, "zeroline": False}


def _text(name: str, max_chars: int = _MAX_NAME) -> str:
    """Shorten a name and escape HTML in it, because plotly would interpret tags as formatting."""
    return html.escape(shorten(name, max_chars), quote=False)


def _array(values: Array) -> dict[str, str]:
    """Convert numbers to plotly's binary format, which keeps NaN and is smaller than text."""
    data = base64.b64encode(values.astype("<f8").tobytes()).decode()
    return {"dtype": "f8", "bdata": data, "shape": ", ".join(map(str, values.shape))}
