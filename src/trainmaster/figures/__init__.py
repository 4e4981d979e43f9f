"""Draws figures as PNG and as interactive HTML pages.

Import the modules of this package directly. `spark` works without numpy, and matplotlib is imported only when something is drawn.
"""
