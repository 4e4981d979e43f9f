"""A matplotlib figure that every notebook shows as an image, whatever its backend."""

from __future__ import annotations

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """matplotlib's figure. Without `%matplotlib inline`, a notebook would only show the name of its class."""

    def _repr_png_(self) -> bytes:
        from trainmaster.figures.png import png

        return png(self)
