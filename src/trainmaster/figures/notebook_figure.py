"""A matplotlib figure that notebooks show as an image with any backend."""

from __future__ import annotations

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A matplotlib figure that Jupyter can display as a PNG image.

    Jupyter shows a plain `Figure` only as text, unless the notebook uses `%matplotlib inline`.
    """

    def _repr_png_(self) -> bytes:
        from trainmaster.figures.png import png

        return png(self)
