"""A matplotlib figure that every notebook shows as an image, whatever its backend."""

from __future__ import annotations

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A matplotlib figure that also has a PNG form.

    Without that form, a notebook would show only the name of the class, unless it uses `%matplotlib inline`.
    """

    def _repr_png_(self) -> bytes:
        from trainmaster.figures.png import png

        return png(self)
