"""Panels as what plotly draws: traces, with axes and legends of their own in a common layout."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainmaster.figures.colours import COLOURS, MARKED, look, looks
from trainmaster.figures.draw_lines import counted, is_log_axis, lone
from trainmaster.figures.frame import wanted
from trainmaster.figures.lettering import printable, shortened
from trainmaster.figures.panels import Bars, HeatMap, Histogram, Lines, Panel
from trainmaster.figures.scale import Numbers, gapped, scale

_MAX_NAME = 60
_MAX_TITLE = 120
_MAX_DOTTED = 30
_HEIGHT = 320
_ROW_HEIGHT = 18
_LEAST_HEIGHT, _MOST_HEIGHT = 160, 900


@dataclass(frozen=True)
class Place:
    """Where a panel is: its number, its lower and upper end as shares of the figure, its height in pixels."""

    number: int
    low: float
    high: float
    height: int

    @property
    def suffix(self) -> str:
        return "" if self.number == 1 else str(self.number)

    @property
    def axes(self) -> dict[str, str]:
        return {"xaxis": f"x{self.suffix}", "yaxis": f"y{self.suffix}"}


@dataclass(frozen=True)
class Drawn:
    """A panel as plotly's data and its part of the layout; `is_empty` where there is nothing to see."""

    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    is_empty: bool


def height_of(panel: Panel) -> int:
    """How many pixels high a panel is."""
    if isinstance(panel, HeatMap | Bars):
        num = len(panel.rows if isinstance(panel, HeatMap) else panel.names)
        return min(max(_LEAST_HEIGHT, _ROW_HEIGHT * num), _MOST_HEIGHT)
    return _HEIGHT


def drawn(panel: Panel, place: Place) -> Drawn:
    if isinstance(panel, HeatMap):
        return _heat_map(panel, place)
    if isinstance(panel, Bars):
        return _bars(panel, place)
    return _histogram(panel, place) if isinstance(panel, Histogram) else _lines(panel, place)


def shown(name: str, max_chars: int = _MAX_NAME) -> str:
    """A name for plotly, which takes tags in a name for formatting."""
    return html.escape(shortened(printable(name), max_chars), quote=False)


def _lines(panel: Lines, place: Place) -> Drawn:
    is_log = is_log_axis(panel)
    labels = [line.label for line in panel.lines if not line.is_faint]
    has_legend = bool(wanted(labels, [panel.title, panel.y_label]))
    legend = {"legend": f"legend{place.suffix}"} if has_legend else {}
    traces = []
    for line, style in zip(panel.lines, looks(panel.lines), strict=True):
        xs, ys = gapped(line.xs), gapped(line.ys, is_log)
        common = {
            "type": "scatter",
            "name": shown(line.label),
            "legendgroup": f"{place.number}/{printable(line.label)}",
            **legend,
            **place.axes,
        }
        if line.low is not None and line.high is not None:
            band_xs, band_ys = _outline(xs, gapped(line.low, is_log), gapped(line.high, is_log))
            traces.append(
                {
                    **common,
                    "x": band_xs,
                    "y": band_ys,
                    "mode": "lines",
                    "fill": "toself",
                    "line": {"width": 0, "color": style.colour},
                    "opacity": 0.25,
                    "fillcolor": style.colour,
                    "hoverinfo": "skip",
                    "showlegend": False,
                }
            )
        dots = _dots(ys)
        traces.append(
            {
                **common,
                "x": xs,
                "y": ys,
                "mode": "lines" if dots is None else "lines+markers",  # plotly takes a size of 0 for its own
                "marker": {"size": dots, "color": style.colour},
                "line": {"color": style.colour, "dash": style.dash, "width": 1 if line.is_faint else 2},
                "opacity": 0.35 if line.is_faint else 1.0,
                "showlegend": has_legend and not line.is_faint,
                "hovertemplate": "%{x}<br>%{y:.6~g}<extra>%{fullData.name}</extra>",
            }
        )
    layout = {
        f"xaxis{place.suffix}": _axis(panel.x_label, place, is_x=True),
        f"yaxis{place.suffix}": _axis(panel.y_label, place, is_log=is_log),
        **_legend(place, has_legend),
    }
    return Drawn(traces, layout, not any(np.isfinite(gapped(line.ys, is_log)).any() for line in panel.lines))


def _histogram(panel: Histogram, place: Place) -> Drawn:
    edges, counts = counted(panel)
    has_legend = bool(wanted([*counts], [panel.title, panel.x_label]))
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": shown(label),
            "x": edges[:-1],
            "y": values,
            "width": np.diff(edges),
            "offset": 0,
            "customdata": np.stack([edges[:-1], edges[1:]], axis=1),
            "marker": {"color": look(number).colour, "line": {"width": 0}},
            "opacity": 0.85 if len(counts) == 1 else 0.5,
            **({"legend": f"legend{place.suffix}"} if has_legend else {}),
            "showlegend": has_legend,
            "hovertemplate": "%{customdata[0]:.4~g} to %{customdata[1]:.4~g}<br>%{y}<extra>%{fullData.name}</extra>",
            **place.axes,
        }
        for number, (label, values) in enumerate(counts.items())
    ]
    layout = {
        f"xaxis{place.suffix}": _axis(panel.x_label, place, is_x=True),
        f"yaxis{place.suffix}": _axis(panel.y_label, place),
        **_legend(place, has_legend),
        "barmode": "overlay",
    }
    return Drawn(traces, layout, not any(np.isfinite(each["y"]).any() for each in traces))


def _heat_map(panel: HeatMap, place: Place) -> Drawn:
    values = gapped(panel.values, panel.is_log).reshape(len(panel.rows), len(panel.xs))
    shades = scale([values], panel.is_log, margin=0.0)
    middle = (place.low + place.high) / 2
    rows = _rows(panel.rows, panel.marks)
    bar = {
        "title": {"text": shown(panel.value_label), "side": "right"},
        "x": 1.01,
        "y": middle,
        "len": place.height,
        "lenmode": "pixels",
        "thickness": 16,
        "tickvals": np.log10(shades.ticks) if panel.is_log else list(shades.ticks),
        "ticktext": list(shades.labels),
    }
    trace = {
        "type": "heatmap",
        "x": gapped(panel.xs),
        "y": rows,
        "z": np.log10(values) if panel.is_log else values,
        "zmin": np.log10(shades.low) if panel.is_log else shades.low,
        "zmax": np.log10(shades.high) if panel.is_log else shades.high,
        "customdata": values,
        "colorscale": "Viridis",
        "colorbar": bar,
        "hoverongaps": False,
        "hovertemplate": "%{y}<br>%{x}: %{customdata:.4~g}<extra></extra>",
        **place.axes,
    }
    is_empty = not np.isfinite(values).any()
    return Drawn([] if is_empty else [trace], _rows_layout(panel.x_label, rows, place, is_log=False), is_empty)


def _bars(panel: Bars, place: Place) -> Drawn:
    values = gapped(panel.values, panel.is_log)
    rows = _rows(panel.names, panel.marks)
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": rows,
        "width": 0.72,
        "marker": {"color": [MARKED if name in panel.marks else COLOURS[0] for name in panel.names]},
        "showlegend": False,
        "hovertemplate": "%{y}<br>%{x:.6~g}<extra></extra>",
        **place.axes,
    }
    is_empty = not np.isfinite(values).any()
    return Drawn([] if is_empty else [trace], _rows_layout(panel.x_label, rows, place, panel.is_log), is_empty)


def _rows(names: Sequence[str], marks: Mapping[str, str]) -> list[str]:
    """Names of rows with their marks; a name that comes again has a number, for plotly would draw both in one row."""
    found: dict[str, None] = {}
    for name in names:
        mark = f"<span style='color: {MARKED}'>{shown(marks[name])}</span> " if name in marks else ""
        text, number = mark + shown(name), 1
        while text in found:
            number += 1
            text = f"{mark}{shown(name)} ({number})"
        found[text] = None
    return [*found]


def _rows_layout(x_label: str, rows: list[str], place: Place, is_log: bool) -> dict[str, Any]:
    return {
        f"xaxis{place.suffix}": _axis(x_label, place, is_x=True, is_log=is_log),
        f"yaxis{place.suffix}": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": rows,
            "autorange": "reversed",
            "domain": [place.low, place.high],
            "anchor": f"x{place.suffix}",
            "automargin": True,
            "tickfont": {"size": 10},
        },
    }


def _axis(label: str, place: Place, is_x: bool = False, is_log: bool = False) -> dict[str, Any]:
    return {
        "type": "log" if is_log else "linear",
        "title": {"text": shown(label)},
        "domain": [0.0, 1.0] if is_x else [place.low, place.high],
        "anchor": f"{'y' if is_x else 'x'}{place.suffix}",
        "automargin": True,
        "zeroline": False,
        "exponentformat": "e",
    }


def _legend(place: Place, has_legend: bool) -> dict[str, Any]:
    return {f"legend{place.suffix}": {"x": 1.01, "xanchor": "left", "y": place.high, "yanchor": "top"}} if has_legend else {}


def _dots(ys: Numbers) -> Any:
    """Sizes of dots: of each point while there are few, else of those that no line goes to; None where there are none."""
    if len(ys) <= _MAX_DOTTED:
        return 6
    sizes = np.zeros(len(ys))
    sizes[lone(ys)] = 6
    return sizes if sizes.any() else None


def _outline(xs: Numbers, low: Numbers, high: Numbers) -> tuple[Numbers, Numbers]:
    """The outlines of a band, with a gap between two pieces."""
    pieces = [(xs[part], low[part], high[part]) for part in _pieces(np.isfinite(xs + low + high))]
    gap = np.array([np.nan])
    around_xs = [np.concatenate([x, x[::-1], gap]) for x, _, _ in pieces]
    around_ys = [np.concatenate([one, other[::-1], gap]) for _, one, other in pieces]
    return np.concatenate([np.zeros(0), *around_xs])[:-1], np.concatenate([np.zeros(0), *around_ys])[:-1]


def _pieces(has: Any) -> Iterator[slice]:
    """Where something is without a gap."""
    changes = np.flatnonzero(np.diff(np.concatenate([[0], has.astype(int), [0]])))
    for start, end in zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True):
        yield slice(start, end)
