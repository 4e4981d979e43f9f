"""Figures as PNG, by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainmaster.figures.draw_lines import HistogramArtist, LinesArtist
from trainmaster.figures.draw_rows import BarsArtist, HeatMapArtist
from trainmaster.figures.frame import Artist, Box
from trainmaster.figures.lettering import DPI, fitted, literal
from trainmaster.figures.panels import Bars, HeatMap, Histogram, Panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLE = 12.0
_TITLE_HEIGHT = 0.24
_EDGE = 0.08
_MOST_STRETCH = 1.5
"""How much higher than it asks a panel becomes to be as high as its neighbour."""


def draw(panels: Sequence[Panel], title: str = "") -> Figure:
    """A figure of panels, in two columns where there are several.

    Every place is computed here: to let matplotlib find the margins costs more than all the drawing.
    """
    from matplotlib.figure import Figure

    artists = [_artist(panel) for panel in panels]
    columns = [artists] if len(artists) < 2 else [artists[::2], artists[1::2]]
    rows = list(zip(*columns, strict=False)) + ([(columns[0][-1],)] if len(columns[0]) > len(columns[-1]) else [])
    widths = [max((each.space.whole_width for each in column), default=5.0) for column in columns]
    heights = [max(each.space.height for each in row) for row in rows]
    tops = [max(each.space.top for each in row) for row in rows]
    bottoms = [max(each.space.bottom for each in row) for row in rows]
    width = sum(widths) + 2 * _EDGE
    height = sum(heights) + sum(tops) + sum(bottoms) + 2 * _EDGE + (_TITLE_HEIGHT if title else 0.0) + (0.0 if rows else 1.0)
    figure = Figure(figsize=(width, height), dpi=DPI)
    if title:
        figure.suptitle(literal(fitted(title, _TITLE, width - 0.4)), fontsize=_TITLE, y=1 - 0.06 / height, va="top")
    y = height - _EDGE - (_TITLE_HEIGHT if title else 0.0)
    for row, top, high, bottom in zip(rows, tops, heights, bottoms, strict=True):
        x = _EDGE
        for artist, wide in zip(row, widths, strict=False):
            space = artist.space
            own = min(high, _MOST_STRETCH * space.height)
            artist.paint(figure, Box(x + space.left, y - top - own, wide - space.left - space.right, own))
            x += wide
        y -= top + high + bottom
    return figure


def png(figure: Figure) -> bytes:
    """A figure as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    data = io.BytesIO()
    figure.savefig(data, format="png", pil_kwargs={"compress_level": 3})
    return data.getvalue()


def _artist(panel: Panel) -> Artist:
    if isinstance(panel, HeatMap):
        return HeatMapArtist(panel)
    if isinstance(panel, Bars):
        return BarsArtist(panel)
    return HistogramArtist(panel) if isinstance(panel, Histogram) else LinesArtist(panel)
