"""Draws figures as PNG and as interactive HTML pages.

Import the modules of this package directly. `spark` works without NumPy, and matplotlib is imported only when a figure is drawn.
"""
