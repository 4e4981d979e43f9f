"""Drawing. Matplotlib and plotly are imported where something is drawn."""

from trainmaster.figures.curves import curves
from trainmaster.figures.html import interactive
from trainmaster.figures.panels import Bars, HeatMap, Histogram, Line, Lines, Panel
from trainmaster.figures.png import draw, png
from trainmaster.figures.save import save
from trainmaster.figures.series import Series, smoothed

__all__ = [
    "Bars",
    "HeatMap",
    "Histogram",
    "Line",
    "Lines",
    "Panel",
    "Series",
    "curves",
    "draw",
    "interactive",
    "png",
    "save",
    "smoothed",
]
