"""Figures as pages to zoom and hover in, by plotly."""

from __future__ import annotations

import html
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainmaster.errors import MissingExtraError
from trainmaster.figures.lettering import printable
from trainmaster.figures.panels import Panel
from trainmaster.figures.traces import Place, drawn, height_of, shown

SCRIPT = "plotly.min.js"
"""What a page needs beside it."""
_TOP, _BETWEEN, _BOTTOM = 90, 110, 70
"""Around panels, in pixels: for the numbers and the name of the axis above, and the title of what is below."""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<script src="{script}"></script>
</head>
<body style="margin: 0; font-family: sans-serif">
<div id="figure"></div>
<script>
if (window.Plotly) {{
  Plotly.newPlot("figure", Object.assign({figure}, {{config: {{responsive: true, displaylogo: false}}}}));
}} else {{
  document.getElementById("figure").textContent = "This page needs the file {script} beside it.";
}}
</script>
</body>
</html>
"""


def interactive(panels: Sequence[Panel], title: str = "") -> Any:
    """A plotly figure of panels, one below the other: a page can be scrolled, and there is more room to zoom."""
    graphs = _plotly("plotly.graph_objects")
    heights = [height_of(panel) for panel in panels]
    whole = max(1, sum(heights) + _BETWEEN * (len(panels) - 1))
    traces: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "template": "none",
        "height": whole + _TOP + _BOTTOM,
        "margin": {"t": _TOP, "b": _BOTTOM, "l": 70, "r": 30},
        "title": {"text": shown(title, 200)},
        "hovermode": "closest",
    }
    top = whole
    for number, (panel, height) in enumerate(zip(panels, heights, strict=True), start=1):
        place = Place(number, max(0.0, (top - height) / whole), top / whole, height)
        part = drawn(panel, place)
        traces += part.traces
        layout |= part.layout
        notes.append(_note(shown(panel.title, 120), place.high, "bottom", 16))
        if part.is_empty:
            notes.append(_note("no values", (place.low + place.high) / 2, "middle", 12))
        top -= height + _BETWEEN
    return graphs.Figure(data=traces, layout={**layout, "annotations": notes})


def page(figure: Any, title: str) -> str:
    """A plotly figure as a page, which needs `plotly.min.js` beside it and fetches nothing from elsewhere."""
    data: str = figure.to_json(engine="json")
    for sign in "<>&\u2028\u2029":  # so no name ends the script that it is in, whatever the library does about it
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    return _PAGE.format(title=html.escape(printable(title)), script=SCRIPT, figure=data)


def script() -> Path:
    """The script that the plotly package brings."""
    return Path(_plotly("plotly").__file__).parent / "package_data" / SCRIPT


def _note(text: str, y: float, anchor: str, size: int) -> dict[str, Any]:
    place = {"xref": "paper", "yref": "paper", "x": 0.5, "y": y, "xanchor": "center", "yanchor": anchor}
    return {**place, "text": text, "showarrow": False, "font": {"size": size}}


def _plotly(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError("interactive figures need: pip install 'trainmaster[analysis]'") from error
