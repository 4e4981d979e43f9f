"""Drawing. Matplotlib is imported where something is drawn."""

from trainmaster.figures.curves import curves, png

__all__ = ["curves", "png"]
