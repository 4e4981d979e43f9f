"""`Drawing`: a figure that you can show in a notebook or save as PNG or as an interactive page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.errors import SettingError
from trainmaster.figures.panels import Panel
from trainmaster.figures.png import draw, png
from trainmaster.figures.save import save, save_page, save_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure that consists of panels and a title. It is drawn only when it is shown or saved. A notebook shows it as an image."""

    panels: Sequence[Panel]
    title: str = ""

    def figure(self) -> Figure:
        """Return the matplotlib figure, so that you can change it before you save it."""
        return draw(self.panels, self.title)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the figure to a file: `lr.png`, or the interactive page `lr.html`. If the path is `lr`, write both files.

        The page loads `plotly.min.js` from the folder of the page, so that script is written there too.
        """
        path = Path(path)
        if path.suffix == ".png":
            save_png(path, self.panels, self.title)
        elif path.suffix == ".html":
            save_page(path, self.panels, self.title)
        elif path.suffix:
            raise SettingError(f"a figure cannot be saved as `{path.name}`", hint="use .png or .html, or no ending for both")
        else:
            save(path.parent, path.name, self.panels, self.title)

    def _repr_png_(self) -> bytes:
        return png(self.figure())
